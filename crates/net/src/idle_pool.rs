//! The pool of idle connections to one backend.

use crate::connection::{Connection, HttpClientTimeouts};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokenweir_protocol::atomic::AtomicCounter;
use tokenweir_protocol::mutex::lock;

/// The idle connections to one backend, ordered from the least to the most recently used. Clones share the
/// pool.
#[derive(Clone, Default)]
pub struct IdlePool(Arc<Pool>);

#[derive(Default)]
#[expect(
    clippy::vec_box,
    reason = "a connection stays in its box while it is used"
)]
struct Pool {
    idle: Mutex<Vec<Box<Connection>>>,
    connects: AtomicCounter,
    connect_micros: AtomicCounter,
    first_heads: AtomicCounter,
    first_head_micros: AtomicCounter,
}

/// The attempts to open a connection to one backend, successful or not.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ConnectCounts {
    /// Number of attempts.
    pub count: u64,
    /// Sum of their durations, in seconds: the TCP handshake, and the TLS handshake if TLS is used.
    pub seconds: f64,
    /// Number of new connections on which a response head has arrived.
    pub first_heads: u64,
    /// Sum of the times from the start of the attempt to the first response head, in seconds. Only this sum
    /// shows a server that accepts connections late, because its kernel completes the TCP handshake.
    pub first_head_seconds: f64,
}

/// Time between two closes when several connections are closed.
const CLOSE_INTERVAL: Duration = Duration::from_millis(1);

impl IdlePool {
    /// Takes the most recently used connection that is reusable and within `limits`. `None`: the pool has no
    /// such connection. A background task closes expired connections and connections that the backend has
    /// closed. Must be called inside a Tokio runtime.
    pub fn take(&self, limits: &HttpClientTimeouts, now: Instant) -> Option<Box<Connection>> {
        let mut unusable = Vec::new();
        let reusable = loop {
            let mut list = lock(&self.0.idle);
            let Some(mut connection) = list.pop() else {
                break None;
            };
            if connection.has_been_idle_for(limits.idle_connection, now) {
                // The remaining connections have been idle for longer, so they have expired too.
                unusable.append(&mut list);
                unusable.push(connection);
                break None;
            }
            drop(list);
            if connection.is_within(limits, now) && connection.is_reusable() {
                break Some(connection);
            }
            unusable.push(connection);
        };
        close_gradually(unusable);
        reusable
    }

    /// Closes the connections that were idle for at least `idle_timeout`, in a background task.
    /// Must be called inside a Tokio runtime.
    pub fn close_expired(&self, idle_timeout: Duration, now: Instant) {
        let expired = {
            let mut list = lock(&self.0.idle);
            // The list is ordered by the time of the last use.
            let count =
                list.partition_point(|connection| connection.has_been_idle_for(idle_timeout, now));
            list.drain(..count).collect()
        };
        close_gradually(expired);
    }

    /// Closes the connection that has been idle for the longest time. Returns false if the pool is
    /// empty.
    pub fn close_oldest(&self) -> bool {
        let oldest = {
            let mut list = lock(&self.0.idle);
            (!list.is_empty()).then(|| list.remove(0))
        };
        oldest.is_some()
    }

    /// Counts an attempt to open a connection for a request.
    pub(crate) fn on_connect(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.0.connects.add(1);
        self.0.connect_micros.add(micros);
    }

    /// Counts the first response head of a connection. `took`: the time since the start of the attempt to open
    /// the connection.
    pub(crate) fn on_first_head(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.0.first_heads.add(1);
        self.0.first_head_micros.add(micros);
    }

    /// Takes the counts of the attempts since the last call.
    pub fn take_connects(&self) -> ConnectCounts {
        ConnectCounts {
            count: self.0.connects.take(),
            seconds: self.0.connect_micros.take() as f64 / 1e6,
            first_heads: self.0.first_heads.take(),
            first_head_seconds: self.0.first_head_micros.take() as f64 / 1e6,
        }
    }

    /// Adds a connection whose last response has just ended.
    pub fn put(&self, connection: Box<Connection>) {
        lock(&self.0.idle).push(connection);
    }
}

impl std::fmt::Debug for IdlePool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("IdlePool")
            .field(&lock(&self.0.idle).len())
            .finish()
    }
}

