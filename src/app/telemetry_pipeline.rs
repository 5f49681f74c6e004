//! Builds the telemetry pipeline: the sinks of request records and their background workers.

use super::application::ApplicationError;
use super::builders::{capture, later, log_counts, telemetry};
use super::logging::LogWriters;
use crate::backend::pool::BackendPool;
use crate::config::Config;
use crate::proxy::PayloadSampling;
use crate::proxy::access::AccessControl;
use crate::telemetry::Telemetry;
use crate::telemetry::batch_dispatcher::BatchDispatcherGuard;
use crate::telemetry::decision_log::DecisionLog;
use crate::telemetry::metrics_registry::BucketOverrides;
use crate::telemetry::otel::{self, SpanSink};
use crate::telemetry::payload_log::{self, PayloadLog};
use crate::telemetry::quality::{self, QualityMonitor};
use crate::telemetry::recent_requests::RecentRequests;
use crate::telemetry::status::RequestLogCounts;
use crate::telemetry::trace_capture::{self, TraceCapture};
use std::sync::Arc;
use tokenweir_core::clock;
use tokenweir_core::observe::Sink;
use tokenweir_diagnose::BackendRequestCounters;

/// The sinks of request records and their background workers.
pub(crate) struct TelemetryPipeline {
    pub(crate) telemetry: Arc<Telemetry>,
    /// The guard of the batch dispatcher. Dropping it flushes the remaining records.
    pub(crate) telling: BatchDispatcherGuard,
    /// The recent routing decisions.
    pub(crate) explanations: Arc<DecisionLog>,
    /// The request counters of the diagnosis.
    pub(crate) tallies: Arc<BackendRequestCounters>,
    pub(crate) recent: Arc<RecentRequests>,
    pub(crate) buckets: BucketOverrides,
    pub(crate) otel: Option<SpanSink>,
    /// The counts of the trace capture.
    pub(crate) captured: Option<trace_capture::TraceCaptureStats>,
    /// The worker of the trace capture. Dropping it flushes the capture file.
    pub(crate) capturing: Option<trace_capture::TraceCaptureGuard>,
    /// The worker of the payload log. Dropping it flushes the log.
    pub(crate) payload_worker: Option<payload_log::PayloadLogGuard>,
    pub(crate) quality: Option<QualityMonitor>,
    /// The worker of the quality samples. Dropping it flushes them.
    pub(crate) sampling: Option<quality::QualityMonitorGuard>,
    pub(crate) logs: Arc<dyn Fn() -> RequestLogCounts + Send + Sync>,
}

impl TelemetryPipeline {
    /// Starts the configured sinks and workers.
    pub(crate) fn start(
        config: &Config,
        spans: &otel::TracingSettings,
        logs: &LogWriters,
        pool: &Arc<BackendPool>,
        access: &Arc<AccessControl>,
    ) -> Result<Self, ApplicationError> {
        let otel = spans.endpoint.is_some().then(|| SpanSink::start(spans)).transpose()?;
        let decision_log = Arc::new(DecisionLog::new(config.routing.decision_log_size));
        let (capture, capture_worker) = capture(config)?.unzip();
        let capture_counter = capture.as_ref().map(TraceCapture::counter);
        let access_log = logs.access_log();
        let (payload_log, payload_worker) = PayloadLog::start(&config.log.payloads)?.unzip();
        let log_counts = log_counts(logs, access_log.as_ref(), payload_log.as_ref());
        let quality = QualityMonitor::start(&config.quality, &config.log.payloads);
        let (quality, quality_worker) = quality.map_err(ApplicationError::Quality)?.unzip();
        let immediate: Vec<Arc<dyn Sink>> =
            vec![pool.clone(), decision_log.clone(), access.clone()];
        let request_counters = Arc::<BackendRequestCounters>::default();
        let mut batched = later(access_log, otel.as_ref(), capture);
        let recent = Arc::new(RecentRequests::new(clock::now()));
        batched.push(recent.clone());
        batched.extend(payload_log.map(|log| Arc::new(log) as Arc<dyn Sink>));
        batched.extend(quality.clone().map(|quality| Arc::new(quality) as Arc<dyn Sink>));
        batched.push(request_counters.clone());
        let buckets = BucketOverrides::new(&config.metrics.buckets, &config.slos)?;
        let (telemetry, dispatcher) = telemetry(pool, config, &buckets, immediate, batched);
        let telemetry = Arc::new(telemetry);
        Ok(Self {
            telemetry,
            telling: dispatcher,
            explanations: decision_log,
            tallies: request_counters,
            recent,
            buckets,
            otel,
            captured: capture_counter,
            capturing: capture_worker,
            payload_worker,
            quality,
            sampling: quality_worker.flatten(),
            logs: log_counts,
        })
    }

    /// The share of requests, 0 to 1, that the trace capture samples. 0 without a capture.
    pub(crate) fn trace_capture_ratio(&self, config: &Config) -> f64 {
        self.capturing.as_ref().map_or(0.0, |_| config.trace_capture.sample)
    }

    /// The shares of requests whose texts are collected. `None`: no texts are collected.
    pub(crate) fn payload_sampling(&self, config: &Config) -> Option<PayloadSampling> {
        let payloads = &config.log.payloads;
        let log_ratio = self.payload_worker.as_ref().map_or(0.0, |_| payloads.sample);
        let quality_ratio = self.sampling.as_ref().map_or(0.0, |_| config.quality.share());
        let is_sampled = log_ratio > 0.0 || quality_ratio > 0.0;
        let max_text_bytes = payloads.excerpt_bytes();
        is_sampled.then_some(PayloadSampling { log_ratio, quality_ratio, max_text_bytes })
    }
}
