//! Handles signals: the first SIGTERM or SIGINT starts the drain, the second exits at once, and
//! SIGHUP reloads the configuration.

use std::future::Future;
use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Handles SIGTERM and SIGINT from this call on. The returned future completes at the first of them. A
/// second one ends the process at once, and so does the first one if the future was dropped.
///
/// Must be called inside a Tokio runtime. The call is separate from the first poll of the future, so
/// that a signal at the start of the gateway does not end the process without a drain.
pub fn wait_for_shutdown() -> impl Future<Output = ()> + Send + 'static {
    let (sender, receiver) = oneshot::channel();
    let handling = ShutdownSignals::new().map(|mut signals| {
        tokio::spawn(async move {
            let mut signal = signals.recv().await;
            if sender.send(()).is_ok() {
                signal = signals.recv().await;
                tracing::warn!("second shutdown signal: exiting without waiting for requests");
            }
            // A shell reports this exit code for a process that a signal has killed.
            std::process::exit(128 + signal.as_raw_value());
        });
    });
    async move {
        if let Err(error) = handling {
            tracing::error!(
                %error,
                "cannot receive SIGTERM and SIGINT: these signals do not start a drain"
            );
        }
        if receiver.await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Receives every SIGTERM and SIGINT that the process gets after the construction of this value.
struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
}

/// Receives every SIGHUP that the process gets after the construction of this value. `None`: SIGHUP
/// cannot be received.
pub(crate) struct SighupListener(Option<Signal>);

impl SighupListener {
    /// Begins to receive SIGHUP. Must be called inside a Tokio runtime.
    pub(crate) fn new() -> Self {
        let listener = signal(SignalKind::hangup());
        if let Err(error) = &listener {
            tracing::error!(%error, "cannot receive SIGHUP: the signal does not reload the configuration");
        }
        Self(listener.ok())
    }

    /// Waits for the next SIGHUP. Never completes if SIGHUP cannot be received.
    pub(crate) async fn next(&mut self) {
        let received = match &mut self.0 {
            Some(signal) => signal.recv().await,
            None => None,
        };
        if received.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

impl ShutdownSignals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn recv(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
        }
    }
}
