//! Builds a running gateway from a valid configuration, and runs it until shutdown.

use super::banner::StartSummary;
use super::diagnosis::DiagnosisTask;
use super::discovery_sources::DiscoverySources;
use super::keys_file::{self, KeysFileWatcher};
use super::listeners::BoundListeners;
use super::options::{self, AttachedOptions};
use super::process::logging::LogWriters;
use super::process::starts::ProcessStarts;
use super::process::{memory_limit, systemd};
use super::reload::{ReloadTriggers, Reloader};
use super::secret_files::SecretFiles;
use super::telemetry_pipeline::{TelemetryPipeline, TelemetryWorkers};
use crate::admin::{ActiveConfiguration, Admin, AdminAuthorizer, Timeline};
use crate::config::{BackendConfig, Config, LoadedConfig, Overrides, TiersConfig};
use futures_util::future::BoxFuture;
use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_gateway::backend::HealthCheckSupervisor;
use tokenweir_gateway::backend::facets::PoolFacets;
use tokenweir_gateway::backend::pool::BackendPool;
use tokenweir_gateway::proxy::{OverloadGuard, ProxyContext};
use tokenweir_gateway::server::{DrainOutcome, Server};
use tokenweir_net::client::HttpClient;
use tokenweir_net::supervise::{self, BackgroundTask, SupervisedTask};
use tokenweir_net::tls::{Credentials, TlsPeer};
use tokenweir_option::{GatewayParts, OptionParts, StartError, in_part};
use tokenweir_protocol::atomic::AtomicInstant;
use tokenweir_protocol::clock;
use tokenweir_settings::Environment;
use tokio::sync::{Mutex, watch};

/// A gateway with bound listeners, after the first checks of its backends.
pub(crate) struct Application {
    /// The addresses and settings that the start banner shows.
    pub(crate) summary: StartSummary,
    server: Server,
    /// The background workers of the sinks.
    workers: TelemetryWorkers,
    /// Applies configuration reloads and discovered backends to the running gateway.
    reloader: Reloader,
    /// The futures of options that a shutdown waits for after the last request.
    option_ends: Vec<BoxFuture<'static, ()>>,
    option_guards: Vec<Box<dyn Any + Send>>,
    starts: Arc<ProcessStarts>,
    /// The tasks that reload the keys file, diagnose the backends and exchange data with other gateways.
    /// Dropping a `SupervisedTask` ends its task.
    _background_tasks: Vec<SupervisedTask>,
}

/// Maximum wait at the start for the first results of discovery, and then for the first scrapes. The results
/// let the banner show the state of the backends.
const FIRST_SCRAPE_TIMEOUT: Duration = Duration::from_secs(2);

impl Application {
    /// Binds the listeners, starts the telemetry exporters and runs the first health checks of the
    /// backends.
    pub(crate) async fn new(
        loaded: &LoadedConfig,
        overrides: Overrides,
        logs: &LogWriters,
        env: impl Environment,
    ) -> Result<Self, StartError> {
        let config = &loaded.config;
        let (configuration, reload_requests) =
            ActiveConfiguration::new(loaded.view(), clock::wall_time());
        let triggers = ReloadTriggers::new(loaded.file.clone(), reload_requests);
        loaded.require_support()?;
        for warning in super::exposure::warnings(loaded, &env) {
            tracing::warn!("{warning}");
        }
        let listeners = BoundListeners::bind(config)?;
        let path = RequestPath::build(loaded, logs, &listeners.overload_guard, &env).await?;
        let admin = path.admin(&listeners, configuration, config, &env)?;
        path.register_outbound(&listeners.tls.credentials);
        let starts = Arc::new(ProcessStarts::begin(loaded, clock::wall_time()));
        let diagnosis = DiagnosisTask {
            admin: admin.clone(),
            hooks: path.parts.diagnosis,
            request_counters: path.pipeline.request_counters,
            starts: starts.clone(),
        };
        let mut background_tasks = vec![diagnosis.start()];
        let access = &admin.proxy.access;
        background_tasks.extend(keys_file::watch_keys(path.keys_watcher, access));
        let workers = path.pipeline.workers;
        let summary = StartSummary::new(config, &listeners, &workers, &admin.proxy.pool);
        let descriptors = listeners.descriptors;
        // Listening is the last step. Since no later step can fail, every connection that the kernel accepts
        // from here on is served.
        let server = listeners.serve(path.proxy, admin.clone())?;
        let reloader = Reloader {
            loaded: loaded.clone(),
            overrides,
            triggers,
            sources: path.sources,
            secret_files: path.secret_files,
            tiers: path.tiers,
            health_checks: path.health_checks,
            descriptors,
            state: server.state.clone(),
            admin,
            options: path.options,
            set_log_level: Box::new(logs.level_setter()),
        };
        Ok(Self {
            summary,
            server,
            workers,
            reloader,
            option_ends: path.parts.ends,
            option_guards: path.parts.guards,
            starts,
            _background_tasks: background_tasks,
        })
    }

