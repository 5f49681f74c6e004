//! The options of the gateway. Only this file names all of them. It starts and reloads them, and collects their
//! metrics and their parts of the status.

mod access;
mod backends;

pub(super) use access::quota_scope;
pub use backends::BackendOptions;
pub(super) use backends::obstacle;

use super::diagnosis::{self, DiagnosisHooks};
use super::error::{ApplicationError, in_part};
use crate::config::Config;
use access::AccessExtras;
use continuation::{ContinuationSettings, ContinuationStreams};
use gpu::{GpuFacet, GpuMonitor};
use model_split::ModelSplits;
use payload_log::PayloadLog;
use prefill_legs::PrefillLegs;
use quality::QualityMonitor;
use resume::Resumption;
use sessions::SessionAdmission;
use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tokenweir_api::StatusCheck;
use tokenweir_diagnose::{Diagnosis, DiagnosisSample, GatewayConditions};
use tokenweir_engine::address::BackendId;
use tokenweir_gateway::backend::Backend;
use tokenweir_gateway::metric::{MetricDescriptor, MetricLabel};
use tokenweir_gateway::proxy::extensions::Extensions;
use tokenweir_gateway::proxy::option::RequestOptions;
use tokenweir_gateway::proxy::{ProxyContext, TextSample, TextSampling};
use tokenweir_gateway::status::StatusSource;
use tokenweir_gateway::telemetry::catalog;
use tokenweir_gateway::telemetry::decision_log::DecisionPart;
use tokenweir_gateway::telemetry::otel;
use tokenweir_gateway::telemetry::otel::resource::host_name;
use tokenweir_net::client::HttpClient;
use tokenweir_net::supervise::BackgroundTask;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::TextConsumer;
use tokenweir_settings::Environment;
use trace_capture::TraceCapture;
use usage_log::UsageLog;
use webhooks::{WebhookNotifier, WebhookSettings};

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

/// The consumers of sampled prompts and responses.
const PAYLOAD_LOG: TextConsumer = TextConsumer::new(0);
const QUALITY: TextConsumer = TextConsumer::new(1);

/// The functions with which options add to an entry of the decision log.
pub const DECISION_PARTS: &[DecisionPart] = &[
    prefill_legs::add_to_decision,
    continuation::add_to_decision,
    resume::add_to_decision,
    model_split::add_to_decision,
];

/// The checks of the options by `tokenweir doctor`.
pub const STATUS_CHECKS: &[StatusCheck] = &[webhooks::check, gpu::check];

/// The background tasks of the core and of options, in the order of the metrics.
pub const BACKGROUND_TASKS: &[BackgroundTask] = &[
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
const TASK_ROWS: &[MetricDescriptor] = &[MetricDescriptor::counts(
    "tokenweir_task_panics_total",
    "Panics of background tasks. The log has the location.",
    &[MetricLabel::counted("task", |_| {
        let tasks = BACKGROUND_TASKS.iter();
        tasks.map(|task| (task.as_str(), task.panics())).collect()
    })],
)];

/// The options that handle requests.
#[derive(Default)]
pub struct RequestExtras {
    /// The continuation of streams at other backends.
    pub continuation: Arc<ContinuationStreams>,
    /// The requests to whose responses clients can return.
    pub resumption: Arc<Resumption>,
    /// The models whose requests are split over versions.
    pub splits: Arc<ModelSplits>,
}

/// Returns the rows of all metrics, in the order of the metrics reference: first the core, and then each
/// option.
pub fn metric_rows() -> impl Iterator<Item = &'static MetricDescriptor> {
    let options = [
        TASK_ROWS,
        ranks::rows::ROWS,
        sleep::rows::ROWS,
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
    catalog::rows().chain(options.into_iter().flatten())
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

/// The started sinks, each with its counts and its worker.
#[derive(Default)]
pub(super) struct Sinks {
    /// The sinks that get records in batches.
    pub(super) batched: Vec<Arc<dyn Sink>>,
    /// The sinks that get each record at the end of its request.
    pub(super) immediate: Vec<Arc<dyn Sink>>,
    /// The guards of their workers.
    pub(super) guards: Vec<Box<dyn Any + Send>>,
    /// Futures that the shutdown awaits.
    pub(super) ends: Vec<Pin<Box<dyn Future<Output = ()> + Send>>>,
    pub(super) status_sources: Vec<StatusSource>,
    /// The consumers of prompts and responses, each with its sample.
    samples: Vec<TextSample>,
}

// === impl OutputTargets ===

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

// === impl RequestExtras ===

impl RequestExtras {
    /// The options with the settings of `config`.
    pub fn of(config: &Config) -> Self {
        let extras = Self::default();
        extras.configure(config);
        extras
    }

    /// Applies the settings of `config` to new requests.
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
        extensions.add(Arc::new(RequestOptions(vec![
            self.resumption.clone(),
            Arc::new(PrefillLegs),
            self.continuation.clone(),
            self.splits.clone(),
        ])));
        extensions.add(self.resumption.clone());
    }

    /// Functions that add the blocks of the options to a status.
    pub fn status_sources(&self) -> [StatusSource; 3] {
        [
            resume::rows::status_source(self.resumption.clone()),
            continuation::rows::status_source(self.continuation.clone()),
            model_split::rows::status_source(self.splits.clone()),
        ]
    }
}

// === impl Extras ===

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

    /// Stores, after the last request, the state that must outlast the process.
    pub(super) async fn shutdown(&self) {
        self.access.shutdown().await;
    }
}

