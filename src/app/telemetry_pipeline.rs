//! Builds the telemetry pipeline: the sinks of request records and their background workers.

use super::error::{ApplicationError, in_part};
use super::process::logging::LogWriters;
use crate::admin::StatusSource;
use crate::config::{Config, LoadedConfig, TraceCaptureConfig};
use std::any::Any;
use std::sync::Arc;
use std::time::Instant;
use tokenweir_diagnose::BackendRequestCounters;
use tokenweir_gateway::backend::pool::BackendPool;
use tokenweir_gateway::proxy::access::AccessControl;
use tokenweir_gateway::proxy::{PayloadSampling, RecordingSettings, StoredResponses};
use tokenweir_gateway::telemetry::Telemetry;
use tokenweir_gateway::telemetry::access_log::{AccessLog, AccessLogCounts};
use tokenweir_gateway::telemetry::batch_dispatcher::BatchDispatcherGuard;
use tokenweir_gateway::telemetry::decision_log::DecisionLog;
use tokenweir_gateway::telemetry::metrics_registry::{MetricsLevel, Prometheus};
use tokenweir_gateway::telemetry::otel::{Semconv, SpanCounts, SpanSink, TracingSettings};
use tokenweir_gateway::telemetry::payload_log::{PayloadLog, PayloadLogSettings};
use tokenweir_gateway::telemetry::quality::{QualityMonitor, QualitySettings};
use tokenweir_gateway::telemetry::recent_requests::RecentRequests;
use tokenweir_gateway::telemetry::status::StatusSnapshot;
use tokenweir_gateway::telemetry::trace_capture::TraceCapture;
use tokenweir_net::tls::OutboundTls;
use tokenweir_protocol::clock;
use tokenweir_request::observe::Sink;

/// The sinks of request records, and the values that other parts read from them.
pub(super) struct TelemetryPipeline {
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) recording: RecordingSettings,
    /// The recent routing decisions.
    pub(super) decisions: Arc<DecisionLog>,
    pub(super) recent_requests: Arc<RecentRequests>,
    /// Which backend stores which response of the Responses API, and for which tenant.
    pub(super) stored_responses: Arc<StoredResponses>,
    /// Counters of first outputs and ended requests for each backend, which the diagnosis reads.
    pub(super) request_counters: Arc<BackendRequestCounters>,
    /// Functions that write the counts of the sinks into the status.
    pub(super) status_sources: Vec<StatusSource>,
    pub(super) workers: TelemetryWorkers,
}

/// The background workers of the telemetry sinks.
pub(super) struct TelemetryWorkers {
    /// The guard of the dispatcher of record batches. The remaining records are flushed when the
    /// guard is dropped.
    dispatcher: BatchDispatcherGuard,
    /// The OTLP endpoint of spans. `None`: spans are not exported.
    traces_endpoint: Option<String>,
    spans: Option<SpanSink>,
    /// The guards of the sinks. When the guard of a sink with a file is dropped, the file is
    /// flushed.
    _guards: Vec<Box<dyn Any + Send>>,
}

/// The telemetry sinks that have been started, each with its counts and its worker.
#[derive(Default)]
struct SinkSet {
    /// Sinks that get each record when its request ends.
    immediate: Vec<Arc<dyn Sink>>,
    /// Sinks that get records in batches.
    batched: Vec<Arc<dyn Sink>>,
    status_sources: Vec<StatusSource>,
    guards: Vec<Box<dyn Any + Send>>,
}

// === impl TelemetryPipeline ===