    /// Serves requests until `shutdown` completes, drains, and exports the remaining spans and metrics. The
    /// error names a required task that ended before the shutdown.
    pub(crate) async fn run(
        self,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), BackgroundTask> {
        // If a reload panics and the task is restarted, the mutex preserves the reloader and its state.
        let reloader = Arc::new(Mutex::new(self.reloader));
        let reloading = supervise::spawn(BackgroundTask::RELOAD, move || {
            let reloader = reloader.clone();
            async move { reloader.lock().await.run().await }
        });
        let watchdog = supervise::spawn(BackgroundTask::SYSTEMD_WATCHDOG, systemd::run_watchdog);
        let shutdown = async {
            shutdown.await;
            systemd::notify_stopping();
        };
        systemd::notify_ready();
        // The server runs in a task on a worker thread, because on the thread of `block_on` each new or closed
        // connection would wake two threads instead of one.
        let drain_outcome = tokio::spawn(self.server.run(shutdown)).await;
        let drain_outcome = drain_outcome.unwrap_or_else(|_| {
            supervise::record_panic(BackgroundTask::LISTENER);
            DrainOutcome::TaskFailed(BackgroundTask::LISTENER)
        });
        drop(watchdog);
        // Waits until the reload task has ended, which drops the reloader and its health checkers.
        reloading.stop().await;
        self.workers.shutdown(self.option_ends).await;
        drop(self.option_guards);
        self.starts.end();
        match drain_outcome {
            DrainOutcome::Whole => tracing::info!("drain completed: all requests have ended"),
            DrainOutcome::DeadlineExceeded => {
                tracing::warn!("drain timeout exceeded: aborted the remaining requests");
            }
            DrainOutcome::TaskFailed(task) => {
                tracing::error!(
                    task = task.as_str(),
                    "a required task of the gateway ended: the gateway drained and exits now"
                );
                return Err(task);
            }
        }
        Ok(())
    }
}

/// The parts on the path of a request, after the first checks of the backends.
struct RequestPath {
    sources: DiscoverySources,
    secret_files: SecretFiles,
    keys_watcher: Option<KeysFileWatcher>,
    tiers: watch::Sender<TiersConfig>,
    pipeline: TelemetryPipeline,
    health_checks: HealthCheckSupervisor,
    options: Arc<AttachedOptions>,
    /// The parts of options that `proxy` does not contain.
    parts: GatewayParts,
    proxy: ProxyContext,
}

