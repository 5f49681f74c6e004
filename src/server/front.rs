//! The clients' port, from the first connection to the last: what is accepted is served, and at the
//! end nobody is lost between the kernel's queue and us.

use super::Connections;
use super::door::Door;
use super::listener::{self, accept};
use crate::clock;
use hyper_util::server::graceful::GracefulShutdown;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The clients' port and the connections that came by it.
pub(super) struct Front {
    listener: TcpListener,
    door: Arc<Door>,
    counted: Arc<Connections>,
    connections: JoinSet<()>,
    graceful: GracefulShutdown,
}

/// The connections, when no more of them come.
pub(super) struct Closed {
    pub(super) connections: JoinSet<()>,
    pub(super) graceful: GracefulShutdown,
}

/// For how long nobody may have come before the port is closed. Where other processes have it too,
/// those who have just sent their first packet have to have finished their handshake; those who are
/// turned away try again after a second.
const QUIET: Duration = Duration::from_millis(100);
/// Longest wait for that.
const MOST: Duration = Duration::from_millis(800);

// === impl Front ===

impl Front {
    /// A port whose connections come in by a door.
    pub(super) fn new(listener: TcpListener, door: Arc<Door>, counted: Arc<Connections>) -> Self {
        let (connections, graceful) = (JoinSet::new(), GracefulShutdown::new());
        Self { listener, door, counted, connections, graceful }
    }

    /// Accepts connections until `end`.
    pub(super) async fn accept_until(&mut self, end: impl Future<Output = ()>) {
        let mut end = std::pin::pin!(end);
        loop {
            tokio::select! {
                (stream, peer) = accept(&self.listener, &self.counted) => self.serve(stream, peer),
                Some(_) = self.connections.join_next() => {}
                () = &mut end => return,
            }
        }
    }

    /// Closes the port when all are accepted who are in its queue. If other processes have the same
    /// port, newcomers are left to them first.
    pub(super) async fn close(mut self) -> Closed {
        listener::leave_to_others(&self.listener);
        let deadline = clock::now() + MOST;
        loop {
            let until = (clock::now() + QUIET).min(deadline);
            match tokio::time::timeout_at(until.into(), accept(&self.listener, &self.counted)).await
            {
                Ok((stream, peer)) => self.serve(stream, peer),
                Err(_) => break,
            }
        }
        Closed { connections: self.connections, graceful: self.graceful }
    }

    fn serve(&mut self, stream: TcpStream, peer: SocketAddr) {
        if let Some((stream, place)) = self.door.admit(stream, peer) {
            let serving = self.door.clone().serve(stream, peer, place, self.graceful.watcher());
            self.connections.spawn(serving);
        }
    }
}
