//! Builds a running gateway from a valid configuration, and runs it until shutdown.

use super::builders::{access, admission, backends, guard, observation, outbound, span_counts};
use super::collectors;
use super::diagnosis_task::DiagnosisTask;
use super::discovery_sources::DiscoverySources;
use super::keys_file::KeysFileWatcher;
use super::listeners::BoundListeners;
use super::logging::LogWriters;
use super::memory_limit;
use super::reload::Reloader;
use super::shared_state::SharedState;
use super::signals::SighupListener;
use super::systemd;
use super::telemetry_pipeline::TelemetryPipeline;
use crate::admin::{ActiveConfiguration, Admin, AdminAuthorizer};
use crate::backend::Backend;
use crate::backend::pool::BackendPool;
use crate::config::{Config, ConfigError, LoadedConfig, Overrides, SecretError};
use crate::discovery::file_watcher::FileWatcher;
use crate::proxy::BodyMemory;
use crate::proxy::admission::AdmissionController;
use crate::proxy::retry::RetryController;
use crate::server::{self, BindError, DrainOutcome, Server};
use crate::telemetry::batch_dispatcher::BatchDispatcherGuard;
use crate::telemetry::metrics_push::{self, MetricsPusher};
use crate::telemetry::metrics_registry::BucketOverridesError;
use crate::telemetry::otel::{self, SpanSink};
use crate::telemetry::{payload_log, quality, trace_capture};
use arc_swap::ArcSwap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokenweir_core::clock;
use tokenweir_core::observe::ExchangeRegistry;
use tokenweir_diagnose::LatestDiagnosis;
use tokenweir_net::client::HttpClient;
use tokenweir_net::supervise::{self, BackgroundTask, SupervisedTask};
use tokenweir_net::tls::{TlsError, TlsPeer};
use tokio::sync::Mutex;

/// A gateway with bound listeners, after the first checks of its backends.
pub(crate) struct Application {
    /// The address of the client listener.
    pub(crate) listen: SocketAddr,
    /// The address of the admin listener.
    pub(crate) operators: SocketAddr,
    /// The OTLP endpoint of spans.
    pub(crate) traces: Option<String>,
    /// The OTLP endpoint of metrics.
    pub(crate) pushed_to: Option<String>,
    /// The file of the trace capture.
    pub(crate) captured_in: Option<PathBuf>,
    /// Maximum number of client connections, each with one request.
    pub(crate) connections: usize,
    /// Whether the client listener and the admin listener use TLS.
    pub(crate) is_https: [bool; 2],
    /// The backend pool.
    pub(crate) pool: Arc<BackendPool>,
    server: Server,
    /// Dropping it flushes the remaining records.
    dispatcher: BatchDispatcherGuard,
    otel: Option<SpanSink>,
    metrics_push: Option<MetricsPusher>,
    /// Dropping it flushes the capture file.
    _capture_worker: Option<trace_capture::TraceCaptureGuard>,
    /// Dropping it flushes the payload log.
    _payload_worker: Option<payload_log::PayloadLogGuard>,
    /// Dropping it flushes the quality samples.
    _quality_worker: Option<quality::QualityMonitorGuard>,
    /// Applies reloads and discovered backends.
    reloader: Reloader,
    /// The tasks of the keys file and of the diagnosis. Dropping them ends them.
    _background_tasks: Vec<SupervisedTask>,
}

