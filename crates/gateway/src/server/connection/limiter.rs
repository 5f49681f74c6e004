//! Counts and limits client connections and open requests, in total and per client address.

use crate::proxy::OverloadGuard;
use crate::server::activity::{ConnectionActivities, ConnectionActivity};
use crate::server::limits::ServerLimits;
use crate::status::ConnectionStatusSnapshot;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use tokenweir_net::file_descriptors::FileDescriptorPermit;
use tokenweir_protocol::atomic::AtomicCount;
use tokenweir_protocol::clock;
use tokenweir_protocol::limits::client_network;
use tokenweir_protocol::mutex::lock;
use tokenweir_request::error::GatewayError;

/// Limits the number of client connections: in total, per client address, and by free file descriptors. Counts
/// open, rejected and failed connections.
#[derive(Debug)]
pub struct ConnectionLimiter {
    max_connections: usize,
    /// Maximum number of connections of one client address. `None`: no limit.
    max_connections_per_client: Option<u32>,
    /// The guard that owns the pool of file descriptors and the number of open connections.
    overload_guard: Arc<OverloadGuard>,
    /// The clients with open connections or requests, by address (IPv4) or /64 network (IPv6).
    clients: Mutex<HashMap<IpAddr, Weak<ClientUsage>>>,
    activities: ConnectionActivities,
    /// The numbers of refused and failed connections. `overload_guard` counts the open connections. The number
    /// of `accept()` errors includes both listeners.
    counts: Mutex<ConnectionStatusSnapshot>,
    /// Time of the last log line about refused connections. `None`: none was logged.
    last_warning: Mutex<Option<Instant>>,
}

/// Numbers of open connections and open requests of one client address (IPv4) or /64 network (IPv6). The value
/// lives as long as any of them, because an HTTP/2 request can end after its connection.
#[derive(Debug)]
struct ClientUsage {
    connections: AtomicCount,
    requests: AtomicCount,
    /// The key of the client in `ConnectionLimiter::clients`.
    network: IpAddr,
    limiter: Weak<ConnectionLimiter>,
}

/// The permit of one client connection. While the permit exists, the connection counts towards the
/// limits.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    client: Arc<ClientUsage>,
    /// The requests of the connection, and the signal to close it.
    pub activity: Arc<ConnectionActivity>,
    _descriptor: FileDescriptorPermit,
}

/// The permit of one request. While the permit exists, the request counts as open.
#[derive(Debug)]
pub(super) struct RequestPermit {
    client: Arc<ClientUsage>,
    activity: Arc<ConnectionActivity>,
    /// Number of open requests of the client when this request began, including this request.
    pub client_requests_in_flight: usize,
}

/// Time between two log lines about refused connections.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

impl ConnectionLimiter {
    /// A limiter without open connections. Open connections and file descriptors are counted in
    /// `overload_guard`.
    pub fn new(limits: &ServerLimits, overload_guard: Arc<OverloadGuard>) -> Arc<Self> {
        Arc::new(Self {
            max_connections: limits.max_connections,
            max_connections_per_client: limits.max_connections_per_client,
            overload_guard,
            clients: Mutex::default(),
            activities: ConnectionActivities::default(),
            counts: Mutex::new(ConnectionStatusSnapshot {
                limit: (limits.max_connections < usize::MAX).then_some(limits.max_connections),
                ..ConnectionStatusSnapshot::default()
            }),
            last_warning: Mutex::default(),
        })
    }

    /// The current numbers of open, rejected and failed connections.
    pub fn snapshot(&self) -> ConnectionStatusSnapshot {
        ConnectionStatusSnapshot {
            open: self.overload_guard.client_connections.get(),
            ..*lock(&self.counts)
        }
    }

    /// Counts one more connection of a client address and returns its permit. Fails if a limit is reached. At
    /// the total limit, the new connection is accepted if another connection without an open request can be
    /// told to close. `free_descriptor` is called while no file descriptor is free. It frees one, or returns
    /// `false`.
    pub(super) fn try_acquire(
        self: &Arc<Self>,
        ip: IpAddr,
        free_descriptor: impl Fn() -> bool,
    ) -> Result<ConnectionPermit, GatewayError> {
        let client = self.client(client_network(ip));
        let limit = self.max_connections_per_client.unwrap_or(u32::MAX);
        if !client.connections.add_within(1, limit as usize) {
            lock(&self.counts).client_full += 1;
            return Err(GatewayError::ClientBusy);
        }
        let Some(descriptor) = self.take_descriptor(free_descriptor) else {
            client.connections.sub(1);
            lock(&self.counts).full += 1;
            return Err(GatewayError::Overloaded);
        };
        self.overload_guard.client_connections.add(1);
        let activity = self.activities.add();
        Ok(ConnectionPermit {
            limiter: self.clone(),
            client,
            activity,
            _descriptor: descriptor,
        })
    }

