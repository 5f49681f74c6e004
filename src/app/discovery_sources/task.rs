//! The task of one discovery source: polls or watches its target and publishes the last result.

use super::discovered_backends::DiscoveredBackends;
use crate::config::{BackendConfig, ConfigError, DiscoveryConfig, backends_in};
use std::path::PathBuf;
use std::sync::Arc;
use tokenweir_net::file_watcher::FileWatcher;
use tokenweir_net::supervise::{self, BackgroundTask, SupervisedTask};
use tokio::sync::watch;

/// The task of a discovery source. If a reload does not change the target, the sources of both configurations
/// share the task.
pub(super) struct DiscoveryTask {
    pub(super) discovered: Arc<DiscoveredBackends>,
    _task: SupervisedTask,
}

impl DiscoveryTask {
    /// Starts the task of a source. `backends`: the result of the task that it replaces. `None`: no result yet.
    pub(super) fn start(
        settings: &DiscoveryConfig,
        backends: Option<Vec<BackendConfig>>,
        change_sender: &watch::Sender<()>,
    ) -> Arc<Self> {
        let discovered = Arc::new(DiscoveredBackends::new(backends, change_sender.clone()));
        let settings = settings.clone();
        let results = discovered.clone();
        let run = move || run(settings.clone(), results.clone());
        Arc::new(Self {
            discovered,
            _task: supervise::spawn(BackgroundTask::DISCOVERY, run),
        })
    }
}

/// Reads the target of a source and publishes each result, until the future is dropped.
async fn run(settings: DiscoveryConfig, discovered: Arc<DiscoveredBackends>) {
    if let Some(file) = settings.file.clone() {
        return watch_file(file, &discovered).await;
    }
    #[cfg(feature = "kubernetes")]
    if let Some(config) = &settings.kubernetes {
        return super::kubernetes::watch(config, &discovered).await;
    }
    #[cfg(feature = "dns")]
    super::dns::watch(&settings, &discovered).await;
}

/// Watches a file of backends. An invalid or empty file keeps the previous backends.
async fn watch_file(file: PathBuf, discovered: &DiscoveredBackends) {
    let mut watcher = FileWatcher::new([file.clone()]);
    let keep_previous = |problem: String| {
        tracing::error!(
            problem,
            "the discovery file cannot be used: keeping the previous backends"
        );
        discovered.set_problem(Some(problem));
    };
    loop {
        watcher.changed().await;
        let read = file.clone();
        match watcher
            .load(move || backends_in(&read), ConfigError::is_unreadable)
            .await
        {
            Ok(backends) if backends.is_empty() => {
                keep_previous(format!("{}: it lists no backends", file.display()));
            }
            Ok(backends) => discovered.set(backends),
            Err(error) => keep_previous(error.to_string()),
        }
    }
}
