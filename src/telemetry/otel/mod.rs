//! Tracing: builds the spans of a request from its record when the request ends, and exports them
//! over OTLP from a thread of its own.
//!
//! Span IDs are drawn when the request arrives, because they are sent to the backend. No other
//! tracing work is done while the request is in progress. A slow or absent collector costs spans,
//! never latency.

pub(super) mod export;
mod sampling;
pub(super) mod settings;
mod spans;

pub use export::{SpanExportCounters, SpanSinkStartError};
pub use settings::environment::{OtelSettingsError, OtlpProtocol};
pub use settings::{SpanBatchSettings, TracingConfig, TracingSettings};
pub use spans::conventions::{Semconv, SpanConventions, ViewerProfile};
pub use spans::limits::SpanLimits;

use crate::telemetry::clients::collector_client;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SpanExporter, SpanProcessor};
use sampling::{ExportAllSampling, TailSampler};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::clock;
use tokenweir_core::observe::Sink;
use tokenweir_core::record::{RequestRecord, SampleReason};
use tokenweir_net::tls::OutboundTls;

/// Longest wait of [`SpanSink::shutdown`] for the collector.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The sink that builds and queues spans. Clones share one queue.
#[derive(Debug, Clone)]
pub struct SpanSink {
    outbound: Option<Arc<OutboundTls>>,
    processor: Arc<BatchSpanProcessor>,
    counts: Arc<SpanExportCounters>,
    /// If set, all spans are exported, and this sampler marks a share of the ordinary traces as
    /// sampled. `None`: only sampled traces are exported.
    export_all: Option<Arc<ExportAllSampling>>,
    /// `None`: only the head sampling decision counts.
    tail_sampler: Option<Arc<TailSampler>>,
    style: Arc<SpanConventions>,
    limits: SpanLimits,
}

impl SpanSink {
    /// Starts to export to the endpoint of the settings. The collector need not be reachable yet.
    pub fn start(settings: &TracingSettings) -> Result<Self, SpanSinkStartError> {
        let outbound = collector_client::outbound(&settings.security, settings.protocol)?;
        let exporter = export::exporter(settings, &outbound)?;
        Ok(Self { outbound: Some(outbound), ..Self::with_exporter(exporter, settings) })
    }

    /// Starts with the given exporter instead of the one that the settings describe.
    pub fn with_exporter(
        exporter: impl SpanExporter + 'static,
        settings: &TracingSettings,
    ) -> Self {
        let counts = Arc::new(SpanExportCounters::default());
        let processor = Arc::new(export::processor(exporter, counts.clone(), settings));
        Self {
            outbound: None,
            processor,
            counts,
            export_all: settings
                .export_all
                .then(|| Arc::new(settings.export_all_sampling(clock::now()))),
            tail_sampler: settings.tail_sampling.then(Arc::default),
            style: Arc::new(settings.style.clone()),
            limits: settings.limits,
        }
    }

    /// Counts of spans by result.
    pub fn counts(&self) -> &Arc<SpanExportCounters> {
        &self.counts
    }

    /// TLS of the connections to the collector.
    pub fn outbound(&self) -> Option<&Arc<OutboundTls>> {
        self.outbound.as_ref()
    }

    /// Exports the queued spans and stops, within 5 s. Requests that end later are not exported.
    pub async fn shutdown(self) {
        self.shutdown_within(SHUTDOWN_TIMEOUT).await;
    }

    async fn shutdown_within(self, limit: Duration) {
        let Self { processor, counts, .. } = self;
        // The processor blocks its caller until its thread has exported the rest, and that thread
        // needs the runtime for its connection. With one worker thread, waiting here would be a
        // deadlock.
        let stop = move || processor.shutdown_with_timeout(limit);
        let failure = match tokio::task::spawn_blocking(stop).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if failure.is_some() || counts.dropped() > 0 {
            let error = failure.as_deref().unwrap_or("the queue was full");
            tracing::warn!(spans = counts.dropped(), error, "spans were dropped at shutdown");
        }
    }
}

impl Sink for SpanSink {
    fn judge(&self, record: &RequestRecord) -> Option<SampleReason> {
        record.trace.as_ref()?;
        let reason = self.tail_sampler.as_ref().and_then(|tail| tail.sample(record));
        reason.or_else(|| sampling::sample_head(record, self.export_all.as_deref()))
    }

    fn finished(&self, records: &[&RequestRecord]) {
        for record in records {
            let Some(trace) = &record.trace else { continue };
            if record.sample_reason.is_none() && !(self.export_all.is_some() && trace.is_sampled) {
                self.counts.add_filtered(spans::span_count(record));
                continue;
            }
            for mut span in spans::build_spans(record, trace, &self.style) {
                self.limits.apply(&mut span);
                // Counted first, so that the count of queued spans is never below the count of
                // exported ones.
                self.counts.add_queued(1);
                self.processor.on_end(span);
            }
        }
    }
}
