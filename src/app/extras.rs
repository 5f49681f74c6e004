//! The options of the gateway. No other file names all of them: here they are started and reloaded, and here
//! their metrics and their parts of the status are put together.

use super::diagnosis::{self, DiagnosisHooks};
use super::error::{ApplicationError, in_part};
use crate::config::Config;
use gpu::{GpuBackend, GpuMonitor};
use payload_log::PayloadLog;
use quality::QualityMonitor;
use sessions::SessionAdmission;
use std::any::Any;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tokenweir_diagnose::Diagnosis;
use tokenweir_engine::gpu::GpuCondition;
use tokenweir_gateway::backend::Backend;
use tokenweir_gateway::backend::facets::exchange::{self, PeerExchange};
use tokenweir_gateway::backend::facets::kv_events::{self, CacheKnowledge};
use tokenweir_gateway::backend::facets::{ranks, sleep};
use tokenweir_gateway::metric::MetricDescriptor;
use tokenweir_gateway::proxy::rows::{continuation, prefill_leg, resume};
use tokenweir_gateway::proxy::{ProxyContext, ProxyState, TextSample, TextSampling};
use tokenweir_gateway::status::{StatusBlocks, StatusSource};
use tokenweir_gateway::telemetry::catalog;
use tokenweir_gateway::telemetry::otel;
use tokenweir_gateway::telemetry::otel::resource::host_name;
use tokenweir_net::client::HttpClient;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::TextConsumer;
use trace_capture::TraceCapture;
use webhooks::{WebhookNotifier, WebhookSettings};

pub use tokenweir_gpu as gpu;
pub use tokenweir_payload_log as payload_log;
pub use tokenweir_quality as quality;
pub use tokenweir_sessions as sessions;
pub use tokenweir_trace_capture as trace_capture;
pub use tokenweir_webhooks as webhooks;

/// The consumers of sampled prompts and responses.
const PAYLOAD_LOG: TextConsumer = TextConsumer::new(0);
const QUALITY: TextConsumer = TextConsumer::new(1);

/// Returns the rows of all metrics, in the order of the metrics reference: those of the core, and those of
/// each option.
pub fn metric_rows() -> impl Iterator<Item = &'static MetricDescriptor> {
    let options = [
        ranks::rows::ROWS,
        sleep::rows::ROWS,
        prefill_leg::ROWS,
        continuation::ROWS,
        resume::ROWS,
        kv_events::rows::ROWS,
        exchange::rows::ROWS,
        diagnosis::rows::ROWS,
        webhooks::rows::ROWS,
        gpu::rows::ROWS,
        quality::rows::ROWS,
        otel::rows::ROWS,
        trace_capture::rows::ROWS,
        payload_log::rows::ROWS,
        sessions::rows::ROWS,
    ];
    catalog::rows().chain(options.into_iter().flatten())
}

/// Adds the blocks of options to the status of a backend.
pub fn add_backend_blocks(backend: &Backend, blocks: &mut StatusBlocks) {
    blocks.add(backend.facets.ranks.status());
    blocks.add(backend.facets.sleep.counts());
    let cache = backend.facets.kv_events.cache();
    blocks.add(cache.map(|cache| cache.status()));
}

/// Returns the number of pages that options scrape.
pub(super) fn scraped_pages(config: &Config) -> usize {
    config.gpu.exporters.len()
}

/// Where options write requests, as texts of the start banner. `None`: the option is off.
pub(super) struct OutputTargets {
    /// The file of the trace capture.
    pub(super) capture: Option<String>,
    /// Where the payload log writes prompts and responses.
    pub(super) payloads: Option<String>,
    /// Where quality monitoring sends prompts and responses.
    pub(super) quality: Option<String>,
}

/// The options that run beside the path of requests.
pub(crate) struct Extras {
    gpus: Arc<GpuMonitor>,
    webhooks: Arc<WebhookNotifier>,
    sessions: Arc<SessionAdmission>,
}

/// The settings of options that are read from files of secrets.
pub(super) struct SecretSettings {
    webhooks: WebhookSettings,
}

