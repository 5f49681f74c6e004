//! Connections to one server that no request uses.

use crate::connection::Connection;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The connections to one server that are not in use. Clones are the same.
#[derive(Clone, Default)]
pub struct Idle(Arc<Mutex<Vec<Connection>>>);

/// Time between two of many connections that are closed.
const CLOSING: Duration = Duration::from_millis(1);

// === impl Idle ===

impl Idle {
    /// The one that was used last, if there is one that has not been idle for as long as `most`. What
    /// cannot be used any more is closed, and not waited for. Must be called inside a runtime.
    pub fn take(&self, most: Duration, now: Instant) -> Option<Connection> {
        let mut dead = Vec::new();
        let found = loop {
            let mut list = self.list();
            let Some(mut connection) = list.pop() else { break None };
            if connection.is_older(most, now) {
                // So are all that were used before it.
                dead.append(&mut list);
                dead.push(connection);
                break None;
            }
            drop(list);
            if connection.is_quiet() {
                break Some(connection);
            }
            dead.push(connection);
        };
        close(dead);
        found
    }

    /// Closes those that have been idle for as long as `most`. Must be called inside a runtime.
    pub fn close_unused(&self, most: Duration, now: Instant) {
        let unused = {
            let mut list = self.list();
            // The one that was given back last is at the end.
            let count = list.partition_point(|connection| connection.is_older(most, now));
            list.drain(..count).collect()
        };
        close(unused);
    }

    /// Closes the one that has been idle for longest. Whether there was one.
    pub fn close_oldest(&self) -> bool {
        let oldest = {
            let mut list = self.list();
            (!list.is_empty()).then(|| list.remove(0))
        };
        oldest.is_some()
    }

    /// Keeps one that has just been used.
    pub fn put(&self, connection: Connection) {
        self.list().push(connection);
    }

    fn list(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Idle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Idle").field(&self.list().len()).finish()
    }
}

/// Closes them by and by, while others go on: a burst leaves hundreds behind, and to close one takes the
/// system as long as to pass a chunk on, here and at the replica.
fn close(connections: Vec<Connection>) {
    if connections.is_empty() {
        return;
    }
    tokio::spawn(async {
        for connection in connections {
            drop(connection);
            tokio::time::sleep(CLOSING).await;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptors::Descriptors;
    use crate::tls::Stream;
    use std::io::{ErrorKind, Read};
    use tokenweir_core::clock;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    const MOST: Duration = Duration::from_secs(3);

    /// Idle connections, and their other ends.
    async fn idle(count: usize) -> (Idle, Vec<TcpStream>) {
        let (idle, mut ends) = (Idle::default(), Vec::new());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        for _ in 0..count {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let descriptor = Descriptors::default().take().unwrap();
            idle.put(Connection::new(Stream::Plain(stream), descriptor));
            ends.push(listener.accept().await.unwrap().0);
        }
        (idle, ends)
    }

    #[tokio::test]
    async fn a_request_after_a_burst_does_not_wait_until_the_connections_of_the_burst_are_closed() {
        let (idle, ends) = idle(20).await;
        let mut ends: Vec<_> = ends.into_iter().map(|end| end.into_std().unwrap()).collect();
        assert!(idle.take(MOST, clock::now() + MOST).is_none());
        let is_open = |end: &mut std::net::TcpStream| {
            end.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        assert!(ends.iter_mut().all(is_open) && idle.list().is_empty());
        for end in ends {
            let mut end = TcpStream::from_std(end).unwrap();
            assert_eq!(end.read_u8().await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        }
    }

    #[tokio::test]
    async fn connections_that_their_server_has_closed_are_passed_over() {
        let (idle, mut ends) = idle(3).await;
        let at = ends[0].peer_addr().unwrap();
        ends.truncate(1);
        let connections = std::mem::take(&mut *idle.list());
        for connection in &connections[1..] {
            let Stream::Plain(stream) = &connection.stream else { unreachable!() };
            stream.readable().await.unwrap();
        }
        *idle.list() = connections;
        let found = idle.take(MOST, clock::now()).unwrap();
        let Stream::Plain(stream) = &found.stream else { unreachable!() };
        assert_eq!(stream.local_addr().unwrap(), at);
        assert!(idle.list().is_empty());
    }
}
