//! The signals that end the process: the first drains, the second does not wait.

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ready at the first SIGTERM or SIGINT. From then on, another one exits at once.
pub(crate) async fn stop() {
    let mut ends = match Ends::new() {
        Ok(ends) => ends,
        Err(error) => {
            tracing::error!(%error, "signals cannot be received; stop the process with SIGKILL");
            return std::future::pending().await;
        }
    };
    ends.next().await;
    tokio::spawn(async move {
        let signal = ends.next().await;
        tracing::warn!("second signal: not waiting for requests");
        // As a shell has it for a process that the signal ended.
        std::process::exit(128 + signal.as_raw_value());
    });
}

/// Every SIGTERM and SIGINT from its making on.
struct Ends {
    terminate: Signal,
    interrupt: Signal,
}

/// Every SIGHUP from its making on.
pub(crate) struct Hangups(Option<Signal>);

impl Hangups {
    /// Must be called inside a runtime.
    pub(crate) fn new() -> Self {
        let received = signal(SignalKind::hangup());
        if let Err(error) = &received {
            tracing::error!(%error, "SIGHUP cannot be received");
        }
        Self(received.ok())
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        let received = match &mut self.0 {
            Some(received) => received.recv().await,
            None => None,
        };
        if received.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

impl Ends {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
        }
    }
}