impl DiagnosisHooks for Extras {
    /// Also adds to each sample whether the GPUs of the backend lower their clock.
    fn complete_samples(
        &self,
        backends: &[Arc<Backend>],
        samples: &mut [(BackendId, DiagnosisSample)],
        now: Instant,
    ) {
        let assignment = self.gpus.assign_to(backends, now);
        let conditions = assignment.conditions();
        for ((backend, (_, sample)), condition) in backends.iter().zip(samples).zip(conditions) {
            let is_throttled = condition.as_ref().and_then(|gpus| gpus.is_throttled);
            if let Some(gpus) = backend.facets.get::<GpuFacet>() {
                gpus.is_throttled.set(is_throttled.unwrap_or(false));
            }
            sample.gpus = condition;
        }
    }

    fn complete_conditions(&self, gateway: &mut GatewayConditions, now: Instant) {
        gateway.versions_taken_out = self.request.splits.taken_out();
        gateway.connected_gateways = self.backends.connected_gateways(now);
    }

    /// Passes the diagnosis to the webhooks.
    fn on_diagnosis(&self, diagnosis: &Diagnosis, now: Instant, wall_time: SystemTime) {
        self.webhooks.update(diagnosis, now, wall_time);
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

// === impl Sinks ===

impl Sinks {
    /// Starts the configured sinks of options.
    pub(super) fn add_options(
        &mut self,
        config: &Config,
        request: &RequestExtras,
        env: impl Environment,
    ) -> Result<(), ApplicationError> {
        self.batched.push(request.splits.clone());
        self.add_trace_capture(config)?;
        self.add_payload_log(config)?;
        self.add_quality(config)?;
        self.add_usage_log(config, env)
    }

    /// Returns the sampling of prompts and responses. `None`: no text is sampled.
    pub(super) fn text_sampling(&self, config: &Config) -> Option<TextSampling> {
        if self.samples.is_empty() {
            return None;
        }
        let max_text_bytes = config.log.payloads.excerpt_bytes();
        Some(TextSampling {
            samples: self.samples.clone(),
            max_text_bytes,
        })
    }

    /// Adds the trace capture. It starts only if a file is configured.
    fn add_trace_capture(&mut self, config: &Config) -> Result<(), ApplicationError> {
        let settings = &config.trace_capture;
        let mut running = None;
        if let Some(file) = &settings.file {
            let problem = format!(
                "cannot write the capture file {} (trace_capture.file)",
                file.display()
            );
            let max_bytes = config.log.max_file_bytes as u64;
            let started = TraceCapture::start(file, max_bytes, settings.sample);
            let (capture, guard) = started.map_err(in_part(problem))?;
            running = Some(self.add(capture, guard));
        }
        self.status_sources
            .push(trace_capture::rows::status_source(running));
        Ok(())
    }

    /// Adds the payload log. It starts only if it is enabled.
    fn add_payload_log(&mut self, config: &Config) -> Result<(), ApplicationError> {
        let settings = &config.log.payloads;
        let max_bytes = config.log.max_file_bytes as u64;
        let started = PayloadLog::start(settings, max_bytes, PAYLOAD_LOG);
        let started = started.map_err(in_part("cannot start the payload log (log.payloads)"))?;
        let Some((payload_log, guard)) = started else {
            return Ok(());
        };
        let payload_log = self.add(payload_log, guard);
        self.status_sources
            .push(payload_log::rows::status_source(payload_log));
        let share = settings.sample;
        self.samples.push(TextSample {
            consumer: PAYLOAD_LOG,
            share,
            is_by_trace: false,
        });
        Ok(())
    }

    /// Adds quality monitoring. It starts only if it is enabled.
    fn add_quality(&mut self, config: &Config) -> Result<(), ApplicationError> {
        let settings = &config.quality;
        let max_bytes = config.log.max_file_bytes as u64;
        let redaction = config.log.payloads.redaction();
        let started = QualityMonitor::start(settings, &redaction, max_bytes, QUALITY);
        let started = started.map_err(in_part("cannot start the quality samples (quality)"))?;
        let mut running = None;
        if let Some((quality, guard)) = started {
            if guard.is_some() {
                let share = settings.share();
                self.samples.push(TextSample {
                    consumer: QUALITY,
                    share,
                    is_by_trace: true,
                });
            }
            running = Some(self.add(quality, guard));
        }
        self.status_sources
            .push(quality::rows::status_source(running));
        Ok(())
    }

    /// Adds the usage log. It starts only if a file is configured.
    fn add_usage_log(
        &mut self,
        config: &Config,
        env: impl Environment,
    ) -> Result<(), ApplicationError> {
        let mut running = None;
        if let Some(settings) = config.usage_log.settings(&host_name(), env)? {
            let file = settings.file.display();
            let problem = format!("cannot write the usage log {file} (usage_log.file)");
            let (log, guard) = UsageLog::start(settings).map_err(in_part(problem))?;
            let log = Arc::new(log);
            self.immediate.push(log.clone());
            self.ends.push(Box::pin(guard.shutdown()));
            running = Some(log);
        }
        self.status_sources
            .push(usage_log::rows::status_source(running));
        Ok(())
    }

    /// Adds a sink and the guard of its worker. Returns the sink.
    fn add<S: Sink + 'static>(&mut self, sink: S, guard: impl Any + Send) -> Arc<S> {
        let sink = Arc::new(sink);
        self.batched.push(sink.clone());
        self.guards.push(Box::new(guard));
        sink
    }
}
