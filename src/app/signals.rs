//! The signals that end the process: the first drains, the second does not wait.

use tokio::signal::unix::{SignalKind, signal};

/// Ready at the first SIGTERM or SIGINT. From then on, another one exits at once.
pub(super) async fn stop() {
    next().await;
    tokio::spawn(async {
        next().await;
        tracing::warn!("second signal: not waiting for requests");
        std::process::exit(130);
    });
}

async fn next() {
    let (mut terminate, mut interrupt) = match (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) {
        (Ok(terminate), Ok(interrupt)) => (terminate, interrupt),
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "signals cannot be received; stop the process with SIGKILL");
            return std::future::pending().await;
        }
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
