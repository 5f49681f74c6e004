//! The signal that tells a client connection to close, because the gateway shuts down or a new connection
//! replaces this one.

use crate::server::activity::ConnectionActivity;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::watch;

/// The signal of one client connection. It is ready when the gateway shuts down or tells this connection to
/// close. The connection polls the signal while it has no open request.
pub(crate) struct ShutdownSignal {
    waiting: Pin<Box<dyn Future<Output = CloseReason> + Send>>,
    /// The result of `waiting`. `None`: not ready.
    reason: Option<CloseReason>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// The gateway shuts down. A request whose head has begun is still served.
    Shutdown,
    /// A new connection replaces this one, which has no complete request head.
    Replaced,
}

impl ShutdownSignal {
    pub(crate) fn new(
        mut shutdown: watch::Receiver<bool>,
        activity: Arc<ConnectionActivity>,
    ) -> Self {
        let waiting = Box::pin(async move {
            tokio::select! {
                biased;
                // A dropped sender means shutdown, too.
                _ = shutdown.wait_for(|is_closing| *is_closing) => CloseReason::Shutdown,
                () = activity.closed() => CloseReason::Replaced,
            }
        });
        Self {
            waiting,
            reason: None,
        }
    }

    /// Ready when the connection is to close.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        let reason = match self.reason {
            Some(reason) => reason,
            None => ready!(self.waiting.as_mut().poll(cx)),
        };
        self.reason = Some(reason);
        Poll::Ready(reason)
    }
}