/// The sinks of options that have been started.
#[derive(Default)]
pub(super) struct ExtraSinks {
    /// The sinks. They get records in batches.
    pub(super) sinks: Vec<Arc<dyn Sink>>,
    /// The guards of their workers.
    pub(super) guards: Vec<Box<dyn Any + Send>>,
    pub(super) status_sources: Vec<StatusSource>,
    /// The consumers of prompts and responses, each with its sample.
    samples: Vec<TextSample>,
}

/// The parts of the gateway whose status is that of an option.
pub(super) struct OptionParts<'a> {
    pub(super) exchange: Option<Arc<PeerExchange>>,
    pub(super) cache_knowledge: Arc<CacheKnowledge>,
    pub(super) proxy: &'a ProxyState,
    /// The status sources of spans and of the sinks of options.
    pub(super) sinks: Vec<StatusSource>,
}

// === impl OutputTargets ===

impl OutputTargets {
    /// Reads the targets from the configuration.
    pub(super) fn new(config: &Config) -> Self {
        let capture = config.trace_capture.file.as_ref();
        Self {
            capture: capture.map(|file| file.display().to_string()),
            payloads: payload_target(config),
            quality: quality_target(config),
        }
    }

    /// Returns the lines of the banner, each with its name.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        if let Some(file) = &self.capture {
            lines.push(("capture", format!("to {file}, without texts of requests")));
        }
        if let Some(target) = &self.payloads {
            lines.push(("payloads", format!("PROMPTS AND RESPONSES of {target} (log.payloads)")));
        }
        if let Some(target) = &self.quality {
            lines.push(("quality", format!("PROMPTS AND RESPONSES of {target} (quality)")));
        }
        lines
    }
}

/// Returns the file of the payload log and the share of requests that it logs, as text. `None`: the
/// payload log is disabled.
fn payload_target(config: &Config) -> Option<String> {
    let payloads = &config.log.payloads;
    let file = payloads.file.as_ref()?;
    Some(format!("{} % of requests to {}", payloads.sample * 1e2, file.display()))
}

/// Returns the file and the judge of quality monitoring and the share of sampled requests, as text.
/// `None`: no request is sampled.
fn quality_target(config: &Config) -> Option<String> {
    let quality = &config.quality;
    let file = quality.file.as_ref().map(|file| file.display().to_string());
    let targets: Vec<String> = file.into_iter().chain(quality.judge.clone()).collect();
    let share = quality.share() * 1e2;
    (share > 0.0).then(|| format!("{share} % of requests to {}", targets.join(" and ")))
}

// === impl Extras ===

impl Extras {
    /// Starts the options.
    pub(super) fn start(
        config: &Config,
        proxy: &ProxyContext,
        exchange: Option<Arc<PeerExchange>>,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ApplicationError> {
        let secrets = SecretSettings::read(config, env)?;
        let sessions = Arc::new(SessionAdmission::new(&proxy.state, exchange));
        let extras = Self { gpus: Arc::default(), webhooks: Arc::default(), sessions };
        extras.gpus.configure(&config.gpu, &proxy.backend_client);
        extras.sessions.configure(config.sessions);
        extras.webhooks.configure(secrets.webhooks);
        Ok(extras)
    }

    /// Applies the settings of a reload. `has_new_client`: the client has other settings than before.
    pub(super) fn reload(
        &self,
        previous: &Config,
        config: &Config,
        secrets: SecretSettings,
        client: &HttpClient,
        has_new_client: bool,
    ) {
        if has_new_client || config.gpu != previous.gpu {
            self.gpus.configure(&config.gpu, client);
        }
        self.sessions.configure(config.sessions);
        // The content of a token file may have changed, although its path in the configuration has not.
        self.webhooks.configure(secrets.webhooks);
    }

    /// Returns functions that add the blocks of options to a status, in the order of `/status`.
    pub(super) fn status_sources(&self, parts: OptionParts<'_>) -> Vec<StatusSource> {
        let OptionParts { exchange: peers, cache_knowledge, proxy, sinks } = parts;
        let mut sources = vec![
            gpu::rows::status_source(self.gpus.clone()),
            webhooks::rows::status_source(self.webhooks.clone()),
            exchange::rows::status_source(peers),
            kv_events::rows::status_source(cache_knowledge),
        ];
        sources.extend(sinks);
        sources.push(resume::status_source(proxy.resumption.clone()));
        sources.push(continuation::status_source(proxy.continuation_memory.clone()));
        sources.push(sessions::rows::status_source(self.sessions.clone()));
        sources
    }
}

impl DiagnosisHooks for Extras {
    /// Also tells each backend whether its GPUs lower their clock.
    fn gpu_conditions(&self, backends: &[Arc<Backend>], now: Instant) -> Vec<Option<GpuCondition>> {
        let owners = backends.iter().map(|backend| gpu_backend(backend));
        let conditions: Vec<_> = self.gpus.assign(owners, now).conditions().collect();
        for (backend, condition) in backends.iter().zip(&conditions) {
            let is_throttled = condition.as_ref().and_then(|gpus| gpus.is_throttled);
            backend.facets.gpu.is_throttled.set(is_throttled.unwrap_or(false));
        }
        conditions
    }

