//! Counts and limits client connections and open requests, in total and per client address.

use crate::proxy::OverloadGuard;
use crate::server::limits::ServerLimits;
use crate::telemetry::status::ConnectionStatusSnapshot;
use futures_util::task::AtomicWaker;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use tokenweir_net::file_descriptors::FileDescriptorPermit;

/// Limits client connections in total, per client, and by the file descriptors that are left.
#[derive(Debug)]
pub struct ConnectionLimiter {
    max_connections: usize,
    max_connections_per_client: Option<u32>,
    overload_guard: Arc<OverloadGuard>,
    open_connections: AtomicUsize,
    clients: Mutex<HashMap<IpAddr, Arc<ClientUsage>>>,
    limit_rejections: AtomicU64,
    client_limit_rejections: AtomicU64,
    failed_handshakes: AtomicU64,
    accept_errors: AtomicU64,
}

/// Open connections and requests of one client address (IPv4) or /64 network (IPv6).
#[derive(Debug, Default)]
struct ClientUsage {
    connections: AtomicU32,
    requests: AtomicU32,
}

/// The permit of one connection. Dropping it returns the connection to the limits.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    client: Arc<ClientUsage>,
    client_network: IpAddr,
    /// The file descriptor of the connection.
    _descriptor: FileDescriptorPermit,
}

/// The permit of one request. Dropping it ends the count of the request.
#[derive(Debug)]
pub(super) struct RequestPermit {
    client: Arc<ClientUsage>,
    /// `None`: the connection serves one request at a time (HTTP/1.1).
    connection_requests: Option<Arc<InFlightRequests>>,
    client_requests_in_flight: u32,
}

/// The requests of one connection that serves several at the same time (HTTP/2).
#[derive(Debug, Default)]
pub(super) struct InFlightRequests {
    in_flight: AtomicU32,
    started: AtomicU32,
    /// Woken when the last open request ends, so that the reader of the connection can start its
    /// idle timeout.
    idle_waker: AtomicWaker,
}

/// Why a connection is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionLimitExceeded {
    /// The limit on the total number of connections is reached.
    Total,
    /// No file descriptor is left.
    Descriptors,
    /// The limit of connections per client is reached.
    PerClient,
}

// === impl ConnectionLimiter ===

impl ConnectionLimiter {
    /// A limiter without connections. It reports the number of open connections to
    /// `overload_guard`.
    pub fn new(limits: &ServerLimits, overload_guard: Arc<OverloadGuard>) -> Arc<Self> {
        Arc::new(Self {
            max_connections: limits.max_connections,
            max_connections_per_client: limits.max_connections_per_client,
            overload_guard,
            open_connections: AtomicUsize::new(0),
            clients: Mutex::default(),
            limit_rejections: AtomicU64::new(0),
            client_limit_rejections: AtomicU64::new(0),
            failed_handshakes: AtomicU64::new(0),
            accept_errors: AtomicU64::new(0),
        })
    }

    /// The current counts.
    pub fn snapshot(&self) -> ConnectionStatusSnapshot {
        ConnectionStatusSnapshot {
            open: self.open_connections.load(Ordering::Relaxed),
            limit: (self.max_connections < usize::MAX).then_some(self.max_connections),
            full: self.limit_rejections.load(Ordering::Relaxed),
            client_full: self.client_limit_rejections.load(Ordering::Relaxed),
            failed_handshakes: self.failed_handshakes.load(Ordering::Relaxed),
            accept_errors: self.accept_errors.load(Ordering::Relaxed),
        }
    }

    /// Counts one more connection of an address, if no limit is reached.
    pub(super) fn try_acquire(
        self: &Arc<Self>,
        ip: IpAddr,
    ) -> Result<ConnectionPermit, ConnectionLimitExceeded> {
        if self.open_connections.load(Ordering::Relaxed) >= self.max_connections {
            self.limit_rejections.fetch_add(1, Ordering::Relaxed);
            return Err(ConnectionLimitExceeded::Total);
        }
        let descriptor = self
            .overload_guard
            .descriptors()
            .try_acquire()
            .ok_or(ConnectionLimitExceeded::Descriptors)?;
        let client_network = network_of_client(ip);
        let mut clients = self.lock_clients();
        let client = clients.entry(client_network).or_default();
        let open = client.connections.load(Ordering::Relaxed);
        if self.max_connections_per_client.is_some_and(|limit| open >= limit) {
            self.client_limit_rejections.fetch_add(1, Ordering::Relaxed);
            return Err(ConnectionLimitExceeded::PerClient);
        }
        client.connections.store(open + 1, Ordering::Relaxed);
        let client = client.clone();
        drop(clients);
        let open_connections = self.open_connections.fetch_add(1, Ordering::Relaxed) + 1;
        self.overload_guard.set_client_connections(open_connections);
        Ok(ConnectionPermit {
            limiter: self.clone(),
            client,
            client_network,
            _descriptor: descriptor,
        })
    }

