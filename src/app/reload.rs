//! Reloads the configuration on SIGHUP, on `POST /-/reload` at the admin listener, or when its file changes.
//! Also applies changed secret files and discovered backends. One task applies all changes in sequence, so that
//! two changes never interleave. An invalid configuration changes nothing.

use super::discovery_sources::DiscoverySources;
use super::options::{self, AttachedOptions};
use super::process::environment::{ErrorChain, variable};
use super::process::signals::SighupListener;
use super::process::{memory_limit, systemd};
use super::secret_files::SecretFiles;
use crate::admin::Admin;
use crate::admin::{ReloadRequest, ReloadRequests};
use crate::config::{
    self, BackendConfig, BackendTlsContexts, Config, ConfigError, LoadedConfig, LogLevel,
    Overrides, ReloadOutcome, TiersConfig,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_gateway::backend::{Backend, HealthCheckSupervisor, PoolUpdate};
use tokenweir_gateway::proxy::{ProxySettings, ProxyState};
use tokenweir_gateway::server::{DescriptorBudget, ServerState};
use tokenweir_net::client::HttpClient;
use tokenweir_net::file_watcher::{self, FileWatcher};
use tokenweir_net::supervise;
use tokenweir_net::tls::OutboundTls;
use tokenweir_option::{Change, Reloaded, StartError};
use tokenweir_protocol::clock;
use tokio::sync::watch;

/// Applies reloads and discovered backends to the running gateway.
pub(super) struct Reloader {
    pub(super) loaded: LoadedConfig,
    /// The values of flags and environment variables, which do not change.
    pub(super) overrides: Overrides,
    pub(super) triggers: ReloadTriggers,
    pub(super) sources: DiscoverySources,
    pub(super) secret_files: SecretFiles,
    /// The tiers that tenants in the keys file may have.
    pub(super) tiers: watch::Sender<TiersConfig>,
    pub(super) health_checks: HealthCheckSupervisor,
    /// The division of the file descriptor limit among the parts of the gateway.
    pub(super) descriptors: DescriptorBudget,
    /// The state of the running gateway that a reload changes.
    pub(super) state: Arc<ServerState>,
    /// The parts of the gateway that the admin listener reads or changes.
    pub(super) admin: Arc<Admin>,
    pub(super) options: Arc<AttachedOptions>,
    /// Changes the level of the process log.
    pub(super) set_log_level: Box<dyn Fn(LogLevel) + Send + Sync>,
}

/// Waits for the triggers of a configuration reload: a change of the file, SIGHUP and requests to
/// the admin listener.
pub(super) struct ReloadTriggers {
    /// Watches the configuration file, if the gateway was started with one.
    file_watcher: FileWatcher,
    sighups: SighupListener,
    requests: ReloadRequests,
}

/// The files and settings that a reload has read and not yet applied.
struct PreparedReload {
    secret_files: SecretFiles,
    built: BuiltBackends,
    settings: ProxySettings,
    /// The settings of the options.
    changes: Vec<Change>,
}

/// The backends of a configuration, and the TLS contexts of those that have their own TLS settings.
struct BuiltBackends {
    backends: Vec<Backend>,
    tls_contexts: BackendTlsContexts,
}

/// An update of the pool whose new backends are checked.
struct PreparedPool {
    update: PoolUpdate,
    tls_contexts: BackendTlsContexts,
}

/// How long an update of the pool waits for the first health checks of new backends and for the first results
/// of new discovery sources. After that it removes the old backends.
const NEW_BACKEND_TIMEOUT: Duration = Duration::from_secs(1);
/// The response to a reload request if the gateway was started without a configuration file.
const NO_FILE: &str = "the gateway was started without a configuration file: restart it with --config to enable reloads";

impl ReloadTriggers {
    /// Creates the triggers. From this call on, these events trigger a reload: a change of `file` (while
    /// `reload.watch` is set), a SIGHUP, and a request of the admin listener in `requests`. `file` is the
    /// configuration file. `None`: the gateway was started without a file, so a triggered reload changes
    /// nothing. Must be called inside a Tokio runtime.
    pub(super) fn new(file: Option<PathBuf>, requests: ReloadRequests) -> Self {
        let sighups = SighupListener::new();
        let mut file_watcher = FileWatcher::new(file);
        file_watcher.skip_current();
        Self {
            file_watcher,
            sighups,
            requests,
        }
    }

    /// Waits for the next trigger. Returns the reload request of the admin listener. `None`: the
    /// trigger was a SIGHUP or a change of the file.
    async fn next(&mut self, is_file_watched: bool) -> Option<ReloadRequest> {
        tokio::select! {
            Some(request) = self.requests.recv() => Some(request),
            () = self.sighups.next() => None,
            () = self.file_watcher.changed(), if is_file_watched => None,
        }
    }
}

impl PreparedReload {
    fn read(
        config: &Config,
        entries: &[BackendConfig],
        options: &AttachedOptions,
    ) -> Result<Self, StartError> {
        let secret_files = SecretFiles::new(config, entries);
        let built = build_backends(config, entries, options)?;
        let settings = config.proxy_settings(memory_limit::available_bytes(), variable)?;
        let context = options::start_context(config, &variable);
        Ok(Self {
            secret_files,
            built,
            settings,
            changes: options.reload(config, &context)?,
        })
    }
}

impl Reloader {
    /// Applies reloads, changed secrets and discovered backends until the future is dropped.
    pub(super) async fn run(&mut self) {
        loop {
            let is_watched = self.loaded.config.reload.watch;
            tokio::select! {
                () = self.sources.changed() => self.on_backends_discovered().await,
                () = self.secret_files.changed() => self.on_secrets_changed().await,
                request = self.triggers.next(is_watched) => {
                    systemd::notify_reloading();
                    let result = self.reload().await;
                    systemd::notify_ready();
                    if let Some(request) = request {
                        request.respond(result);
                    }
                }
            }
        }
    }

    /// Applies the active configuration again, with the new content of the secret files. While a secret file is
    /// unusable, the previous secrets stay active.
    async fn on_secrets_changed(&mut self) {
        let config = self.loaded.config.clone();
        match self.apply(&config).await {
            Ok(changed) => {
                tracing::info!(changed = changed.join(", "), "secrets reloaded");
                self.admin
                    .configuration
                    .replace(self.loaded.view(), clock::wall_time());
            }
            Err(problem) => {
                tracing::error!(
                    problem,
                    "a secret is invalid: the previous secrets stay active"
                );
                self.admin.configuration.record_failed_reload(&problem);
            }
        }
    }

    /// Updates the pool with the backends of the active configuration and of discovery.
    async fn on_backends_discovered(&mut self) {
        let config = self.loaded.config.clone();
        let entries = self.sources.backends(&config);
        let problem = self.sources.problem();
        let is_usable = problem.is_none();
        self.admin.configuration.set_discovery_problem(problem);
        let discovered = entries.len();
        let settings = Box::new(config.clone());
        let options = self.options.clone();
        let reading = move || {
            let secret_files = SecretFiles::new(&settings, &entries);
            Ok((secret_files, build_backends(&settings, &entries, &options)?))
        };
        match self.read_files(reading).await {
            Ok((secret_files, built)) => {
                self.secret_files = secret_files;
                if is_usable {
                    tracing::info!(
                        backends = discovered,
                        "discovered backends changed: updating the pool"
                    );
                }
                let pool = self.prepare_pool(built, &config).await;
                self.apply_pool(pool, &config);
            }
            Err(error) => {
                tracing::error!(
                    error,
                    "the discovered backends are invalid: keeping the previous backends"
                );
            }
        }
    }

    /// Reloads the configuration. Returns a summary of the changes, or the problem, as text for the response of
    /// the admin listener.
    async fn reload(&mut self) -> Result<String, String> {
        let Some(file) = self.loaded.file.clone() else {
            // Without a file the configuration cannot have changed, so this does not count as a failed reload.
            tracing::warn!("{NO_FILE}");
            return Err(NO_FILE.to_owned());
        };
        let reloaded = self.load_and_apply(file);
        let reloaded =
            supervise::catch_panic_async(supervise::BackgroundTask::RELOAD, reloaded).await;
        let panicked = || {
            let problem = "the reload panicked, which is a bug in tokenweir: see the gateway's log";
            Err(problem.to_owned())
        };
        match reloaded.unwrap_or_else(panicked) {
            Ok(reloaded) => Ok(summarize(&reloaded)),
            Err(problem) => {
                tracing::error!(
                    problem,
                    "reload failed: the previous configuration stays active"
                );
                self.admin.configuration.record_failed_reload(&problem);
                Err(problem)
            }
        }
    }

    async fn load_and_apply(&mut self, file: PathBuf) -> Result<ReloadOutcome, String> {
        // From this point on, a change of the configuration file triggers another reload.
        let watcher = &mut self.triggers.file_watcher;
        let overrides = self.overrides.clone();
        watcher.skip_current_within_limit().await;
        let load = move || Config::load(Some(&file), overrides);
        let loaded = watcher.load(load, ConfigError::is_unreadable).await;
        let loaded = loaded.map_err(|error| error.to_string())?;
        let required = loaded
            .require_backend()
            .and_then(|()| loaded.require_support());
        required.map_err(|error| error.to_string())?;
        let mut reloaded = self.loaded.reload(loaded);
        reloaded
            .changed
            .extend(self.apply(&reloaded.loaded.config).await?);
        self.loaded = reloaded.loaded.clone();
        self.admin
            .configuration
            .replace(self.loaded.view(), clock::wall_time());
        Ok(reloaded)
    }

    /// Applies a configuration to the running gateway. All steps that can fail come first, so that an error
    /// changes nothing. Returns the changed secret files, as texts for operators.
    async fn apply(&mut self, config: &Config) -> Result<Vec<String>, String> {
        let previous = &self.loaded.config;
        let mut sources = self.sources.reconfigured(previous, config);
        let have_sources_changed = config.discovery != previous.discovery;
        if have_sources_changed && !sources.wait_for_new_sources(NEW_BACKEND_TIMEOUT).await {
            tracing::warn!(
                "new discovery source has no results yet: keeping the backends of the replaced \
                 sources until it has"
            );
        }
        let entries = sources.backends(config);
        let backend_count = entries.len();
        let new = Box::new(config.clone());
        let options = self.options.clone();
        let reading = move || PreparedReload::read(&new, &entries, &options);
        let prepared = self.read_files(reading).await?;
        let proxy = self.state.proxy_context.load_full();
        let client = self.reconfigured_client(&proxy.backend_client, config);
        let pool = self.prepare_pool(prepared.built, config).await;
        // Nothing below waits, because options, pool and settings refer to each other: a request that came between
        // two of them would find a split model without its split.
        let previous = &self.loaded.config;
        let reloaded = Reloaded {
            client: &client,
            has_new_timeouts: config.timeouts != previous.timeouts,
            requests: &prepared.settings.requests,
        };
        for change in prepared.changes {
            change(&reloaded);
        }
        if config.tiers != previous.tiers {
            self.tiers.send_replace(config.tiers.clone());
        }
        if config.log.level != previous.log.level {
            (self.set_log_level)(config.log.level);
        }
        self.sources = sources;
        self.admin
            .configuration
            .set_discovery_problem(self.sources.problem());
        self.apply_pool(pool, config);
        let settings = prepared.settings;
        self.state
            .proxy_context
            .store(Arc::new(proxy.reloaded(settings, client)));
        let limits = config.server_limits(self.descriptors, backend_count);
        self.state.limits.store(Arc::new(limits));
        let secret_files = prepared.secret_files;
        let changed = secret_files.changes_since(&self.secret_files).collect();
        self.secret_files = secret_files;
        Ok(changed)
    }

    /// The HTTP client with the timeouts of the new configuration. Health checks use it too.
    fn reconfigured_client(&mut self, current: &HttpClient, config: &Config) -> HttpClient {
        let previous = &self.loaded.config;
        let mut client = current.clone();
        let have_timeouts_changed = config.timeouts != previous.timeouts;
        if have_timeouts_changed {
            client = client.with_timeouts(config.timeouts);
        }
        if have_timeouts_changed || config.scrape != previous.scrape {
            self.health_checks
                .reconfigure(client.clone(), config.scrape);
        }
        client
    }

    /// Runs `reading`, which reads secret and certificate files, on a separate thread with a time limit.
    async fn read_files<T: Send + 'static>(
        &mut self,
        reading: impl FnOnce() -> Result<T, StartError> + Send + 'static,
    ) -> Result<T, String> {
        let Some(read) = file_watcher::read_within_limit(reading).await else {
            self.secret_files.retry_later();
            return Err("a file of a secret or a certificate could not be read in time".to_owned());
        };
        read.map_err(|error| ErrorChain(&*error).to_string())
    }

    /// Starts the health checks of new backends of the pool, and waits for their first results.
    async fn prepare_pool(&mut self, built: BuiltBackends, config: &Config) -> PreparedPool {
        let BuiltBackends {
            backends,
            tls_contexts,
        } = built;
        // The health checks need them. Removed backends keep theirs until they have left the pool, unless a new one has
        // the same host and port.
        self.outbound_tls().add_host_contexts(tls_contexts.clone());
        let checkers = backends.len() + AttachedOptions::scraped_pages(config);
        self.admin
            .proxy
            .overload_guard
            .set_health_checkers(checkers);
        let update = self
            .health_checks
            .prepare_update(backends, NEW_BACKEND_TIMEOUT)
            .await;
        PreparedPool {
            update,
            tls_contexts,
        }
    }

    /// Replaces the backends of the pool. If possible, other backends continue the streams of removed backends.
    fn apply_pool(&mut self, prepared: PreparedPool, config: &Config) {
        let PreparedPool {
            update,
            tls_contexts,
        } = prepared;
        let ProxyState {
            pool, open_streams, ..
        } = &self.admin.proxy;
        let previous = pool.backends();
        self.health_checks
            .apply_update(update, &config.pool_settings());
        let present = pool.backends();
        for removed in previous
            .iter()
            .filter(|it| !present.iter().any(|now| Arc::ptr_eq(it, now)))
        {
            open_streams.move_streams(removed.identity.id.as_str());
        }
        self.outbound_tls().set_host_contexts(tls_contexts);
    }

    fn outbound_tls(&self) -> Arc<OutboundTls> {
        let proxy = self.state.proxy_context.load();
        proxy.backend_client.outbound_tls().clone()
    }
}

fn build_backends(
    config: &Config,
    entries: &[BackendConfig],
    options: &AttachedOptions,
) -> Result<BuiltBackends, StartError> {
    let facets = |entry: &BackendConfig| options.facets(config, entry);
    Ok(BuiltBackends {
        backends: config.build_backends(entries, variable, facets)?,
        tls_contexts: config::backend_tls_contexts(entries)?,
    })
}

/// Logs the changed keys of a reload, and returns them as the text of the admin response.
fn summarize(reloaded: &ReloadOutcome) -> String {
    let changed = reloaded.changed.join(", ");
    let unapplied = reloaded.unapplied.join(", ");
    tracing::info!(changed, "configuration reloaded");
    let mut summary = if changed.is_empty() {
        "nothing has changed".into()
    } else {
        format!("changed: {changed}")
    };
    if !unapplied.is_empty() {
        tracing::warn!(
            keys = unapplied,
            "changed keys need a restart: their previous values stay active"
        );
        summary.push_str("\nneeds a restart: ");
        summary.push_str(&unapplied);
    }
    summary
}