    /// Passes the diagnosis to the webhooks.
    fn on_diagnosis(&self, diagnosis: &Diagnosis, now: Instant, wall_time: SystemTime) {
        self.webhooks.update(diagnosis, now, wall_time);
    }
}

fn gpu_backend(backend: &Backend) -> GpuBackend<'_> {
    let identity = &backend.identity;
    GpuBackend {
        id: identity.id.as_str(),
        host: identity.address.host_and_port().0,
        pod: identity.settings().pod.clone(),
    }
}

impl SecretSettings {
    /// Reads the files of secrets.
    pub(super) fn read(
        config: &Config,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ApplicationError> {
        Ok(Self { webhooks: config.webhook_settings(&host_name(), env)? })
    }
}

// === impl ExtraSinks ===

impl ExtraSinks {
    /// Starts the configured sinks.
    pub(super) fn start(config: &Config) -> Result<Self, ApplicationError> {
        let mut started = Self::default();
        started.add_trace_capture(config)?;
        started.add_payload_log(config)?;
        started.add_quality(config)?;
        Ok(started)
    }

    /// Returns the sampling of prompts and responses. `None`: no text is sampled.
    pub(super) fn text_sampling(&self, config: &Config) -> Option<TextSampling> {
        if self.samples.is_empty() {
            return None;
        }
        let max_text_bytes = config.log.payloads.excerpt_bytes();
        Some(TextSampling { samples: self.samples.clone(), max_text_bytes })
    }

    /// Adds the trace capture. It starts only if a file is configured.
    fn add_trace_capture(&mut self, config: &Config) -> Result<(), ApplicationError> {
        let settings = &config.trace_capture;
        let mut running = None;
        if let Some(file) = &settings.file {
            let problem =
                format!("cannot write the capture file {} (trace_capture.file)", file.display());
            let max_bytes = config.log.max_file_bytes as u64;
            let started = TraceCapture::start(file, max_bytes, settings.sample);
            let (capture, guard) = started.map_err(in_part(problem))?;
            running = Some(self.add(capture, guard));
        }
        self.status_sources.push(trace_capture::rows::status_source(running));
        Ok(())
    }

    /// Adds the payload log. It starts only if it is enabled.
    fn add_payload_log(&mut self, config: &Config) -> Result<(), ApplicationError> {
        let settings = &config.log.payloads;
        let max_bytes = config.log.max_file_bytes as u64;
        let started = PayloadLog::start(settings, max_bytes, PAYLOAD_LOG);
        let started = started.map_err(in_part("cannot start the payload log (log.payloads)"))?;
        let Some((payload_log, guard)) = started else { return Ok(()) };
        let payload_log = self.add(payload_log, guard);
        self.status_sources.push(payload_log::rows::status_source(payload_log));
        let share = settings.sample;
        self.samples.push(TextSample { consumer: PAYLOAD_LOG, share, is_by_trace: false });
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
                self.samples.push(TextSample { consumer: QUALITY, share, is_by_trace: true });
            }
            running = Some(self.add(quality, guard));
        }
        self.status_sources.push(quality::rows::status_source(running));
        Ok(())
    }

    /// Adds a sink and the guard of its worker. Returns the sink.
    fn add<S: Sink + 'static>(&mut self, sink: S, guard: impl Any + Send) -> Arc<S> {
        let sink = Arc::new(sink);
        self.sinks.push(sink.clone());
        self.guards.push(Box::new(guard));
        sink
    }
}