    /// Counts a connection that was rejected because no file descriptor was left.
    pub(super) fn record_descriptor_exhaustion(&self) {
        self.limit_rejections.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failed TLS handshake.
    pub(super) fn record_handshake_failure(&self) {
        self.failed_handshakes.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failed `accept()`.
    pub(crate) fn record_accept_error(&self) {
        self.accept_errors.fetch_add(1, Ordering::Relaxed);
    }

    fn lock_clients(&self) -> MutexGuard<'_, HashMap<IpAddr, Arc<ClientUsage>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address that limits count by: an IPv4 address, or the /64 network of an IPv6 address. One
/// client usually has a whole /64 network.
fn network_of_client(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from(u128::from(ip) & !u128::from(u64::MAX))),
        ip @ IpAddr::V4(_) => ip,
    }
}

// === impl ConnectionPermit ===

impl ConnectionPermit {
    /// Counts a request of this client, and in `connection_requests`.
    pub(super) fn acquire_request(
        &self,
        connection_requests: Option<Arc<InFlightRequests>>,
    ) -> RequestPermit {
        if let Some(InFlightRequests { in_flight, started, .. }) = connection_requests.as_deref() {
            in_flight.fetch_add(1, Ordering::Relaxed);
            started.fetch_add(1, Ordering::Relaxed);
        }
        let client_requests_in_flight = self.client.requests.fetch_add(1, Ordering::Relaxed) + 1;
        RequestPermit {
            client: self.client.clone(),
            connection_requests,
            client_requests_in_flight,
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let Self { limiter, client, client_network, _descriptor } = self;
        let mut clients = limiter.lock_clients();
        if client.connections.fetch_sub(1, Ordering::Relaxed) == 1 {
            clients.remove(client_network);
        }
        drop(clients);
        let open_connections = limiter.open_connections.fetch_sub(1, Ordering::Relaxed) - 1;
        limiter.overload_guard.set_client_connections(open_connections);
    }
}

// === impl InFlightRequests ===

impl InFlightRequests {
    /// The number of requests since the connection began.
    pub(super) fn started(&self) -> u32 {
        self.started.load(Ordering::Relaxed)
    }

    /// Whether a request is open. If so, `waker` is woken when the last open request ends.
    pub(super) fn is_busy(&self, waker: &Waker) -> bool {
        if self.in_flight.load(Ordering::Acquire) == 0 {
            return false;
        }
        self.idle_waker.register(waker);
        self.in_flight.load(Ordering::Acquire) > 0
    }
}

// === impl RequestPermit ===

impl RequestPermit {
    /// The open requests of the client when this request began, this request included.
    pub(super) fn client_requests_in_flight(&self) -> u32 {
        self.client_requests_in_flight
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.client.requests.fetch_sub(1, Ordering::Relaxed);
        if let Some(InFlightRequests { in_flight, idle_waker, .. }) =
            self.connection_requests.as_deref()
            && in_flight.fetch_sub(1, Ordering::AcqRel) == 1
        {
            idle_waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter_with(limits: ServerLimits) -> Arc<ConnectionLimiter> {
        ConnectionLimiter::new(&limits, Arc::default())
    }

    #[test]
    fn total_limit_holds_and_permits_are_returned() {
        let limiter = limiter_with(ServerLimits { max_connections: 2, ..ServerLimits::default() });
        let [a, b, c] = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        let first = limiter.try_acquire(a).unwrap();
        let _second = limiter.try_acquire(b).unwrap();
        assert_eq!(limiter.try_acquire(c).unwrap_err(), ConnectionLimitExceeded::Total);
        drop(first);
        assert!(limiter.try_acquire(c).is_ok());
        let vitals = limiter.snapshot();
        assert_eq!((vitals.open, vitals.limit, vitals.full), (1, Some(2), 1));
    }

    #[test]
    fn per_client_limit_counts_an_ipv6_network_as_one_client() {
        let limits =
            ServerLimits { max_connections_per_client: Some(1), ..ServerLimits::default() };
        let limiter = limiter_with(limits);
        let [a, b, c]: [IpAddr; 3] =
            ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"].map(|ip| ip.parse().unwrap());
        let first = limiter.try_acquire(a).unwrap();
        assert_eq!(limiter.try_acquire(b).unwrap_err(), ConnectionLimitExceeded::PerClient);
        assert!(limiter.try_acquire(c).is_ok());
        drop(first);
        assert!(limiter.try_acquire(b).is_ok());
        assert!(limiter.lock_clients().is_empty(), "a client without connections is removed");
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        let _first = limiter.try_acquire(mapped).unwrap();
        assert_eq!(
            limiter.try_acquire(IpAddr::from([10, 0, 0, 1])).unwrap_err(),
            ConnectionLimitExceeded::PerClient
        );
    }

    #[test]
    fn requests_are_counted_over_the_connections_of_a_client() {
        let limiter = limiter_with(ServerLimits::default());
        let ip = IpAddr::from([10, 0, 0, 1]);
        let connections = [limiter.try_acquire(ip).unwrap(), limiter.try_acquire(ip).unwrap()];
        let first = connections[0].acquire_request(None);
        assert_eq!(
            (
                first.client_requests_in_flight(),
                connections[1].acquire_request(None).client_requests_in_flight()
            ),
            (1, 2)
        );
        assert_eq!(connections[1].acquire_request(None).client_requests_in_flight(), 2);
    }
}
