//! The signal that tells a client connection to close, because the gateway shuts down or because a new
//! connection replaces this idle connection.

use crate::server::activity::ConnectionActivity;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::watch;

/// The signal of one client connection, which becomes ready when the gateway shuts down or tells
/// this connection to close. The connection polls the signal while it is idle, and closes when the
/// signal is ready.
pub(crate) struct ShutdownSignal(Pin<Box<dyn Future<Output = ()> + Send>>);

impl ShutdownSignal {
    pub(crate) fn new(
        mut shutdown: watch::Receiver<bool>,
        activity: Arc<ConnectionActivity>,
    ) -> Self {
        Self(Box::pin(async move {
            tokio::select! {
                biased;
                // A dropped sender also means shutdown.
                _ = shutdown.wait_for(|is_closing| *is_closing) => {}
                () = activity.closed() => {}
            }
        }))
    }

    /// Ready when the connection is to close. Must not be called again after it was ready.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}
