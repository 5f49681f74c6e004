//! The connections of clients, counted: how many there are, and whose.

use super::Limits;
use crate::proxy::Gate;
use crate::telemetry::vitals::ConnectionVitals;
use futures_util::task::AtomicWaker;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use tokenweir_net::descriptors::Descriptor;

/// All connections of clients.
#[derive(Debug)]
pub struct Connections {
    most: usize,
    most_of_client: Option<u32>,
    gate: Arc<Gate>,
    open: AtomicUsize,
    clients: Mutex<HashMap<IpAddr, Arc<Client>>>,
    full: AtomicU64,
    client_full: AtomicU64,
    handshakes: AtomicU64,
    accept_errors: AtomicU64,
}

/// What one address has open.
#[derive(Debug, Default)]
struct Client {
    connections: AtomicU32,
    requests: AtomicU32,
}

/// A connection that is counted, until it is dropped.
#[derive(Debug)]
pub(super) struct Counted {
    connections: Arc<Connections>,
    client: Arc<Client>,
    key: IpAddr,
    /// Its file descriptor.
    _descriptor: Descriptor,
}

/// A request that is counted, until it is dropped.
#[derive(Debug)]
pub(super) struct Open {
    client: Arc<Client>,
    /// `None`: there is no other one on its connection.
    of_connection: Option<Arc<Activity>>,
    number: u32,
}

/// The requests of one connection that has many at the same time.
#[derive(Debug, Default)]
pub(super) struct Activity {
    open: AtomicU32,
    begun: AtomicU32,
    /// Woken when the last one ends: whoever reads from the connection may wait for nothing else.
    reader: AtomicWaker,
}

/// Why a connection is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// There are as many as there may be.
    All,
    /// No file descriptor is left for it.
    Descriptors,
    /// Its address has as many as it may have.
    Client,
}

// === impl Connections ===

impl Connections {
    /// None yet. `gate` is told how many there are.
    pub fn new(limits: &Limits, gate: Arc<Gate>) -> Arc<Self> {
        Arc::new(Self {
            most: limits.connections,
            most_of_client: limits.connections_per_client,
            gate,
            open: AtomicUsize::new(0),
            clients: Mutex::default(),
            full: AtomicU64::new(0),
            client_full: AtomicU64::new(0),
            handshakes: AtomicU64::new(0),
            accept_errors: AtomicU64::new(0),
        })
    }

    /// How they are now.
    pub fn vitals(&self) -> ConnectionVitals {
        ConnectionVitals {
            open: self.open.load(Ordering::Relaxed),
            most: (self.most < usize::MAX).then_some(self.most),
            full: self.full.load(Ordering::Relaxed),
            client_full: self.client_full.load(Ordering::Relaxed),
            handshakes: self.handshakes.load(Ordering::Relaxed),
            accept_errors: self.accept_errors.load(Ordering::Relaxed),
        }
    }

    /// Counts one more from an address, if there is room.
    pub(super) fn enter(self: &Arc<Self>, ip: IpAddr) -> Result<Counted, Full> {
        if self.open.load(Ordering::Relaxed) >= self.most {
            self.full.fetch_add(1, Ordering::Relaxed);
            return Err(Full::All);
        }
        let descriptor = self.gate.descriptors().take().ok_or(Full::Descriptors)?;
        let key = network(ip);
        let mut clients = self.clients();
        let client = clients.entry(key).or_default();
        let open = client.connections.load(Ordering::Relaxed);
        if self.most_of_client.is_some_and(|most| open >= most) {
            self.client_full.fetch_add(1, Ordering::Relaxed);
            return Err(Full::Client);
        }
        client.connections.store(open + 1, Ordering::Relaxed);
        let client = client.clone();
        drop(clients);
        self.gate.set_connections(self.open.fetch_add(1, Ordering::Relaxed) + 1);
        Ok(Counted { connections: self.clone(), client, key, _descriptor: descriptor })
    }

    /// One was refused because no file descriptor was left for it.
    pub(super) fn descriptors_ran_out(&self) {
        self.full.fetch_add(1, Ordering::Relaxed);
    }

