//! Opens the client of a discovery source, and publishes each result of the source.

use super::discovered_backends::DiscoveredBackends;
use crate::app::process::environment::ErrorChain;
use crate::config::BackendConfig;
use std::error::Error;
use std::future::Future;
use std::time::Duration;
use tokenweir_discovery::{DiscoveredBackend, DiscoveryChange, DiscoverySource};

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

/// Publishes each new result and each problem of a discovery source, until the future is dropped.
pub(super) async fn publish_changes(
    mut source: impl DiscoverySource,
    discovered: &DiscoveredBackends,
) {
    loop {
        match source.changed().await {
            DiscoveryChange::Backends(found) => {
                discovered.set(found.into_iter().map(backend_config).collect());
            }
            DiscoveryChange::Problem(problem) => discovered.set_problem(problem),
        }
    }
}

fn backend_config(found: DiscoveredBackend) -> BackendConfig {
    BackendConfig {
        pod: found.pod,
        ..BackendConfig::at(found.address)
    }
}
