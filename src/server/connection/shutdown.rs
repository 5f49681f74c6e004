//! The signal by which client connections learn that the gateway shuts down.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::watch;

/// A signal that becomes ready when the gateway shuts down. A client connection polls the signal
/// while it is idle, and closes when the signal is ready.
pub(crate) struct ShutdownSignal(Pin<Box<dyn Future<Output = ()> + Send>>);

impl ShutdownSignal {
    pub(crate) fn new(mut shutdown: watch::Receiver<bool>) -> Self {
        // A dropped sender also means shutdown.
        Self(Box::pin(async move { drop(shutdown.wait_for(|is_closing| *is_closing).await) }))
    }

    /// Ready when the gateway shuts down. Must not be called again after it was ready.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}
