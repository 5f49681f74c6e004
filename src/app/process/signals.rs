//! Handles signals: the first SIGTERM or SIGINT starts the drain, the second exits at once, and
//! SIGHUP reloads the configuration.

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Completes at the first SIGTERM or SIGINT. A second SIGTERM or SIGINT ends the process at once.
pub(crate) async fn wait_for_shutdown() {
    let mut signals = match ShutdownSignals::new() {
        Ok(signals) => signals,
        Err(error) => {
            tracing::error!(
                %error,
                "cannot receive SIGTERM and SIGINT: these signals do not start a drain"
            );
            return std::future::pending().await;
        }
    };
    signals.recv().await;
    tokio::spawn(async move {
        let signal = signals.recv().await;
        tracing::warn!("second shutdown signal: exiting without waiting for requests");
        // A shell reports this exit code for a process that a signal has killed.
        std::process::exit(128 + signal.as_raw_value());
    });
}

/// Receives every SIGTERM and SIGINT that is sent after the construction of this value.
struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
}

/// Receives every SIGHUP that is sent after the construction of this value. `None`: SIGHUP cannot
/// be received.
pub(crate) struct SighupListener(Option<Signal>);

impl SighupListener {
    /// Must be called inside a Tokio runtime.
    pub(crate) fn new() -> Self {
        let listener = signal(SignalKind::hangup());
        if let Err(error) = &listener {
            tracing::error!(%error, "cannot receive SIGHUP: it does not reload the configuration");
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
