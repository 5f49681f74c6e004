//! Reloads the configuration on SIGHUP, on a POST to the admin listener, or when its file changes,
//! and applies discovered backends. One task applies all changes in sequence, so that two changes
//! never interleave. An invalid configuration changes nothing.

use super::builders::{backends, identities, limits, selection};
use super::discovery_sources::DiscoverySources;
use super::process::{ErrorChain, variable};
use super::shared_state::SharedState;
use super::signals::SighupListener;
use super::systemd;
use crate::admin::{ActiveConfiguration, ReloadRequest, ReloadRequests};
use crate::backend::HealthCheckSupervisor;
use crate::config::{Config, ConfigError, LoadedConfig, Overrides, ReloadOutcome};
use crate::discovery::file_watcher::FileWatcher;
use crate::proxy::ProxyContext;
use crate::server::ServerLimits;
use arc_swap::ArcSwap;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::clock;
use tokenweir_net::client::HttpClient;
use tokenweir_net::supervise;

/// Applies reloads and discovered backends to the running gateway.
pub(crate) struct Reloader {
    /// The active configuration.
    pub(crate) loaded: LoadedConfig,
    /// The values of flags and environment variables, which do not change.
    pub(crate) overrides: Overrides,
    /// The configuration file. `None`: the gateway was started without one.
    pub(crate) file: Option<FileWatcher>,
    pub(crate) hangups: SighupListener,
    pub(crate) requests: ReloadRequests,
    pub(crate) sources: DiscoverySources,
    pub(crate) shared_state: SharedState,
    pub(crate) client: HttpClient,
    pub(crate) health_check_supervisor: HealthCheckSupervisor,
    pub(crate) gateway: Arc<ArcSwap<ProxyContext>>,
    pub(crate) limits: Arc<ArcSwap<ServerLimits>>,
    pub(crate) configuration: Arc<ActiveConfiguration>,
}

/// The next change to apply.
enum ReloadTask {
    /// Reload the configuration, and respond to the admin request if there is one.
    Reload(Option<ReloadRequest>),
    /// Apply newly discovered backends.
    BackendsDiscovered,
}

/// How long an update waits for the first health checks of new backends, and for the first results
/// of new discovery sources, before it removes the old backends.
const NEW_BACKEND_TIMEOUT: Duration = Duration::from_secs(1);

// === impl Reloader ===

impl Reloader {
    /// Applies changes until the future is dropped.
    pub(crate) async fn run(&mut self) {
        loop {
            let is_watched = self.loaded.config.reload.watch;
            let task = tokio::select! {
                Some(request) = self.requests.recv() => ReloadTask::Reload(Some(request)),
                () = self.hangups.next() => ReloadTask::Reload(None),
                () = file_changed(&mut self.file), if is_watched => ReloadTask::Reload(None),
                () = self.sources.changed() => ReloadTask::BackendsDiscovered,
            };
            match task {
                ReloadTask::BackendsDiscovered => self.on_backends_discovered().await,
                ReloadTask::Reload(request) => {
                    systemd::reloading();
                    let result = self.reload().await;
                    systemd::ready();
                    if let Some(request) = request {
                        request.respond(result);
                    }
                }
            }
        }
    }

    async fn on_backends_discovered(&mut self) {
        let config = &self.loaded.config;
        let configured = self.sources.backends(config);
        let built = backends(config, &configured, variable)
            .and_then(|backends| Ok((backends, identities(&configured)?)));
        match built {
            Ok((backends, identities)) => {
                self.shared_state.outbound.set_host_contexts(identities);
                tracing::info!(
                    replicas = configured.len(),
                    "discovered backends changed: updating the pool"
                );
                self.shared_state.gate.set_health_checkers(backends.len());
                self.health_check_supervisor
                    .update_backends(backends, &selection(config), NEW_BACKEND_TIMEOUT)
                    .await;
            }
            Err(error) => {
                tracing::error!(
                    error = %ErrorChain(&error),
                    "discovered backends are invalid: keeping the previous backends"
                );
            }
        }
    }

