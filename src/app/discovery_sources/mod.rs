//! The running discovery sources and their last results.
//!
//! A reload keeps the result of a source if its [target](is_same_target) is unchanged, even if its other
//! settings have changed. If the same reload adds a source, the backends of removed sources stay until the new
//! source has a result, so that a slow name server cannot empty the pool.

mod discovered_backends;
#[cfg(feature = "dns")]
mod dns;
#[cfg(feature = "kubernetes")]
mod kubernetes;
#[cfg(any(feature = "dns", feature = "kubernetes"))]
mod result_publisher;
mod task;
#[cfg(test)]
mod tests;

use crate::config::{BackendConfig, Config, DiscoveryConfig};
use std::sync::Arc;
use std::time::Duration;
use task::DiscoveryTask;
use tokio::sync::watch;

/// The running sources of one configuration. Dropping the last `DiscoverySources` with a source ends its task.
pub(crate) struct DiscoverySources {
    configured: Vec<ConfiguredSource>,
    /// Backends that reloads have replaced. They stay in the pool while a new source has no result, as
    /// [`DiscoverySources::is_awaiting_results`] says.
    replaced: Vec<ReplacedBackends>,
    /// Notified when a discovery source has a new result.
    changes: watch::Receiver<()>,
    change_sender: watch::Sender<()>,
}

/// A running discovery source with its settings.
struct ConfiguredSource {
    settings: DiscoveryConfig,
    task: Arc<DiscoveryTask>,
    /// Whether a reload added the source. `false`: the source exists since the start of the gateway.
    is_new: bool,
}

/// Backends that a reload of the configuration has replaced.
#[derive(Clone)]
enum ReplacedBackends {
    /// The settings and the last result of a removed source.
    Source(Box<DiscoveryConfig>, Vec<BackendConfig>),
    /// The `backends` of the configuration before the reload. They stay in use while neither the new
    /// configuration nor a source has a backend.
    Configured(Vec<BackendConfig>),
}

impl DiscoverySources {
    /// Starts the configured discovery sources. Must be called inside a Tokio runtime.
    pub(crate) fn start(configured: &[DiscoveryConfig]) -> Self {
        let (change_sender, changes) = watch::channel(());
        let start = |settings: &DiscoveryConfig| {
            let task = DiscoveryTask::start(settings, None, &change_sender);
            ConfiguredSource {
                settings: settings.clone(),
                task,
                is_new: false,
            }
        };
        let configured = configured.iter().map(start).collect();
        Self {
            configured,
            replaced: Vec::new(),
            changes,
            change_sender,
        }
    }

    /// Starts the sources of the configuration `new`, which replaces `old`. Sources with an
    /// unchanged target keep their results. The sources of `self` run until `self` is dropped.
    pub(crate) fn reconfigured(&self, old: &Config, new: &Config) -> Self {
        let changes = self.change_sender.subscribe();
        let sources: Vec<ConfiguredSource> = new
            .discovery
            .iter()
            .map(|settings| self.reconfigure_source(settings))
            .collect();
        let mut replaced = Vec::new();
        let is_among = |source: &ConfiguredSource, sources: &[ConfiguredSource]| {
            sources
                .iter()
                .any(|other| is_same_target(&other.settings, &source.settings))
        };
        // Without a new source, removed backends are removed at once.
        if !sources
            .iter()
            .all(|source| is_among(source, &self.configured))
        {
            for source in &self.configured {
                if !is_among(source, &sources)
                    && let Some(backends) = source.task.discovered.get()
                {
                    let settings = Box::new(source.settings.clone());
                    replaced.push(ReplacedBackends::Source(settings, backends));
                }
            }
            replaced.push(ReplacedBackends::Configured(old.backends.clone()));
        }
        if self.is_awaiting_results() {
            let still_replaced = self.replaced.iter().filter(|backends| {
                !sources
                    .iter()
                    .any(|source| backends.reads_from(&source.settings))
            });
            replaced.extend(still_replaced.cloned());
        }
        let change_sender = self.change_sender.clone();
        Self {
            configured: sources,
            replaced,
            changes,
            change_sender,
        }
    }