impl TelemetryPipeline {
    /// Starts the configured sinks and workers.
    pub(super) fn start(
        loaded: &LoadedConfig,
        logs: &LogWriters,
        pool: &Arc<BackendPool>,
        access: &Arc<AccessControl>,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ApplicationError> {
        let (config, now) = (&loaded.config, clock::now());
        let tracing = loaded.tracing_settings(&env)?;
        if env("OTEL_METRICS_EXPORTER").is_some_and(|value| value.contains("otlp")) {
            tracing::warn!(
                "OTEL_METRICS_EXPORTER=otlp has no effect: let the Prometheus receiver of a collector \
                 scrape /metrics"
            );
        }
        let decisions = Arc::new(DecisionLog::new(config.routing.decision_log_size));
        let recent_requests = Arc::new(RecentRequests::new(now, config.slos.clone()));
        let request_counters = Arc::<BackendRequestCounters>::default();
        let mut sinks = SinkSet::default();
        let stored_responses = Arc::<StoredResponses>::default();
        sinks.immediate.extend([pool.clone() as Arc<dyn Sink>, decisions.clone(), access.clone()]);
        sinks.immediate.push(stored_responses.clone());
        let has_keys = config.access.keys_file.is_some();
        let start_log = sinks.add_access_log(logs, has_keys).filter(|_| config.log.access_start);
        let spans = sinks.add_spans(&tracing)?;
        let max_bytes = config.log.max_file_bytes as u64;
        let capture_ratio = sinks.add_trace_capture(&config.trace_capture, max_bytes)?;
        sinks.batched.push(recent_requests.clone());
        let log_ratio = sinks.add_payload_log(&config.log.payloads, max_bytes)?;
        let quality_ratio = sinks.add_quality(&config.quality, &config.log.payloads, max_bytes)?;
        sinks.batched.push(request_counters.clone());
        let is_sampled = log_ratio > 0.0 || quality_ratio > 0.0;
        let max_text_bytes = config.log.payloads.excerpt_bytes();
        let payload_sampling =
            is_sampled.then_some(PayloadSampling { log_ratio, quality_ratio, max_text_bytes });
        let semconv = tracing.style.semconv;
        let build_metrics = |level| build_metrics(config, level, semconv);
        let metrics = config.metrics.level.map(build_metrics).transpose()?;
        let SinkSet { immediate, batched, status_sources, guards } = sinks;
        let (telemetry, dispatcher) = Telemetry::with_batch_dispatcher(metrics, immediate, batched);
        let propagation = tracing.propagation();
        Ok(Self {
            telemetry: Arc::new(telemetry),
            recording: RecordingSettings {
                start_log,
                propagation,
                capture_ratio,
                payload_sampling,
            },
            decisions,
            recent_requests,
            stored_responses,
            request_counters,
            status_sources,
            workers: TelemetryWorkers {
                dispatcher,
                traces_endpoint: tracing.endpoint,
                spans,
                _guards: guards,
            },
        })
    }
}

fn build_metrics(
    config: &Config,
    level: MetricsLevel,
    semconv: Semconv,
) -> Result<Prometheus, ApplicationError> {
    let buckets = config.histogram_buckets()?;
    let tiers = config.tiers.names.clone();
    let metrics = Prometheus::with_level(level, semconv, tiers, &buckets, config.slos.clone());
    let has_native = config.metrics.native_histograms;
    Ok(if has_native { metrics.with_native_histograms() } else { metrics })
}

// === impl TelemetryWorkers ===

impl TelemetryWorkers {
    /// The OTLP endpoint of spans. `None`: spans are not exported.
    pub(super) fn traces_endpoint(&self) -> Option<&str> {
        self.traces_endpoint.as_deref()
    }

    /// The TLS contexts of the connections to collectors.
    pub(super) fn outbound_tls(&self) -> impl Iterator<Item = &Arc<OutboundTls>> {
        self.spans.as_ref().and_then(SpanSink::outbound).into_iter()
    }