    async fn reload(&mut self) -> Result<String, String> {
        let reloaded = self.load_and_apply();
        let reloaded =
            supervise::catch_panic_async(supervise::BackgroundTask::Reload, reloaded).await;
        let panicked = || {
            let problem = "the reload panicked, which is a bug in tokenweir: see the gateway's log";
            Err(problem.to_owned())
        };
        match reloaded.unwrap_or_else(panicked) {
            Ok(reloaded) => Ok(summarize(&reloaded)),
            Err(problem) => {
                tracing::error!(problem, "reload failed: the previous configuration stays active");
                self.configuration.record_failed_reload();
                Err(problem)
            }
        }
    }

    async fn load_and_apply(&mut self) -> Result<ReloadOutcome, String> {
        let Some(file) = &mut self.file else {
            return Err("the gateway was started without a configuration file: restart it with \
                        --config to enable reloads"
                .to_owned());
        };
        // A change of the file from here on triggers another reload.
        file.skip_current().await;
        let loaded = Config::load(Some(file.path()), self.overrides.clone());
        if loaded.as_ref().is_err_and(ConfigError::is_unreadable) {
            // The cause of a read error may disappear without a change of the file.
            file.retry_later();
        }
        let loaded = loaded.and_then(|loaded| loaded.require_backend().map(|()| loaded));
        let reloaded = self.loaded.reload(loaded.map_err(|error| error.to_string())?);
        self.apply(&reloaded.loaded.config).await?;
        self.loaded = reloaded.loaded.clone();
        self.configuration.replace(self.loaded.view(), clock::wall_time());
        Ok(reloaded)
    }

    /// Applies a configuration. All steps that can fail come first, so that an error changes
    /// nothing.
    async fn apply(&mut self, config: &Config) -> Result<(), String> {
        let previous = &self.loaded.config;
        let mut sources = self.sources.reconfigured(previous, config);
        let has_other_sources = config.discovery != previous.discovery;
        if has_other_sources && !sources.wait_for_new_sources(NEW_BACKEND_TIMEOUT).await {
            tracing::warn!(
                "new discovery source has no results yet: keeping the backends of the replaced \
                 sources until it has"
            );
        }
        let configured = sources.backends(config);
        let backends = backends(config, &configured, variable);
        let backends = backends.map_err(|error| ErrorChain(&error).to_string())?;
        let has_other_client = config.timeouts != previous.timeouts;
        let client = if has_other_client { self.new_client(config) } else { self.client.clone() };
        let gateway = self.gateway.load_full();
        let prepared =
            self.shared_state.next(config, &gateway, &configured, client.clone(), variable);
        let prepared = prepared.map_err(|error| ErrorChain(&error).to_string())?;
        if has_other_client || config.scrape != previous.scrape {
            self.health_check_supervisor.reconfigure(client.clone(), config.scrape);
        }
        self.client = client;
        self.sources = sources;
        self.shared_state.gate.set_health_checkers(backends.len());
        self.health_check_supervisor
            .update_backends(backends, &selection(config), NEW_BACKEND_TIMEOUT)
            .await;
        self.gateway.store(Arc::new(self.shared_state.apply_reload(config, prepared)));
        self.limits.store(Arc::new(limits(config, self.shared_state.files, configured.len())));
        Ok(())
    }

    fn new_client(&self, config: &Config) -> HttpClient {
        HttpClient::with_tls(config.timeouts, self.shared_state.outbound.clone())
            .with_descriptors(self.shared_state.gate.descriptors().clone())
    }
}

/// Waits for a change of the configuration file. Never completes without one.
async fn file_changed(file: &mut Option<FileWatcher>) {
    match file {
        Some(file) => file.changed().await,
        None => std::future::pending().await,
    }
}

/// Logs the changed keys of a reload, and returns them as the text of the admin response.
fn summarize(reloaded: &ReloadOutcome) -> String {
    let (changed, held) = (reloaded.changed.join(", "), reloaded.held.join(", "));
    tracing::info!(changed, "configuration reloaded");
    let mut summary = if changed.is_empty() {
        "nothing has changed".into()
    } else {
        format!("changed: {changed}")
    };
    if !held.is_empty() {
        tracing::warn!(
            keys = held,
            "changed keys need a restart: their previous values stay active"
        );
        summary.push_str("\nneeds a restart: ");
        summary.push_str(&held);
    }
    summary
}
