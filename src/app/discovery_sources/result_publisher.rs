//! Opens the client of a discovery source, and publishes each result of the source.

use super::discovered_backends::DiscoveredBackends;
use crate::app::process::environment::ErrorChain;
use crate::config::BackendConfig;
use std::error::Error;
use std::future::Future;
use std::time::Duration;
use tokenweir_discovery::DiscoveryChange;

/// Time between two attempts to create the client of a discovery source: the DNS resolver, or the client
/// of the Kubernetes API.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Calls `open` every [`RETRY_INTERVAL`] until it succeeds, because the file with the credentials or the name
/// servers may be created later. Logs the first failure as an error with the text `message`, and further
/// failures at debug level. Until `open` succeeds, `discovered` reports the first failure as its problem.
pub(super) async fn retry_until_open<T, E: Error, F>(
    message: &str,
    discovered: &DiscoveredBackends,
    mut open: impl FnMut() -> F,
) -> T
where
    F: Future<Output = Result<T, E>>,
{
    let mut has_failed = false;
    loop {
        match open().await {
            Ok(opened) => {
                if has_failed {
                    discovered.set_problem(None);
                }
                return opened;
            }
            Err(error) if has_failed => tracing::debug!(error = %ErrorChain(&error), "{message}"),
            Err(error) => {
                tracing::error!(error = %ErrorChain(&error), retry = ?RETRY_INTERVAL, "{message}");
                discovered.set_problem(Some(format!("{message}: {}", ErrorChain(&error))));
            }
        }
        has_failed = true;
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Publishes a new result or a problem of a discovery source.
pub(super) fn publish(change: DiscoveryChange, discovered: &DiscoveredBackends) {
    match change {
        DiscoveryChange::Backends(found) => {
            let backends = found.into_iter().map(|found| BackendConfig {
                pod: found.pod,
                ..BackendConfig::at(found.address)
            });
            discovered.set(backends.collect());
        }
        DiscoveryChange::Problem(problem) => discovered.set_problem(problem),
    }
}