    /// The file descriptor of a new connection. `None`: the total limit is reached and no connection can be
    /// closed, or no descriptor can be freed at once. In the second case, a connection is told to close for the
    /// benefit of a later connection.
    fn take_descriptor(&self, free_descriptor: impl Fn() -> bool) -> Option<FileDescriptorPermit> {
        let open = self.overload_guard.client_connections.get();
        let counted = open.saturating_sub(self.activities.closing());
        let is_full = counted >= self.max_connections;
        if is_full && !self.activities.close_one() {
            return None;
        }
        loop {
            match self.overload_guard.descriptors.try_acquire() {
                Some(descriptor) => return Some(descriptor),
                None if free_descriptor() => {}
                None if is_full => return None,
                None => {
                    self.activities.close_one();
                    return None;
                }
            }
        }
    }

    /// The counts of open connections and requests of a client. Adds an entry with counts of 0 for a new
    /// client.
    fn client(self: &Arc<Self>, network: IpAddr) -> Arc<ClientUsage> {
        let mut clients = lock(&self.clients);
        clients
            .get(&network)
            .and_then(Weak::upgrade)
            .unwrap_or_else(|| {
                let client = Arc::new(ClientUsage {
                    connections: AtomicCount::default(),
                    requests: AtomicCount::default(),
                    network,
                    limiter: Arc::downgrade(self),
                });
                clients.insert(network, Arc::downgrade(&client));
                client
            })
    }

    /// Logs that connections are refused, at most once in [`WARN_INTERVAL`].
    pub(super) fn warn_refused(&self, error: &GatewayError) {
        let now = clock::now();
        let mut last = lock(&self.last_warning);
        if last.is_some_and(|at| now.saturating_duration_since(at) < WARN_INTERVAL) {
            return;
        }
        *last = Some(now);
        let ConnectionStatusSnapshot {
            open,
            limit,
            full,
            client_full,
            ..
        } = self.snapshot();
        tracing::warn!(
            open,
            limit,
            refused = full + client_full,
            %error,
            help = "limits.connections, limits.connections_per_client, LimitNOFILE",
            "client connections are refused"
        );
    }

    pub(super) fn record_handshake_failure(&self) {
        lock(&self.counts).failed_handshakes += 1;
    }

    /// Counts a failed `accept()` of either listener.
    pub(crate) fn record_accept_error(&self) {
        lock(&self.counts).accept_errors += 1;
    }
}

impl Drop for ClientUsage {
    fn drop(&mut self) {
        let Some(limiter) = self.limiter.upgrade() else {
            return;
        };
        let mut clients = lock(&limiter.clients);
        // If the client has come back already, the entry is a new one and must stay.
        if clients
            .get(&self.network)
            .is_some_and(|client| client.strong_count() == 0)
        {
            clients.remove(&self.network);
        }
    }
}

