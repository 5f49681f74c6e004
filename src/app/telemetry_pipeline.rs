//! Builds the telemetry pipeline: the sinks of request records and their background workers.

use super::metrics::metric_rows;
use super::options;
use super::process::logging::LogWriters;
use crate::config::{Config, LoadedConfig};
use futures_util::future::{BoxFuture, join_all};
use std::sync::Arc;
use tokenweir_diagnose::BackendRequestCounters;
use tokenweir_gateway::backend::pool::BackendPool;
use tokenweir_gateway::proxy::access::AccessControl;
use tokenweir_gateway::proxy::{RecordingSettings, StoredResponses};
use tokenweir_gateway::status::StatusSource;
use tokenweir_gateway::telemetry::Telemetry;
use tokenweir_gateway::telemetry::access_log::{AccessLog, AccessLogCounts};
use tokenweir_gateway::telemetry::batch_dispatcher::BatchDispatcherGuard;
use tokenweir_gateway::telemetry::decision_log::DecisionLog;
use tokenweir_gateway::telemetry::metrics_registry::{MetricsSettings, Prometheus};
use tokenweir_gateway::telemetry::otel::{self, Semconv, SpanSink, TracingSettings};
use tokenweir_gateway::telemetry::recent_requests::RecentRequests;
use tokenweir_net::tls::OutboundTls;
use tokenweir_option::{RecordParts, StartError};
use tokenweir_protocol::clock;
use tokenweir_request::answer::AnswerJudge;
use tokenweir_request::observe::Sink;
use tokenweir_settings::Environment;

/// The sinks of request records, and the values that other parts read from them.
pub(super) struct TelemetryPipeline {
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) recording: RecordingSettings,
    /// The recent routing decisions.
    pub(super) decisions: Arc<DecisionLog>,
    pub(super) recent_requests: Arc<RecentRequests>,
    /// The backend and the tenant of each stored response of the Responses API.
    pub(super) stored_responses: Arc<StoredResponses>,
    /// Counters of first outputs and ended requests for each backend, which the diagnosis reads.
    pub(super) request_counters: Arc<BackendRequestCounters>,
    /// Functions that write the counts of the sinks into the status.
    pub(super) status_sources: Vec<StatusSource>,
    pub(super) workers: TelemetryWorkers,
}

/// The background workers of the telemetry sinks.
pub(super) struct TelemetryWorkers {
    /// The guard of the dispatcher of record batches. Dropping the guard flushes the remaining records.
    dispatcher: BatchDispatcherGuard,
    /// The OTLP endpoint of spans. `None`: spans are not exported.
    traces_endpoint: Option<String>,
    spans: Option<SpanSink>,
}

#[derive(Default)]
struct Sinks {
    batched: Vec<Arc<dyn Sink>>,
    /// Functions that add their counts to the status.
    status_sources: Vec<StatusSource>,
}

impl TelemetryPipeline {
    /// Starts the configured sinks and workers. `from_options`: what options do with records.
    pub(super) fn start(
        loaded: &LoadedConfig,
        logs: &LogWriters,
        pool: &Arc<BackendPool>,
        access: &Arc<AccessControl>,
        from_options: RecordParts,
        env: impl Environment,
    ) -> Result<Self, StartError> {
        let config = &loaded.config;
        let tracing = loaded.tracing_settings(&env)?;
        warn_of_metrics_exporter(&env);
        let size = config.routing.decision_log_size;
        let decisions = Arc::new(DecisionLog::new(size, options::decision_parts()));
        let recent_requests = Arc::new(RecentRequests::new(clock::now(), config.slos.clone()));
        let request_counters = Arc::<BackendRequestCounters>::default();
        let mut sinks = Sinks::default();
        let stored_responses = Arc::<StoredResponses>::default();
        let mut immediate: Vec<Arc<dyn Sink>> = vec![
            pool.clone(),
            decisions.clone(),
            access.clone(),
            stored_responses.clone(),
        ];
        immediate.extend(from_options.immediate_sinks);
        let start_log = sinks.add_access_log(logs, config);
        let spans = sinks.add_spans(&tracing)?;
        sinks.batched.push(recent_requests.clone());
        sinks.batched.push(request_counters.clone());
        sinks.batched.extend(from_options.sinks);
        let metrics = build_metrics(config, tracing.style.semconv)?;
        let judge = AnswerJudge::new(config.slos.clone());
        let (telemetry, dispatcher) =
            Telemetry::with_batch_dispatcher(metrics, immediate, sinks.batched, judge);
        let propagation = tracing.propagation();
        Ok(Self {
            telemetry: Arc::new(telemetry),
            recording: RecordingSettings {
                start_log,
                propagation,
                text_sampling: from_options.text_sampling,
            },
            decisions,
            recent_requests,
            stored_responses,
            request_counters,
            status_sources: sinks.status_sources,
            workers: TelemetryWorkers {
                dispatcher,
                traces_endpoint: tracing.endpoint,
                spans,
            },
        })
    }
}

