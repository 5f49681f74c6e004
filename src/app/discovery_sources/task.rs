//! The task of one discovery source: polls or watches its target and publishes the last result.

use crate::app::process::environment::ErrorChain;
use crate::config::{BackendConfig, DiscoveryConfig, backends_in};
use crate::discovery::dns::{DnsQuery, DnsResolver};
use crate::discovery::dns_watcher::DnsWatcher;
use crate::discovery::{DiscoveredBackend, DiscoverySource};
use std::error::Error;
use std::future::{Future, ready};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokenweir_net::file_watcher::{self, FileWatcher};
use tokenweir_net::supervise::{self, BackgroundTask, SupervisedTask};
use tokio::sync::watch;

/// The task of a source. If a reload does not change the source, the sources of both configurations
/// share the task.
pub(super) struct DiscoveryTask {
    pub(super) discovered: Arc<DiscoveredBackends>,
    _task: SupervisedTask,
}

/// The last result of a source. The default settings of its `discovery` entry are not applied.
pub(super) struct DiscoveredBackends {
    /// The discovered backends. `None`: the source has no result yet.
    backends: Mutex<Option<Vec<BackendConfig>>>,
    /// Notifies [`DiscoverySources`](super::DiscoverySources) of each new result.
    change_sender: watch::Sender<()>,
}

/// Time between two attempts to create the client of a discovery source: the DNS resolver, or the client of the
/// Kubernetes API.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

// === impl DiscoveryTask, DiscoveredBackends ===

impl DiscoveryTask {
    /// Starts the task of a source. `backends`: the result of the task that this task replaces.
    /// `None`: no result yet.
    pub(super) fn start(
        settings: &DiscoveryConfig,
        backends: Option<Vec<BackendConfig>>,
        change_sender: &watch::Sender<()>,
    ) -> Arc<Self> {
        let (backends, change_sender) = (Mutex::new(backends), change_sender.clone());
        let discovered = Arc::new(DiscoveredBackends { backends, change_sender });
        let (settings, results) = (settings.clone(), discovered.clone());
        let run = move || run(settings.clone(), results.clone());
        Arc::new(Self { discovered, _task: supervise::spawn(BackgroundTask::Discovery, run) })
    }
}

impl DiscoveredBackends {
    pub(super) fn get(&self) -> Option<Vec<BackendConfig>> {
        self.backends.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, backends: Vec<BackendConfig>) {
        *self.backends.lock().unwrap_or_else(PoisonError::into_inner) = Some(backends);
        self.change_sender.send_replace(());
    }
}

/// Reads the target of a source and publishes each result, until the future is dropped.
async fn run(settings: DiscoveryConfig, discovered: Arc<DiscoveredBackends>) {
    if let Some(file) = settings.file.clone() {
        return watch_file(file, &discovered).await;
    }
    #[cfg(feature = "kubernetes")]
    if let Some(config) = &settings.kubernetes {
        let message = "cannot use the Kubernetes API server: no backends discovered, retrying";
        let watcher = retry_until_open(message, || super::kubernetes::open_watcher(config)).await;
        return watch_source(watcher, &discovered).await;
    }
    let query = match (&settings.dns, settings.port, &settings.srv) {
        (Some(name), Some(port), _) => DnsQuery::Host { name: name.clone(), port },
        (_, _, Some(name)) => DnsQuery::Service { name: name.clone() },
        // Cannot happen: validation of the configuration requires a target.
        _ => return,
    };
    let message = "no DNS name server: no backends discovered, retrying";
    let resolver = retry_until_open(message, || ready(DnsResolver::from_system_config())).await;
    watch_source(DnsWatcher::new(resolver, query, settings.interval), &discovered).await;
}

/// Calls `open` every [`RETRY_INTERVAL`] until it succeeds: a file of credentials or of name
/// servers may appear later. Logs the first failure as an error with the text `message`, and
/// further failures at debug level.
async fn retry_until_open<T, E: Error, F>(message: &str, mut open: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, E>>,
{
    let mut has_failed = false;
    loop {
        match open().await {
            Ok(opened) => return opened,
            Err(error) if has_failed => tracing::debug!(error = %ErrorChain(&error), "{message}"),
            Err(error) => {
                tracing::error!(error = %ErrorChain(&error), retry = ?RETRY_INTERVAL, "{message}");
            }
        }
        has_failed = true;
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

async fn watch_source(mut source: impl DiscoverySource, discovered: &DiscoveredBackends) {
    loop {
        discovered.set(source.changed().await.into_iter().map(backend_config).collect());
    }
}

fn backend_config(found: DiscoveredBackend) -> BackendConfig {
    BackendConfig { pod: found.pod, ..BackendConfig::at(found.address) }
}

/// Watches a file of backends. An invalid or empty file keeps the previous backends.
async fn watch_file(file: PathBuf, discovered: &DiscoveredBackends) {
    let mut watcher = FileWatcher::new([file.clone()]);
    loop {
        watcher.changed().await;
        if let Some(problem) = watcher.problem() {
            tracing::error!(
                file = %file.display(),
                problem,
                "discovery file cannot be read: keeping the previous backends"
            );
            continue;
        }
        let read = file.clone();
        let Some(backends) = file_watcher::read_within_limit(move || backends_in(&read)).await
        else {
            watcher.retry_later();
            continue;
        };
        match backends {
            Ok(backends) if backends.is_empty() => {
                tracing::warn!(
                    file = %file.display(),
                    "discovery file lists no backends: keeping the previous backends"
                );
            }
            Ok(backends) => discovered.set(backends),
            Err(error) => {
                tracing::error!(%error, "discovery file is invalid: keeping the previous backends");
                if error.is_unreadable() {
                    watcher.retry_later();
                }
            }
        }
    }
}