impl RequestPath {
    async fn build(
        loaded: &LoadedConfig,
        logs: &LogWriters,
        guard: &Arc<OverloadGuard>,
        env: impl Environment,
    ) -> Result<Self, StartError> {
        let config = &loaded.config;
        let mut parts = OptionParts::default();
        let context = options::start_context(config, &env);
        let options = Arc::new(AttachedOptions::start(config, &context, &mut parts)?);
        let OptionParts {
            records,
            pool_facets,
            drivers,
            quota_scope,
            gateway: mut parts,
        } = parts;
        let facets = PoolFacets(pool_facets);
        let (sources, pool, client) = build_pool(config, &options, facets, guard, &env).await?;
        let secret_files = SecretFiles::new(config, &sources.backends(config));
        let tiers = watch::Sender::new(config.tiers.clone());
        let (access, keys_watcher) =
            keys_file::build_access(config, tiers.subscribe(), quota_scope, &env)?;
        let pipeline = TelemetryPipeline::start(loaded, logs, &pool, &access, records, &env)?;
        let telemetry = pipeline.telemetry.clone();
        let health_checks = HealthCheckSupervisor::new(
            pool.clone(),
            client.clone(),
            config.scrape,
            telemetry.clone(),
            drivers,
        );
        health_checks.wait_first_checks(FIRST_SCRAPE_TIMEOUT).await;
        let settings = config.proxy_settings(memory_limit::available_bytes(), &env)?;
        let stored = pipeline.stored_responses.clone();
        let guard = guard.clone();
        let mut proxy = ProxyContext::new(settings, pool, access, stored, guard, telemetry, client);
        proxy.state.recording = pipeline.recording.clone();
        options.join(config, &mut proxy, &mut parts)?;
        Ok(Self {
            sources,
            secret_files,
            keys_watcher,
            tiers,
            pipeline,
            health_checks,
            options,
            parts,
            proxy,
        })
    }

    fn admin(
        &self,
        listeners: &BoundListeners,
        configuration: Arc<ActiveConfiguration>,
        config: &Config,
        env: impl Environment,
    ) -> Result<Arc<Admin>, StartError> {
        let proxy = &self.proxy.state;
        let mut status_sources = listeners.status_sources();
        status_sources.extend(self.pipeline.status_sources.iter().cloned());
        let options = self.options.clone();
        status_sources.push(Arc::new(move |status, now| options.add_status(status, now)));
        Ok(Arc::new(Admin {
            authorizer: AdminAuthorizer::from_config(&config.access, *config.admin, env)?,
            proxy: proxy.clone(),
            decisions: self.pipeline.decisions.clone(),
            recent_requests: self.pipeline.recent_requests.clone(),
            status_sources,
            diagnosis: Arc::default(),
            timeline: open_timeline(config)?,
            configuration,
            trace_ui_url: config.tracing.ui.clone(),
            metrics_read_at: AtomicInstant::default(),
            tasks: options::background_tasks(),
        }))
    }

    /// Makes the credentials reload the certificates of the connections to backends and to the collector.
    fn register_outbound(&self, credentials: &Credentials) {
        credentials.register_outbound(TlsPeer::Backend, self.proxy.backend_client.outbound_tls());
        for outbound in self.pipeline.workers.outbound_tls() {
            credentials.register_outbound(TlsPeer::Collector, outbound);
        }
    }
}

fn open_timeline(config: &Config) -> Result<Timeline, StartError> {
    let file = config.timeline.file.as_deref();
    let opened = Timeline::open(file, clock::wall_time());
    opened.map_err(in_part(
        "cannot write the file of the timeline (timeline.file)",
    ))
}

/// Starts discovery, and builds the pool of the backends and the client for requests to the backends.
async fn build_pool(
    config: &Config,
    options: &AttachedOptions,
    pool_facets: PoolFacets,
    overload_guard: &OverloadGuard,
    env: impl Environment,
) -> Result<(DiscoverySources, Arc<BackendPool>, HttpClient), StartError> {
    let mut sources = DiscoverySources::start(&config.discovery);
    sources.wait_for_all_sources(FIRST_SCRAPE_TIMEOUT).await;
    let entries = sources.backends(config);
    overload_guard.set_health_checkers(entries.len() + AttachedOptions::scraped_pages(config));
    let mut client = HttpClient::with_tls(config.timeouts, config.outbound_tls(&entries)?);
    client.descriptors = overload_guard.descriptors.clone();
    let facets = |entry: &BackendConfig| options.facets(config, entry);
    let backends = config.build_backends(&entries, env, facets)?;
    let pool = BackendPool::with_facets(backends, &config.pool_settings(), pool_facets);
    Ok((sources, Arc::new(pool), client))
}