impl ConnectionPermit {
    /// Counts a new request of the client of this connection, and returns the permit of the request.
    pub(super) fn acquire_request(&self) -> RequestPermit {
        let client_requests_in_flight = self.client.requests.add(1) + 1;
        self.activity.begin_request();
        RequestPermit {
            client: self.client.clone(),
            activity: self.activity.clone(),
            client_requests_in_flight,
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let Self {
            limiter,
            client,
            activity,
            _descriptor,
        } = self;
        limiter.activities.remove(activity);
        client.connections.sub(1);
        limiter.overload_guard.client_connections.sub(1);
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.activity.end_request();
        self.client.requests.sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::OverloadLimits;
    use crate::server::activity::MIN_HEAD_TIME;
    use futures_util::FutureExt;

    fn new_limiter(limits: ServerLimits) -> Arc<ConnectionLimiter> {
        ConnectionLimiter::new(&limits, Arc::default())
    }

    fn acquire(
        limiter: &Arc<ConnectionLimiter>,
        ip: IpAddr,
    ) -> Result<ConnectionPermit, GatewayError> {
        limiter.try_acquire(ip, || false)
    }

    #[test]
    fn a_closed_connection_returns_its_permit() {
        let limiter = new_limiter(ServerLimits {
            max_connections: 2,
            ..ServerLimits::default()
        });
        let [a, b, c] = [1, 2, 3].map(|last_byte| IpAddr::from([10, 0, 0, last_byte]));
        let first = acquire(&limiter, a).unwrap();
        let _second = acquire(&limiter, b).unwrap();
        assert_eq!(acquire(&limiter, c).unwrap_err(), GatewayError::Overloaded);
        drop(first);
        assert!(acquire(&limiter, c).is_ok());
        let snapshot = limiter.snapshot();
        assert_eq!(
            (snapshot.open, snapshot.limit, snapshot.full),
            (1, Some(2), 1)
        );
    }

    fn is_told_to_close(connection: &ConnectionPermit) -> bool {
        connection.activity.closed().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_connection_is_closed() {
        let limiter = new_limiter(ServerLimits {
            max_connections: 3,
            ..ServerLimits::default()
        });
        let ip = IpAddr::from([10, 0, 0, 1]);
        let connections: Vec<_> = (0..3).map(|_| acquire(&limiter, ip).unwrap()).collect();
        assert!(acquire(&limiter, ip).is_err(), "none has served a request");
        for index in [1, 0] {
            drop(connections[index].acquire_request());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let _open = connections[2].acquire_request();
        let new = acquire(&limiter, ip).unwrap();
        assert_eq!(
            connections.iter().map(is_told_to_close).collect::<Vec<_>>(),
            [false, true, false]
        );
        let newer = acquire(&limiter, ip).unwrap();
        assert!(is_told_to_close(&connections[0]));
        assert!(acquire(&limiter, ip).is_err(), "the others are not idle");
        assert_eq!(limiter.snapshot().full, 2);
        drop((connections, new, newer));
        assert_eq!(limiter.activities.closing(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_without_a_head_close_first() {
        let limits = ServerLimits {
            max_connections: 4,
            max_connections_per_client: Some(3),
            ..ServerLimits::default()
        };
        let limiter = new_limiter(limits);
        let [ip, other] = [1, 2].map(|last_byte| IpAddr::from([10, 0, 0, last_byte]));
        let idle = acquire(&limiter, ip).unwrap();
        drop(idle.acquire_request());
        let oldest = acquire(&limiter, ip).unwrap();
        tokio::time::advance(MIN_HEAD_TIME).await;
        let older = acquire(&limiter, ip).unwrap();
        let busy = acquire(&limiter, other).unwrap();
        let _request = busy.acquire_request();
        assert_eq!(acquire(&limiter, ip).unwrap_err(), GatewayError::ClientBusy);
        assert!(!is_told_to_close(&oldest), "the new connection was refused");
        let _new = acquire(&limiter, other).unwrap();
        assert!(is_told_to_close(&oldest));
        let _newer = acquire(&limiter, other).unwrap();
        assert!(
            is_told_to_close(&idle) && !is_told_to_close(&older),
            "it is too young"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_lack_of_descriptors_closes_a_connection() {
        let limits = OverloadLimits {
            max_descriptors: Some(2),
            ..OverloadLimits::default()
        };
        let guard = Arc::new(OverloadGuard::new(limits));
        let limiter = ConnectionLimiter::new(&ServerLimits::default(), guard);
        let ip = IpAddr::from([10, 0, 0, 1]);
        let oldest = acquire(&limiter, ip).unwrap();
        tokio::time::advance(MIN_HEAD_TIME).await;
        let _newest = acquire(&limiter, ip).unwrap();
        tokio::time::advance(MIN_HEAD_TIME).await;
        assert!(acquire(&limiter, ip).is_err());
        assert!(is_told_to_close(&oldest));
        drop(oldest);
        assert!(acquire(&limiter, ip).is_ok());
    }

    #[test]
    fn an_ipv6_network_is_one_client() {
        let limits = ServerLimits {
            max_connections_per_client: Some(1),
            ..ServerLimits::default()
        };
        let limiter = new_limiter(limits);
        let [a, b, c]: [IpAddr; 3] =
            ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"].map(|ip| ip.parse().unwrap());
        let first = acquire(&limiter, a).unwrap();
        assert_eq!(acquire(&limiter, b).unwrap_err(), GatewayError::ClientBusy);
        assert!(acquire(&limiter, c).is_ok());
        drop(first);
        assert!(acquire(&limiter, b).is_ok());
        assert!(
            lock(&limiter.clients).is_empty(),
            "a client without connections is removed"
        );
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        let _first = acquire(&limiter, mapped).unwrap();
        assert_eq!(
            acquire(&limiter, IpAddr::from([10, 0, 0, 1])).unwrap_err(),
            GatewayError::ClientBusy
        );
    }

    #[test]
    fn requests_count_over_all_connections() {
        let limiter = new_limiter(ServerLimits::default());
        let connect = || acquire(&limiter, IpAddr::from([10, 0, 0, 1])).unwrap();
        let in_flight =
            |connection: &ConnectionPermit| connection.acquire_request().client_requests_in_flight;
        let (first, second) = (connect(), connect());
        let open = first.acquire_request();
        assert_eq!(open.client_requests_in_flight, 1);
        assert_eq!((in_flight(&second), in_flight(&second)), (2, 2));
        drop((first, second));
        assert_eq!(in_flight(&connect()), 2);
        assert_eq!(lock(&limiter.clients).len(), 1, "the request is still open");
        drop(open);
        assert!(lock(&limiter.clients).is_empty());
    }
}
