//! The options of the gateway. Only this file names all of them. It starts and reloads them, and collects their
//! metrics and their parts of the status.

mod access;
mod attached;
mod backends;
mod sinks;

pub use backends::BackendOptions;
pub(super) use backends::{obstacle, quota_scope};
pub(super) use sinks::Sinks;

use super::diagnosis;
use super::error::ApplicationError;
use crate::config::Config;
use access::AccessExtras;
use attached::AttachedOptions;
use continuation::{ContinuationSettings, ContinuationStreams};
use gpu::GpuMonitor;
use model_split::ModelSplits;
use prefill_legs::PrefillLegs;
use resume::Resumption;
use sessions::SessionAdmission;
use std::sync::Arc;
use tokenweir_api::StatusCheck;
use tokenweir_gateway::metric::{MetricDescriptor, counted, counts};
use tokenweir_gateway::proxy::ProxyContext;
use tokenweir_gateway::proxy::extensions::Extensions;
use tokenweir_gateway::proxy::option::{RequestOption, RequestOptions};
use tokenweir_gateway::status::StatusSource;
use tokenweir_gateway::telemetry::catalog;
use tokenweir_gateway::telemetry::decision_log::DecisionPart;
use tokenweir_gateway::telemetry::otel;
use tokenweir_gateway::telemetry::otel::resource::host_name;
use tokenweir_net::client::HttpClient;
use tokenweir_net::supervise::BackgroundTask;
use tokenweir_option::DiagnosisHooks;
use tokenweir_request::observe::Sink;
use tokenweir_settings::Environment;
use webhooks::{WebhookNotifier, WebhookSettings};

pub use tokenweir_canary as canary;
pub use tokenweir_continuation as continuation;
use tokenweir_discovery as discovery;
pub use tokenweir_gpu as gpu;
pub use tokenweir_jwt as jwt;
pub use tokenweir_kv_event_routing as kv_event_routing;
pub use tokenweir_model_split as model_split;
pub use tokenweir_payload_log as payload_log;
pub use tokenweir_peer_exchange as peer_exchange;
pub use tokenweir_prefill_legs as prefill_legs;
pub use tokenweir_quality as quality;
pub use tokenweir_ranks as ranks;
pub use tokenweir_resume as resume;
pub use tokenweir_sessions as sessions;
pub use tokenweir_shared_limits as shared_limits;
pub use tokenweir_sleep as sleep;
pub use tokenweir_trace_capture as trace_capture;
pub use tokenweir_usage_log as usage_log;
pub use tokenweir_webhooks as webhooks;

/// What options add to an entry of the decision log.
const DECISION_PARTS: &[DecisionPart] = &[
    prefill_legs::add_to_decision,
    continuation::add_to_decision,
    resume::add_to_decision,
    model_split::add_to_decision,
];

/// The checks of the options by `tokenweir doctor`.
const STATUS_CHECKS: &[StatusCheck] = &[webhooks::check, gpu::check];

/// The background tasks of the core and of options, in the order of metrics.
const BACKGROUND_TASKS: &[BackgroundTask] = &[
    BackgroundTask::LISTENER,
    BackgroundTask::CONNECTION,
    BackgroundTask::ADMIN_LISTENER,
    BackgroundTask::REQUEST,
    BackgroundTask::ROUTING,
    BackgroundTask::STALL_SWEEP,
    BackgroundTask::MEMORY_WATCH,
    BackgroundTask::CERTIFICATES,
    BackgroundTask::ADMISSION,
    BackgroundTask::DRAIN_PROGRESS,
    BackgroundTask::RELOAD,
    BackgroundTask::SYSTEMD_WATCHDOG,
    BackgroundTask::HEALTH_CHECK,
    discovery::TASK,
    gpu::TASK,
    kv_event_routing::TASK,
    peer_exchange::TASK,
    shared_limits::TASK,
    BackgroundTask::DIAGNOSIS,
    webhooks::TASK,
    BackgroundTask::KEYS_FILE,
    jwt::TASK,
    BackgroundTask::SPAN_EXPORT,
    BackgroundTask::RECORD_SINK,
    BackgroundTask::LOG_WRITER,
    payload_log::TASK,
    quality::TASK,
    usage_log::TASK,
];

/// The metric of the background tasks.
const TASK_ROWS: &[MetricDescriptor] = &[counts(
    "tokenweir_task_panics_total",
    "Panics of background tasks. The log has the location.",
    &[counted("task", |_| {
        let tasks = background_tasks().into_iter();
        tasks.map(|task| (task.as_str(), task.panics())).collect()
    })],
)];

