//! Accepts the connections of clients. At shutdown, closes the client listener without resetting the
//! connections in the kernel's accept queue.

use super::connection::handler::ConnectionHandler;
use super::connection::limiter::ConnectionLimiter;
use super::connection::shutdown::ShutdownSignal;
use super::listener::{self, accept};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_net::supervise::{self, BackgroundTask};
use tokenweir_protocol::clock;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The client listener and its open connections.
pub(super) struct AcceptLoop {
    listener: TcpListener,
    handler: Arc<ConnectionHandler>,
    limiter: Arc<ConnectionLimiter>,
    connections: JoinSet<()>,
    /// `true`: the gateway shuts down, and all connections must close.
    shutdown: watch::Sender<bool>,
}

/// Time without a new connection after which the listener is closed at shutdown. On a shared port, TCP
/// handshakes that began before [`listener::drop_new_syns`] can complete within this time. The time is shorter
/// than the second after which a client repeats a dropped SYN.
const ACCEPT_QUIET_PERIOD: Duration = Duration::from_millis(100);
/// Maximum delay of closing the listener, for the case that connections keep arriving within each
/// [`ACCEPT_QUIET_PERIOD`].
const ACCEPT_DRAIN_TIMEOUT: Duration = Duration::from_millis(800);

impl AcceptLoop {
    pub(super) fn new(
        listener: TcpListener,
        handler: Arc<ConnectionHandler>,
        limiter: Arc<ConnectionLimiter>,
    ) -> Self {
        let shutdown = watch::Sender::new(false);
        Self {
            listener,
            handler,
            limiter,
            connections: JoinSet::new(),
            shutdown,
        }
    }

    /// Accepts and serves connections until `end` completes.
    pub(super) async fn accept_until(&mut self, end: impl Future<Output = ()>) {
        let mut end = std::pin::pin!(end);
        loop {
            tokio::select! {
                (stream, peer) = accept(&self.listener, &self.limiter) => self.serve(stream, peer),
                Some(ended) = self.connections.join_next() => {
                    // A panic in the task of a connection ends only that connection.
                    if ended.is_err_and(|error| error.is_panic()) {
                        supervise::record_panic(BackgroundTask::CONNECTION);
                    }
                }
                () = &mut end => return,
            }
        }
    }

    /// Accepts the connections in the kernel's accept queue, and then closes the listener. On a shared port
    /// (`SO_REUSEPORT`), first drops new SYN packets, so that new connections go to the other processes. Tells
    /// all connections to close after their open requests, and returns their tasks.
    pub(super) async fn stop_accepting(mut self) -> JoinSet<()> {
        listener::drop_new_syns(&self.listener);
        let deadline = clock::now() + ACCEPT_DRAIN_TIMEOUT;
        loop {
            let quiet_until = (clock::now() + ACCEPT_QUIET_PERIOD).min(deadline);
            let accepting = accept(&self.listener, &self.limiter);
            match tokio::time::timeout_at(quiet_until.into(), accepting).await {
                Ok((stream, peer)) => self.serve(stream, peer),
                Err(_) => break,
            }
        }
        self.shutdown.send_replace(true);
        self.connections
    }

    /// Admits a connection and spawns the task that serves it.
    fn serve(&mut self, stream: TcpStream, peer: SocketAddr) {
        let admitted = supervise::catch_panic(BackgroundTask::LISTENER, || {
            self.handler.admit(stream, peer)
        });
        if let Some((stream, permit)) = admitted.flatten() {
            let shutdown = ShutdownSignal::new(self.shutdown.subscribe(), permit.activity.clone());
            let serving = self.handler.clone().serve(stream, peer, permit, shutdown);
            self.connections.spawn(serving);
        }
    }
}