    /// Passes the remaining records to the sinks, and exports the remaining spans.
    pub(super) async fn shutdown(self) {
        drop(self.dispatcher);
        if let Some(spans) = self.spans {
            spans.shutdown().await;
        }
    }
}

// === impl SinkSet ===

impl SinkSet {
    /// Adds the access log and returns it. `None`: the access log is disabled.
    fn add_access_log(&mut self, logs: &LogWriters, has_keys: bool) -> Option<Arc<AccessLog>> {
        let (access_log, line_counter) = logs.access_log(has_keys).zip(logs.line_counter())?;
        Some(self.add(access_log, (), move |access_log, status, _| {
            let [written, dropped] = line_counter();
            let rate_limited = access_log.omitted();
            status.access_log = AccessLogCounts { written, rate_limited, dropped };
        }))
    }

    /// Adds the span export and returns its sink. `None`: no endpoint is configured.
    fn add_spans(
        &mut self,
        settings: &TracingSettings,
    ) -> Result<Option<SpanSink>, ApplicationError> {
        if settings.endpoint.is_none() {
            return Ok(None);
        }
        let spans = SpanSink::start(settings)?;
        let most_waiting = (settings.batch.queue + settings.batch.size) as u64;
        self.add(spans.clone(), (), move |spans, status, _| {
            let counts = spans.counts();
            let lost = counts.failed + counts.dropped().saturating_sub(most_waiting);
            status.spans = SpanCounts { lost, ..counts };
        });
        Ok(Some(spans))
    }

    /// Adds the trace capture, if a file is configured. Returns the share of requests that it
    /// records, 0 to 1.
    fn add_trace_capture(
        &mut self,
        settings: &TraceCaptureConfig,
        max_bytes: u64,
    ) -> Result<f64, ApplicationError> {
        let Some(file) = &settings.file else { return Ok(0.0) };
        let problem =
            format!("cannot write the capture file {} (trace_capture.file)", file.display());
        let (capture, guard) = TraceCapture::start(file, max_bytes).map_err(in_part(problem))?;
        self.add(capture, guard, |capture, status, _| status.trace_capture = capture.counts());
        Ok(settings.sample)
    }

    /// Adds the payload log, if it is enabled. Returns the share of requests that it records, 0 to
    /// 1.
    fn add_payload_log(
        &mut self,
        settings: &PayloadLogSettings,
        max_bytes: u64,
    ) -> Result<f64, ApplicationError> {
        let started = PayloadLog::start(settings, max_bytes);
        let started = started.map_err(in_part("cannot start the payload log (log.payloads)"))?;
        let Some((payload_log, guard)) = started else { return Ok(0.0) };
        self.add(payload_log, guard, |log, status, _| status.payload_log = log.counts());
        Ok(settings.sample)
    }

    /// Adds quality monitoring, if it is enabled. Returns the share of requests that are sampled, 0 to
    /// 1.
    fn add_quality(
        &mut self,
        settings: &QualitySettings,
        payloads: &PayloadLogSettings,
        max_bytes: u64,
    ) -> Result<f64, ApplicationError> {
        let started = QualityMonitor::start(settings, payloads, max_bytes);
        let started = started.map_err(in_part("cannot start the quality samples (quality)"))?;
        let Some((quality, guard)) = started else { return Ok(0.0) };
        let ratio = guard.as_ref().map_or(0.0, |_| settings.share());
        self.add(quality, guard, |quality, status, now| status.quality = Some(quality.vitals(now)));
        Ok(ratio)
    }

    /// Adds a sink that gets records in batches, the guard of its worker, and the function that writes
    /// its counts into the status. Returns the sink.
    fn add<S: Sink + 'static>(
        &mut self,
        sink: S,
        guard: impl Any + Send,
        fill: impl Fn(&S, &mut StatusSnapshot, Instant) + Send + Sync + 'static,
    ) -> Arc<S> {
        let sink = Arc::new(sink);
        self.batched.push(sink.clone());
        self.guards.push(Box::new(guard));
        let counted = sink.clone();
        self.status_sources.push(Arc::new(move |status, now| fill(&counted, status, now)));
        sink
    }
}