/// The options of the path of a request.
pub struct RequestExtras {
    /// The options that one line attaches.
    attached: Arc<AttachedOptions>,
    /// The continuation of streams at other backends.
    pub continuation: Arc<ContinuationStreams>,
    /// The requests to whose responses clients can return.
    pub resumption: Arc<Resumption>,
    /// The models whose requests are split over versions.
    pub splits: Arc<ModelSplits>,
}

/// What options add to an entry of the decision log.
pub fn decision_parts() -> Vec<DecisionPart> {
    let attached = attached::DECISION_PARTS.concat();
    [DECISION_PARTS, &attached].concat()
}

/// The checks of the options by `tokenweir doctor`.
pub fn status_checks() -> Vec<StatusCheck> {
    let attached = attached::STATUS_CHECKS.concat();
    [STATUS_CHECKS, &attached].concat()
}

/// The background tasks of the core and of options, in the order of metrics.
pub fn background_tasks() -> Vec<BackgroundTask> {
    let attached = attached::TASKS.concat();
    [BACKGROUND_TASKS, &attached].concat()
}

/// Returns the rows of all metrics, in the order of the metrics reference: those of the core, and those of
/// each option.
pub fn metric_rows() -> impl Iterator<Item = &'static MetricDescriptor> {
    let first = [TASK_ROWS, ranks::rows::ROWS];
    let later = [
        prefill_legs::rows::ROWS,
        continuation::rows::ROWS,
        resume::rows::ROWS,
        kv_event_routing::rows::ROWS,
        peer_exchange::rows::ROWS,
        diagnosis::rows::ROWS,
        webhooks::rows::ROWS,
        gpu::rows::ROWS,
        quality::rows::ROWS,
        otel::rows::ROWS,
        trace_capture::rows::ROWS,
        payload_log::rows::ROWS,
        usage_log::rows::ROWS,
        sessions::rows::ROWS,
        model_split::rows::ROWS,
        jwt::rows::ROWS,
        shared_limits::rows::ROWS,
    ];
    let options = first.into_iter().flatten().chain(attached_rows());
    catalog::rows()
        .chain(options)
        .chain(later.into_iter().flatten())
}

/// Returns the rows of the metrics of the options that one line attaches.
pub fn attached_rows() -> impl Iterator<Item = &'static MetricDescriptor> {
    attached::ROWS.iter().copied().flatten()
}

/// Returns the number of pages that options scrape.
pub(super) fn scraped_pages(config: &Config) -> usize {
    config.gpu.exporters.len()
}

/// The destinations to which options write requests, as texts for the start banner. `None`: the option is off.
pub(super) struct OutputTargets {
    /// The file of the trace capture.
    pub(super) capture: Option<String>,
    /// The destination of prompts and responses in the payload log.
    pub(super) payloads: Option<String>,
    /// The destination of prompts and responses for quality monitoring.
    pub(super) quality: Option<String>,
}

/// The options that have a state.
pub(crate) struct Extras {
    /// The options that work with backends.
    pub(super) backends: BackendOptions,
    /// The options that handle requests.
    pub(super) request: RequestExtras,
    gpus: Arc<GpuMonitor>,
    webhooks: Arc<WebhookNotifier>,
    sessions: Arc<SessionAdmission>,
    /// The options that control the access of clients.
    access: AccessExtras,
}

/// The settings of options that come from secret files.
pub(super) struct SecretSettings {
    webhooks: WebhookSettings,
}

impl OutputTargets {
    /// Reads the targets from the configuration.
    pub(super) fn new(config: &Config) -> Self {
        let capture = config.trace_capture.file.as_ref();
        Self {
            capture: capture.map(|file| file.display().to_string()),
            payloads: config.log.payloads.target(),
            quality: config.quality.target(),
        }
    }

    /// Returns the lines of the banner, each with its name.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        if let Some(file) = &self.capture {
            lines.push(("capture", format!("to {file}, without texts of requests")));
        }
        if let Some(target) = &self.payloads {
            lines.push((
                "payloads",
                format!("PROMPTS AND RESPONSES of {target} (log.payloads)"),
            ));
        }
        if let Some(target) = &self.quality {
            lines.push((
                "quality",
                format!("PROMPTS AND RESPONSES of {target} (quality)"),
            ));
        }
        lines
    }
}

impl RequestExtras {
    /// The options with the settings of a configuration.
    pub fn of(config: &Config, backends: &BackendOptions) -> Self {
        let extras = Self::new(backends);
        extras.configure(config);
        extras
    }

    /// The options before their settings are applied, and those that know the backends, too.
    pub fn new(backends: &BackendOptions) -> Self {
        Self {
            attached: backends.attached.clone(),
            continuation: Arc::default(),
            resumption: Arc::default(),
            splits: Arc::default(),
        }
    }

