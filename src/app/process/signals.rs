//! Handles signals. The first SIGTERM, SIGINT or SIGQUIT starts the drain, and the second exits at once. SIGHUP
//! reloads the configuration. SIGUSR1 reopens the log files, as log rotation programs expect.

use std::future::Future;
use std::io;
use tokenweir_gateway::telemetry::reopen_files;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Handles SIGTERM, SIGINT and SIGQUIT from this call on. The returned future completes at the first of them.
/// The second one ends the process at once, and so does the first one if the future was dropped. Also handles
/// SIGUSR1 and SIGUSR2.
///
/// Must be called inside a Tokio runtime. Handling begins before the first poll of the future, so that a signal
/// at the start of the gateway does not end the process without a drain.
pub fn wait_for_shutdown() -> impl Future<Output = ()> + Send + 'static {
    reopen_files_on_sigusr1();
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
                "cannot receive SIGTERM, SIGINT and SIGQUIT: these signals do not start a drain"
            );
        }
        if receiver.await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// From this call on, handles SIGUSR1 and SIGUSR2, which would end the process by default.
fn reopen_files_on_sigusr1() {
    let listeners = signal(SignalKind::user_defined1())
        .and_then(|reopen| Ok((reopen, signal(SignalKind::user_defined2())?)));
    match listeners {
        Ok((mut reopen, unused)) => drop(tokio::spawn(async move {
            // This handler only prevents SIGUSR2 from ending the process.
            let _unused = unused;
            while reopen.recv().await.is_some() {
                tracing::info!("SIGUSR1: the files are opened again before their next line");
                reopen_files();
            }
        })),
        Err(error) => tracing::error!(%error, "cannot receive SIGUSR1 and SIGUSR2"),
    }
}

/// Receives every SIGTERM, SIGINT and SIGQUIT after the construction of this value.
struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
}

/// Receives every SIGHUP after the construction of this value. `None`: SIGHUP cannot be received.
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
            quit: signal(SignalKind::quit())?,
        })
    }

    async fn recv(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.quit.recv() => SignalKind::quit(),
        }
    }
}