    /// Creates the source with these settings. A source of `self` with the same target passes its task to the
    /// created source.
    fn reconfigure_source(&self, settings: &DiscoveryConfig) -> ConfiguredSource {
        let is_it = |source: &&ConfiguredSource| is_same_target(&source.settings, settings);
        let previous = self.configured.iter().find(is_it);
        let settings = settings.clone();
        if let Some(previous) = previous {
            let task = previous.task.clone();
            return ConfiguredSource {
                settings,
                task,
                is_new: previous.is_new,
            };
        }
        let kept = if self.is_awaiting_results() {
            self.replaced.iter().find_map(|replaced| match replaced {
                ReplacedBackends::Source(_, backends) if replaced.reads_from(&settings) => {
                    Some(backends.clone())
                }
                _ => None,
            })
        } else {
            None
        };
        let task = DiscoveryTask::start(&settings, kept, &self.change_sender);
        ConfiguredSource {
            settings,
            task,
            is_new: true,
        }
    }

    /// Waits until every source has a result, but not longer than `timeout`.
    pub(crate) async fn wait_for_all_sources(&mut self, timeout: Duration) {
        let all_results = async {
            while self.configured.iter().any(|source| !source.has_results()) {
                self.changed().await;
            }
        };
        let _ = tokio::time::timeout(timeout, all_results).await;
    }

    /// Waits until every source that a reload added has a result, but not longer than `timeout`. Returns
    /// whether all of them have one.
    pub(crate) async fn wait_for_new_sources(&mut self, timeout: Duration) -> bool {
        let new_results = async {
            while self.is_awaiting_results() {
                self.changed().await;
            }
        };
        tokio::time::timeout(timeout, new_results).await.is_ok()
    }

    /// Waits until a source has a new result.
    pub(crate) async fn changed(&mut self) {
        // Cannot fail, because `self` owns a sender of the channel.
        let _ = self.changes.changed().await;
    }

    /// Whether a source that a reload added has no result yet.
    fn is_awaiting_results(&self) -> bool {
        self.configured
            .iter()
            .any(|source| source.is_new && !source.has_results())
    }

    /// Returns why a source cannot be read now. `None`: all sources can be read.
    pub(crate) fn problem(&self) -> Option<String> {
        self.configured
            .iter()
            .find_map(|source| source.task.discovered.problem())
    }

    /// Returns all backends: the `backends` of `config`, the discovered backends and, while a new source has no
    /// result, the replaced backends. Of several backends with the same URL or name, only the first is
    /// included.
    pub(crate) fn backends(&self, config: &Config) -> Vec<BackendConfig> {
        let mut backends = config.backends.clone();
        for source in &self.configured {
            let discovered = source.task.discovered.get().unwrap_or_default();
            let with_defaults = discovered
                .into_iter()
                .map(|backend| source.settings.apply_defaults(backend));
            add_unique(&mut backends, with_defaults);
        }
        if !self.is_awaiting_results() {
            return backends;
        }
        for replaced in &self.replaced {
            if let ReplacedBackends::Source(settings, discovered) = replaced {
                let with_defaults = discovered
                    .iter()
                    .cloned()
                    .map(|backend| settings.apply_defaults(backend));
                add_unique(&mut backends, with_defaults);
            }
        }
        for replaced in &self.replaced {
            if let ReplacedBackends::Configured(configured) = replaced
                && backends.is_empty()
            {
                backends.clone_from(configured);
            }
        }
        backends
    }
}

/// Appends each backend of `added`, unless a backend in the list has the same URL or the same name.
fn add_unique(backends: &mut Vec<BackendConfig>, added: impl Iterator<Item = BackendConfig>) {
    for added in added {
        let is_same = |other: &BackendConfig| other.url == added.url || other.id() == added.id();
        if !backends.iter().any(is_same) {
            backends.push(added);
        }
    }
}

impl ConfiguredSource {
    fn has_results(&self) -> bool {
        self.task.discovered.get().is_some()
    }
}

impl ReplacedBackends {
    /// Whether these backends are the result of a source with the same target as `settings`.
    fn reads_from(&self, settings: &DiscoveryConfig) -> bool {
        matches!(self, Self::Source(own, _) if is_same_target(own, settings))
    }
}

/// Whether two sources have the same target, and so the same result. The target is the one of `file`,
/// `kubernetes`, `dns` and `srv` that is set.
fn is_same_target(a: &DiscoveryConfig, b: &DiscoveryConfig) -> bool {
    #[cfg(feature = "options")]
    if a.kubernetes != b.kubernetes {
        return false;
    }
    a.file == b.file && a.dns == b.dns && a.srv == b.srv
}