    /// Applies the settings of a configuration to new requests.
    fn configure(&self, config: &Config) {
        self.resumption.configure(config.streams.resume.settings());
        self.continuation.configure(ContinuationSettings {
            mode: config.streams.continuation,
            is_greedy_only: config.streams.continuation_greedy_only,
            memory_bytes: config.limits.continuation_memory,
        });
        self.splits.configure(&config.models, &config.slos);
    }

    /// Attaches the options, in the order of their steps.
    pub fn attach(&self, extensions: &mut Extensions) {
        let mut options: Vec<Arc<dyn RequestOption>> = vec![
            self.resumption.clone(),
            Arc::new(PrefillLegs),
            self.continuation.clone(),
            self.splits.clone(),
        ];
        options.extend(self.attached.parts.requests.iter().cloned());
        extensions.add(Arc::new(RequestOptions(options)));
        extensions.add(self.resumption.clone());
    }

    /// Functions that add the blocks of the options to a status.
    pub fn status_sources(&self) -> Vec<StatusSource> {
        let mut sources = vec![
            resume::rows::status_source(self.resumption.clone()),
            continuation::rows::status_source(self.continuation.clone()),
            model_split::rows::status_source(self.splits.clone()),
        ];
        sources.extend(self.attached.parts.status_sources.iter().cloned());
        sources
    }

    /// The sinks that get records in batches.
    pub fn sinks(&self) -> Vec<Arc<dyn Sink>> {
        let mut sinks: Vec<Arc<dyn Sink>> = vec![self.splits.clone()];
        sinks.extend(self.attached.parts.sinks.iter().cloned());
        sinks
    }
}

impl Extras {
    pub(super) fn start(
        config: &Config,
        proxy: &ProxyContext,
        backends: BackendOptions,
        request: RequestExtras,
        env: impl Environment,
    ) -> Result<Self, ApplicationError> {
        let secrets = SecretSettings::read(config, env)?;
        let access = AccessExtras::start(config, proxy, &backends)?;
        let sessions = SessionAdmission::new(&proxy.state, backends.sharing());
        let extras = Self {
            backends,
            request,
            sessions: Arc::new(sessions),
            access,
            gpus: Arc::default(),
            webhooks: Arc::default(),
        };
        extras.gpus.configure(&config.gpu, &proxy.backend_client);
        extras.sessions.configure(config.sessions);
        extras.webhooks.configure(secrets.webhooks);
        Ok(extras)
    }

    /// Applies the settings of a reload. `client`: the client with these settings.
    pub(super) fn reload(
        &self,
        previous: &Config,
        config: &Config,
        secrets: SecretSettings,
        client: &HttpClient,
    ) {
        self.backends.configure(config);
        self.request.configure(config);
        if config.timeouts != previous.timeouts || config.gpu != previous.gpu {
            self.gpus.configure(&config.gpu, client);
        }
        self.sessions.configure(config.sessions);
        // The content of a token file may have changed while its path has not.
        self.webhooks.configure(secrets.webhooks);
    }

    /// Returns functions that add the blocks of options to a status, in the order of `/status`. `sinks`: the
    /// functions of the span export and of the options' sinks.
    pub(super) fn status_sources(&self, sinks: Vec<StatusSource>) -> Vec<StatusSource> {
        let mut sources = vec![
            gpu::rows::status_source(self.gpus.clone()),
            webhooks::rows::status_source(self.webhooks.clone()),
        ];
        sources.extend(self.backends.status_sources());
        sources.extend(sinks);
        sources.extend(self.request.status_sources());
        sources.push(sessions::rows::status_source(self.sessions.clone()));
        sources.extend(self.access.status_sources());
        sources
    }

    /// What the options tell the diagnosis, and learn from it.
    pub(super) fn diagnosis_hooks(&self) -> Vec<Arc<dyn DiagnosisHooks>> {
        let mut hooks: Vec<Arc<dyn DiagnosisHooks>> = vec![
            self.gpus.clone(),
            self.request.splits.clone(),
            self.webhooks.clone(),
        ];
        if let Some(exchange) = self.backends.exchange() {
            hooks.push(exchange);
        }
        hooks.extend(self.request.attached.parts.diagnosis.iter().cloned());
        hooks
    }

    /// Stores what must outlast the process, after the last request.
    pub(super) async fn shutdown(&self) {
        self.access.shutdown().await;
    }
}

impl SecretSettings {
    pub(super) fn read(config: &Config, env: impl Environment) -> Result<Self, ApplicationError> {
        let host = host_name();
        let gateway = format!("{host}:{}", config.admin.port());
        let runbooks = format!("{}/runbooks", config.admin_url(&host));
        Ok(Self {
            webhooks: WebhookSettings::new(&config.webhooks, gateway, runbooks, env)?,
        })
    }
}
