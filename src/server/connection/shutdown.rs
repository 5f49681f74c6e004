//! The signal that tells client connections that the gateway shuts down.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::watch;

/// Completes when the gateway shuts down. An idle connection then closes.
pub(crate) struct ShutdownSignal(Pin<Box<dyn Future<Output = ()> + Send>>);

impl ShutdownSignal {
    pub(crate) fn new(mut shutdown: watch::Receiver<bool>) -> Self {
        // A dropped sender also means shutdown.
        Self(Box::pin(async move { drop(shutdown.wait_for(|is_closing| *is_closing).await) }))
    }

    /// Ready at shutdown. Must not be polled again after that.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}