/// Why the gateway cannot start or reload with a valid configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplicationError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error("cannot read the api_key of backend `{backend}`")]
    Secret { backend: String, source: SecretError },
    #[error("cannot read the key of tier `{tier}` (tiers.keys)")]
    TierKey { tier: String, source: SecretError },
    #[error("cannot read the admin token (access.admin_token)")]
    AdminToken { source: SecretError },
    #[error("cannot read the secret of access.cache_salt")]
    CacheSalt { source: SecretError },
    #[error(transparent)]
    Keys(#[from] ConfigError),
    #[error("refusal_detection.refusal_phrases has too many phrases: remove some")]
    Phrases(#[from] aho_corasick::BuildError),
    #[error(transparent)]
    TraceSettings(#[from] otel::OtelSettingsError),
    #[error(transparent)]
    Traces(#[from] otel::SpanSinkStartError),
    #[error(transparent)]
    Push(#[from] metrics_push::MetricsPushStartError),
    #[error("cannot write the capture file {} (trace_capture.file)", file.display())]
    Capture { file: PathBuf, source: io::Error },
    #[error("cannot start the payload log (log.payloads)")]
    Content(#[from] payload_log::PayloadSinkStartError),
    #[error("cannot start the quality samples (quality)")]
    Quality(#[source] payload_log::PayloadSinkStartError),
    #[error(transparent)]
    Buckets(#[from] BucketOverridesError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// How long the start waits for discovery and for the first scrapes, so that the banner can show
/// the state of the backends.
const FIRST_SCRAPE_TIMEOUT: Duration = Duration::from_secs(2);

impl Application {
    /// Binds the listeners, starts the exporters and runs the first checks of the backends.
    #[expect(
        clippy::too_many_lines,
        reason = "the composition root builds each part of the gateway once, in order"
    )]
    pub(crate) async fn new(
        loaded: &LoadedConfig,
        overrides: Overrides,
        logs: &LogWriters,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ApplicationError> {
        let config = &loaded.config;
        let started_at = clock::wall_time();
        let hangups = SighupListener::new();
        let file = FileWatcher::for_path(loaded.file.as_deref()).await;
        let listeners = BoundListeners::bind(config)?;
        let (listen, operators) = (listeners.clients.address(), listeners.operators(config.admin));
        let (is_https, max_connections) = (listeners.is_https(), listeners.limits.max_connections);
        let mut sources = DiscoverySources::start(&config.discovery);
        sources.first(FIRST_SCRAPE_TIMEOUT).await;
        let configured = sources.backends(config);
        let outbound = outbound(config, &configured)?;
        let pool = build_pool(config, backends(config, &configured, &env)?);
        let (access, keys_file) = access(config, &env)?;
        let otel_settings = otel::TracingSettings::read(collectors::spans(loaded, &env), &env)?;
        let push_settings = collectors::metrics(loaded, &env)?;
        let pipeline = TelemetryPipeline::start(config, &otel_settings, logs, &pool, &access)?;
        let TelemetryPipeline { telemetry, buckets, .. } = &pipeline;
        listeners.gate.set_health_checkers(configured.len());
        let client = HttpClient::with_tls(config.timeouts, outbound.clone())
            .with_descriptors(listeners.gate.descriptors().clone());
        let health_check_supervisor = server::start_health_checks(
            &pool,
            &client,
            config.scrape,
            telemetry,
            FIRST_SCRAPE_TIMEOUT,
        )
        .await;
        let keys_access = access.clone();
        let watch = |file: KeysFileWatcher| move || file.clone().watch(keys_access.clone());
        let keys_task =
            keys_file.map(|file| supervise::spawn(BackgroundTask::KeysFile, watch(file)));
        let mut background_tasks: Vec<SupervisedTask> = keys_task.into_iter().collect();
        let (configuration, requests) = ActiveConfiguration::new(loaded.view(), started_at);
        let body_memory = config.limits.body_memory(memory_limit::available_bytes());
        let shared_state = SharedState {
            pool: pool.clone(),
            access,
            admission: Arc::new(AdmissionController::new(pool.clone(), admission(config))),
            gate: listeners.gate.clone(),
            outbound: outbound.clone(),
            files: listeners.files,
            body_memory: Arc::new(BodyMemory::new(body_memory)),
            telemetry: telemetry.clone(),
            live: ExchangeRegistry::new(observation(config, buckets)?, clock::now()),
            propagation: otel_settings.propagation(clock::now()),
            captured: pipeline.trace_capture_ratio(config),
            payload_sampling: pipeline.payload_sampling(config),
            buckets: buckets.clone(),
        };
        let admin_settings =
            AdminSettings { guard: guard(config, &env)?, trace_ui: config.tracing.ui.clone() };
        let admin =
            build_admin(admin_settings, &shared_state, &pipeline, &listeners, &configuration);
        let admin = Arc::new(admin);
        let diagnosis = build_diagnosis_task(&shared_state, &pipeline, &admin);
        let diagnosis = move || diagnosis.clone().run();
        background_tasks.push(supervise::spawn(BackgroundTask::Diagnosis, diagnosis));
        let metrics_push = push_settings
            .as_ref()
            .map(|settings| collectors::push(settings, &admin, started_at))
            .transpose()?;
        let BoundListeners { clients, operators: admin_listener, limits, connections, tls, .. } =
            listeners;
        tls.credentials.register_outbound(TlsPeer::Backend, &outbound);
        let span_outbound = pipeline.otel.as_ref().and_then(SpanSink::outbound);
        let push_outbound = metrics_push.as_ref().map(MetricsPusher::outbound);
        for outbound in span_outbound.into_iter().chain(push_outbound) {
            tls.credentials.register_outbound(TlsPeer::Collector, outbound);
        }
        let gateway = new_arc_swap(shared_state.gateway(
            config,
            RetryController::new(config.retry),
            client.clone(),
            &env,
        )?);
        let limits = new_arc_swap(limits);
        let reloader = Reloader {
            loaded: loaded.clone(),
            overrides,
            file,
            hangups,
            requests,
            sources,
            shared_state,
            client,
            health_check_supervisor,
            gateway: gateway.clone(),
            limits: limits.clone(),
            configuration,
        };
        // Listens last: no step after this can fail, so no client waits in the backlog in vain.
        let client_listener = clients.listen()?;
        let server = Server {
            client_listener,
            admin_listener,
            gateway,
            admin,
            limits,
            connection_limiter: connections,
            tls,
        };
        Ok(Self {
            listen,
            operators,
            traces: otel_settings.endpoint.filter(|_| pipeline.otel.is_some()),
            pushed_to: push_settings.map(|settings| settings.endpoint),
            captured_in: config.trace_capture.file.clone(),
            connections: max_connections,
            is_https,
            pool,
            server,
            dispatcher: pipeline.telling,
            otel: pipeline.otel,
            metrics_push,
            _capture_worker: pipeline.capturing,
            _payload_worker: pipeline.payload_worker,
            _quality_worker: pipeline.sampling,
            reloader,
            _background_tasks: background_tasks,
        })
    }

    /// Serves until `shutdown`, drains, and exports the remaining spans and metrics. Fails if a
    /// required task of the gateway ends.
    pub(crate) async fn run(
        self,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), BackgroundTask> {
        // The mutex keeps the state if a reload panics and the task is restarted.
        let reloader = Arc::new(Mutex::new(self.reloader));
        let reloading = supervise::spawn(BackgroundTask::Reload, move || {
            let reloader = reloader.clone();
            async move { reloader.lock().await.run().await }
        });
        let watchdog = supervise::spawn(BackgroundTask::SystemdWatchdog, systemd::alive);
        let shutdown = async {
            shutdown.await;
            systemd::stopping();
        };
        systemd::ready();
        // On a worker thread: on the thread of `block_on`, each new or closed connection would wake
        // two threads instead of one.
        let drained = tokio::spawn(self.server.run(shutdown)).await;
        let drained = drained.unwrap_or_else(|_| {
            supervise::record_panic(BackgroundTask::Listener);
            DrainOutcome::TaskFailed(BackgroundTask::Listener)
        });
        drop(watchdog);
        // Waits for the end of the task, which drops the reloader and its health checkers.
        reloading.stop().await;
        drop(self.dispatcher);
        let spans = async {
            if let Some(otel) = self.otel {
                otel.shutdown().await;
            }
        };
        let metrics = async {
            if let Some(push) = self.metrics_push {
                push.shutdown().await;
            }
        };
        tokio::join!(spans, metrics);
        match drained {
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

/// A value that reloads replace.
fn new_arc_swap<T>(value: T) -> Arc<ArcSwap<T>> {
    Arc::new(ArcSwap::from_pointee(value))
}

/// The pool, before the first health checks.
fn build_pool(config: &Config, backends: Vec<Backend>) -> Arc<BackendPool> {
    let pool = BackendPool::new(backends, &config.models, config.routing.policy(&config.slos));
    let pool = pool.with_panic_threshold(config.circuit_breaker.panic_threshold);
    let pool = pool.with_max_model_labels(config.metrics.max_models);
    Arc::new(pool.with_shadow_policies(&config.routing.shadow))
}

/// Settings of the admin listener that are not in the shared state.
struct AdminSettings {
    guard: AdminAuthorizer,
    /// URL template of the trace viewer.
    trace_ui: Option<String>,
}

fn build_admin(
    settings: AdminSettings,
    shared_state: &SharedState,
    pipeline: &TelemetryPipeline,
    listeners: &BoundListeners,
    configuration: &Arc<ActiveConfiguration>,
) -> Admin {
    let connections = listeners.connections.clone();
    Admin {
        authorizer: settings.guard,
        trace_ui_url: settings.trace_ui,
        recent_requests: pipeline.recent.clone(),
        pool: shared_state.pool.clone(),
        access: shared_state.access.clone(),
        admission: shared_state.admission.clone(),
        telemetry: shared_state.telemetry.clone(),
        decisions: pipeline.explanations.clone(),
        open_streams: shared_state.live.clone(),
        body_memory: shared_state.body_memory.clone(),
        draining: Arc::new(AtomicBool::new(false)),
        span_counts: span_counts(pipeline.otel.as_ref()),
        capture_counter: pipeline.captured.clone(),
        log_counts: pipeline.logs.clone(),
        quality: pipeline.quality.clone(),
        push_counter: metrics_push::MetricsPushStats::default(),
        connection_stats: Box::new(move || connections.snapshot()),
        credentials: listeners.tls.credentials.clone(),
        diagnosis: Arc::<LatestDiagnosis>::default(),
        configuration: configuration.clone(),
    }
}

fn build_diagnosis_task(
    shared_state: &SharedState,
    pipeline: &TelemetryPipeline,
    admin: &Admin,
) -> DiagnosisTask {
    DiagnosisTask {
        pool: shared_state.pool.clone(),
        admission: shared_state.admission.clone(),
        tallies: pipeline.tallies.clone(),
        board: admin.diagnosis.clone(),
    }
}