    /// A handshake of TLS failed.
    pub(super) fn handshake_failed(&self) {
        self.handshakes.fetch_add(1, Ordering::Relaxed);
    }

    /// The system gave no connection although there was one.
    pub(super) fn accept_failed(&self) {
        self.accept_errors.fetch_add(1, Ordering::Relaxed);
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<IpAddr, Arc<Client>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whoever has an IPv6 address has all of its network.
fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from(u128::from(ip) & !u128::from(u64::MAX))),
        ip @ IpAddr::V4(_) => ip,
    }
}

// === impl Counted ===

impl Counted {
    /// Counts a request on it, and in `of_connection`.
    pub(super) fn request(&self, of_connection: Option<Arc<Activity>>) -> Open {
        if let Some(Activity { open, begun, .. }) = of_connection.as_deref() {
            open.fetch_add(1, Ordering::Relaxed);
            begun.fetch_add(1, Ordering::Relaxed);
        }
        let number = self.client.requests.fetch_add(1, Ordering::Relaxed) + 1;
        Open { client: self.client.clone(), of_connection, number }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let Self { connections, client, key, _descriptor } = self;
        let mut clients = connections.clients();
        if client.connections.fetch_sub(1, Ordering::Relaxed) == 1 {
            clients.remove(key);
        }
        drop(clients);
        connections.gate.set_connections(connections.open.fetch_sub(1, Ordering::Relaxed) - 1);
    }
}

// === impl Activity ===

impl Activity {
    /// How many requests there have been.
    pub(super) fn begun(&self) -> u32 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether there is a request now. `waker` is woken when there is none any more.
    pub(super) fn is_busy(&self, waker: &Waker) -> bool {
        if self.open.load(Ordering::Acquire) == 0 {
            return false;
        }
        self.reader.register(waker);
        self.open.load(Ordering::Acquire) > 0
    }
}

// === impl Open ===

impl Open {
    /// How many of its client are open, with this one, when it began.
    pub(super) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.client.requests.fetch_sub(1, Ordering::Relaxed);
        if let Some(Activity { open, reader, .. }) = self.of_connection.as_deref()
            && open.fetch_sub(1, Ordering::AcqRel) == 1
        {
            reader.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(limits: Limits) -> Arc<Connections> {
        Connections::new(&limits, Arc::default())
    }

    #[test]
    fn the_ceiling_holds_and_a_place_comes_back() {
        let all = connections(Limits { connections: 2, ..Limits::default() });
        let [a, b, c] = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        let first = all.enter(a).unwrap();
        let _second = all.enter(b).unwrap();
        assert_eq!(all.enter(c).unwrap_err(), Full::All);
        drop(first);
        assert!(all.enter(c).is_ok());
        let vitals = all.vitals();
        assert_eq!((vitals.open, vitals.most, vitals.full), (1, Some(2), 1));
    }

    #[test]
    fn one_client_cannot_have_them_all_and_a_network_is_one_client() {
        let limits = Limits { connections_per_client: Some(1), ..Limits::default() };
        let all = connections(limits);
        let [a, b, c]: [IpAddr; 3] =
            ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"].map(|ip| ip.parse().unwrap());
        let first = all.enter(a).unwrap();
        assert_eq!(all.enter(b).unwrap_err(), Full::Client);
        assert!(all.enter(c).is_ok());
        drop(first);
        assert!(all.enter(b).is_ok());
        assert!(all.clients().is_empty(), "nothing is kept of who has left");
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        let _first = all.enter(mapped).unwrap();
        assert_eq!(all.enter(IpAddr::from([10, 0, 0, 1])).unwrap_err(), Full::Client);
    }

    #[test]
    fn requests_are_counted_over_the_connections_of_a_client() {
        let all = connections(Limits::default());
        let ip = IpAddr::from([10, 0, 0, 1]);
        let (one, two) = (all.enter(ip).unwrap(), all.enter(ip).unwrap());
        let first = one.request(None);
        assert_eq!((first.number(), two.request(None).number()), (1, 2));
        assert_eq!(two.request(None).number(), 2);
    }
}
