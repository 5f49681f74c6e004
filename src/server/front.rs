//! The clients' port, from the first connection to the last: what is accepted is served, and at the
//! end nobody is lost between the kernel's queue and us.

use super::Connections;
use super::door::Door;
use super::listener::{self, accept};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokenweir_core::clock;
use tokenweir_net::supervise::{self, Task};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The clients' port and the connections that came by it.
pub(super) struct Front {
    listener: TcpListener,
    door: Arc<Door>,
    counted: Arc<Connections>,
    connections: JoinSet<()>,
    closing: watch::Sender<bool>,
}

/// The connections, when no more of them come.
pub(super) struct Closed {
    connections: JoinSet<()>,
    closing: watch::Sender<bool>,
}

/// How a connection hears that it is to end when it has nothing to do.
pub(super) struct Closing(Pin<Box<dyn Future<Output = ()> + Send>>);

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
        let (connections, closing) = (JoinSet::new(), watch::Sender::new(false));
        Self { listener, door, counted, connections, closing }
    }

    /// Accepts connections until `end`.
    pub(super) async fn accept_until(&mut self, end: impl Future<Output = ()>) {
        let mut end = std::pin::pin!(end);
        loop {
            tokio::select! {
                (stream, peer) = accept(&self.listener, &self.counted) => self.serve(stream, peer),
                Some(ended) = self.connections.join_next() => {
                    // The panic has ended this connection and no other.
                    if ended.is_err_and(|error| error.is_panic()) {
                        supervise::report(Task::Connection);
                    }
                }
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
        Closed { connections: self.connections, closing: self.closing }
    }

    fn serve(&mut self, stream: TcpStream, peer: SocketAddr) {
        let admitted = supervise::catch(Task::Listener, || self.door.admit(stream, peer));
        if let Some((stream, place)) = admitted.flatten() {
            let closing = Closing::new(self.closing.subscribe());
            let serving = self.door.clone().serve(stream, peer, place, closing);
            self.connections.spawn(serving);
        }
    }
}

// === impl Closed ===

impl Closed {
    /// Lets every connection end what it does.
    pub(super) async fn drain(&mut self) {
        self.closing.send_replace(true);
        while self.connections.join_next().await.is_some() {}
    }

    /// Ends those that are left.
    pub(super) async fn cut(mut self) {
        self.connections.shutdown().await;
    }
}

// === impl Closing ===

impl Closing {
    fn new(mut told: watch::Receiver<bool>) -> Self {
        // Without the sender the end has come, too.
        Self(Box::pin(async move { drop(told.wait_for(|is_closing| *is_closing).await) }))
    }

    /// Ready at the end, and not to be asked again.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}