/// Closes connections one by one in a background task, with [`CLOSE_INTERVAL`] between them. After a burst of
/// requests, hundreds of connections expire together. Each close takes as much kernel time as forwarding a
/// chunk, on the gateway and on the backend.
#[expect(
    clippy::vec_box,
    reason = "a connection stays in its box while it is used"
)]
fn close_gradually(connections: Vec<Box<Connection>>) {
    if connections.is_empty() {
        return;
    }
    tokio::spawn(async {
        for connection in connections {
            drop(connection);
            tokio::time::sleep(CLOSE_INTERVAL).await;
        }
    });
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::file_descriptors::FileDescriptorPool;
    use crate::tls::MaybeTlsStream;
    use std::io::{ErrorKind, Read};
    use std::num::NonZeroU32;
    use tokenweir_protocol::clock;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    const IDLE_TIMEOUT: Duration = Duration::from_secs(3);

    fn limits() -> HttpClientTimeouts {
        HttpClientTimeouts {
            idle_connection: IDLE_TIMEOUT,
            connection_age: None,
            ..HttpClientTimeouts::default()
        }
    }

    /// A new connection, and the socket at its other end.
    pub(crate) async fn connection_and_peer() -> (Box<Connection>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let descriptor = FileDescriptorPool::default().try_acquire().unwrap();
        let connection = Connection::new(MaybeTlsStream::Plain(stream), descriptor);
        (connection, listener.accept().await.unwrap().0)
    }

    /// Creates a pool with `count` idle connections. Also returns the sockets at their other ends.
    async fn filled_pool(count: usize) -> (IdlePool, Vec<TcpStream>) {
        let idle = IdlePool::default();
        let mut peers = Vec::new();
        for _ in 0..count {
            let (connection, peer) = connection_and_peer().await;
            idle.put(connection);
            peers.push(peer);
        }
        (idle, peers)
    }

    #[tokio::test]
    async fn expired_idle_connections_are_closed_in_the_background() {
        let (idle, peers) = filled_pool(20).await;
        let mut peers: Vec<_> = peers
            .into_iter()
            .map(|peer| peer.into_std().unwrap())
            .collect();
        assert!(idle.take(&limits(), clock::now() + IDLE_TIMEOUT).is_none());
        let is_open = |peer: &mut std::net::TcpStream| {
            peer.read(&mut [0])
                .is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        assert!(peers.iter_mut().all(is_open) && lock(&idle.0.idle).is_empty());
        for peer in peers {
            let mut peer = TcpStream::from_std(peer).unwrap();
            assert_eq!(
                peer.read_u8().await.unwrap_err().kind(),
                ErrorKind::UnexpectedEof
            );
        }
    }

    #[tokio::test]
    async fn old_or_worn_connections_are_not_reused() {
        let (idle, _peers) = filled_pool(2).await;
        let connection_age = Some(IDLE_TIMEOUT / 3);
        let now = clock::now();
        let young = HttpClientTimeouts {
            connection_age,
            ..limits()
        };
        assert!(idle.take(&young, now + IDLE_TIMEOUT / 2).is_none());
        let (idle, _peers) = filled_pool(2).await;
        let limits = HttpClientTimeouts {
            connection_requests: NonZeroU32::new(2),
            ..limits()
        };
        let mut used = idle.take(&limits, now).unwrap();
        used.served_requests = 2;
        idle.put(used);
        let other = idle.take(&limits, now).unwrap();
        assert_eq!(other.served_requests, 0);
    }

    #[tokio::test]
    async fn closed_idle_connections_are_not_reused() {
        let (idle, mut peers) = filled_pool(3).await;
        let expected = peers[0].peer_addr().unwrap();
        peers.truncate(1);
        let connections = std::mem::take(&mut *lock(&idle.0.idle));
        for connection in &connections[1..] {
            let MaybeTlsStream::Plain(stream) = &connection.stream else {
                unreachable!()
            };
            stream.readable().await.unwrap();
        }
        *lock(&idle.0.idle) = connections;
        let taken = idle.take(&limits(), clock::now()).unwrap();
        let MaybeTlsStream::Plain(stream) = &taken.stream else {
            unreachable!()
        };
        assert_eq!(stream.local_addr().unwrap(), expected);
        assert!(lock(&idle.0.idle).is_empty());
    }
}
