//! Accepts the connections of clients, and closes the client listener at shutdown without a reset
//! of connections that wait in the kernel's accept queue.

use super::connection::handler::ConnectionHandler;
use super::connection::limiter::ConnectionLimiter;
use super::connection::shutdown::ShutdownSignal;
use super::listener::{self, accept};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::clock;
use tokenweir_net::supervise::{self, BackgroundTask};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The client listener and its open connections.
pub(super) struct AcceptLoop {
    listener: TcpListener,
    handler: Arc<ConnectionHandler>,
    limiter: Arc<ConnectionLimiter>,
    connections: JoinSet<()>,
    shutdown: watch::Sender<bool>,
}

/// The open connections after the client listener was closed.
pub(super) struct DrainingConnections {
    connections: JoinSet<()>,
    shutdown: watch::Sender<bool>,
}

/// The listener is closed when no connection arrived for this time. If the port is shared,
/// handshakes that had begun before the SYN filter was set can complete within it. A client whose
/// SYN was dropped tries again after one second.
const ACCEPT_QUIET_PERIOD: Duration = Duration::from_millis(100);
/// Longest wait for [`ACCEPT_QUIET_PERIOD`] without a new connection.
const ACCEPT_DRAIN_TIMEOUT: Duration = Duration::from_millis(800);

// === impl AcceptLoop ===

impl AcceptLoop {
    pub(super) fn new(
        listener: TcpListener,
        handler: Arc<ConnectionHandler>,
        limiter: Arc<ConnectionLimiter>,
    ) -> Self {
        let (connections, shutdown) = (JoinSet::new(), watch::Sender::new(false));
        Self { listener, handler, limiter, connections, shutdown }
    }

    /// Accepts and serves connections until `end` completes.
    pub(super) async fn accept_until(&mut self, end: impl Future<Output = ()>) {
        let mut end = std::pin::pin!(end);
        loop {
            tokio::select! {
                (stream, peer) = accept(&self.listener, &self.limiter) => self.serve(stream, peer),
                Some(ended) = self.connections.join_next() => {
                    // A panic ends only its own connection.
                    if ended.is_err_and(|error| error.is_panic()) {
                        supervise::record_panic(BackgroundTask::Connection);
                    }
                }
                () = &mut end => return,
            }
        }
    }

    /// Accepts the connections that wait in the kernel's queue, then closes the listener. If other
    /// processes share the port, new connections are left to them first.
    pub(super) async fn stop_accepting(mut self) -> DrainingConnections {
        listener::drop_new_syns(&self.listener);
        let deadline = clock::now() + ACCEPT_DRAIN_TIMEOUT;
        loop {
            let until = (clock::now() + ACCEPT_QUIET_PERIOD).min(deadline);
            match tokio::time::timeout_at(until.into(), accept(&self.listener, &self.limiter)).await
            {
                Ok((stream, peer)) => self.serve(stream, peer),
                Err(_) => break,
            }
        }
        DrainingConnections { connections: self.connections, shutdown: self.shutdown }
    }

    fn serve(&mut self, stream: TcpStream, peer: SocketAddr) {
        let admitted =
            supervise::catch_panic(BackgroundTask::Listener, || self.handler.admit(stream, peer));
        if let Some((stream, permit)) = admitted.flatten() {
            let shutdown = ShutdownSignal::new(self.shutdown.subscribe());
            let serving = self.handler.clone().serve(stream, peer, permit, shutdown);
            self.connections.spawn(serving);
        }
    }
}

// === impl DrainingConnections ===

impl DrainingConnections {
    /// Sends the shutdown signal and waits until every connection has ended its open requests.
    pub(super) async fn drain(&mut self) {
        self.shutdown.send_replace(true);
        while self.connections.join_next().await.is_some() {}
    }

    /// Aborts the remaining connections.
    pub(super) async fn abort(mut self) {
        self.connections.shutdown().await;
    }
}