fn warn_of_metrics_exporter(env: impl Environment) {
    if env("OTEL_METRICS_EXPORTER").is_some_and(|value| value.contains("otlp")) {
        tracing::warn!(
            "OTEL_METRICS_EXPORTER=otlp has no effect: let the Prometheus receiver of a collector \
             scrape /metrics"
        );
    }
}

/// The metrics registry. `None`: metrics are disabled.
fn build_metrics(config: &Config, semconv: Semconv) -> Result<Option<Prometheus>, StartError> {
    let Some(level) = config.metrics.level else {
        return Ok(None);
    };
    Ok(Some(Prometheus::with_settings(MetricsSettings {
        rows: metric_rows().collect(),
        level,
        semconv,
        tiers: config.tiers.names.clone(),
        buckets: config.histogram_buckets()?,
        objectives: config.slos.clone(),
    })))
}

impl TelemetryWorkers {
    /// The OTLP endpoint of spans. `None`: spans are not exported.
    pub(super) fn traces_endpoint(&self) -> Option<&str> {
        self.traces_endpoint.as_deref()
    }

    /// The TLS contexts of the connections to collectors.
    pub(super) fn outbound_tls(&self) -> impl Iterator<Item = &Arc<OutboundTls>> {
        self.spans.as_ref().and_then(SpanSink::outbound).into_iter()
    }

    /// Passes the remaining records to the sinks, waits for options, and exports the remaining spans.
    pub(super) async fn shutdown(self, option_ends: Vec<BoxFuture<'static, ()>>) {
        drop(self.dispatcher);
        join_all(option_ends).await;
        if let Some(spans) = self.spans {
            spans.shutdown().await;
        }
    }
}

impl Sinks {
    /// Adds the access log. Returns it if it has lines for the starts of requests.
    fn add_access_log(&mut self, logs: &LogWriters, config: &Config) -> Option<Arc<AccessLog>> {
        let has_keys = config.access.keys_file.is_some();
        let (access_log, writer) = logs.access_log(has_keys)?;
        let access_log = Arc::new(access_log);
        self.batched.push(access_log.clone());
        let counted = access_log.clone();
        self.status_sources.push(Arc::new(move |status, _| {
            status.blocks.add(AccessLogCounts {
                written: writer.written(),
                rate_limited: counted.omitted(),
                dropped: writer.dropped(),
            });
        }));
        if config.log.access_start {
            Some(access_log)
        } else {
            None
        }
    }

    /// Adds the span export and returns its sink. `None`: no endpoint is configured.
    fn add_spans(&mut self, settings: &TracingSettings) -> Result<Option<SpanSink>, StartError> {
        let mut running = None;
        if settings.endpoint.is_some() {
            let spans = SpanSink::start(settings)?;
            self.batched.push(Arc::new(spans.clone()));
            running = Some(spans);
        }
        let most_waiting = (settings.batch.queue + settings.batch.size) as u64;
        self.status_sources
            .push(otel::rows::status_source(running.clone(), most_waiting));
        Ok(running)
    }
}
