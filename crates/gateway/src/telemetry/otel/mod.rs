//! Tracing: builds the spans of a request from its record when the request ends, and exports them over OTLP
//! from its own thread.
//!
//! Span IDs are drawn when the request arrives, because the gateway sends them to the backend. No other tracing
//! work is done while the request is in progress. If the collector is slow or absent, spans are dropped and no
//! request is delayed.

mod collector_client;
pub(super) mod export;
mod export_failure;
pub mod resource;
pub mod rows;
mod sampling;
pub(super) mod settings;
mod spans;

pub use export::{SpanCounts, SpanSinkStartError};
pub use settings::environment::{OtelSettingsError, OtlpProtocol};
pub use settings::{SpanBatchSettings, TraceSampling, TracingConfig, TracingSettings};
pub use spans::conventions::{Semconv, SpanConventions, ViewerProfile};
pub use spans::limits::SpanLimits;

use opentelemetry_sdk::trace::{BatchSpanProcessor, SpanExporter, SpanProcessor};
use sampling::TailSampler;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokenweir_net::tls::OutboundTls;
use tokenweir_protocol::mutex::lock;
use tokenweir_protocol::trace_context::Propagation;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::{RequestRecord, SampleReason};

/// Maximum wait of [`SpanSink::shutdown`] for the collector.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The sink that builds the spans of finished requests and queues them for export. Clones share one
/// queue.
#[derive(Debug, Clone)]
pub struct SpanSink {
    /// TLS settings of the connections to the collector. `None`: the caller passed its own exporter.
    outbound: Option<Arc<OutboundTls>>,
    processor: Arc<BatchSpanProcessor>,
    counts: Arc<Mutex<SpanCounts>>,
    /// The sampler of `tracing.sampling: all`. In this mode the spans of all traces are exported, unless the
    /// client decided against sampling. If tail sampling gives a trace no reason, the sampler decides whether
    /// the trace gets the sample reason `sampled`. `None`: only the spans of sampled traces are exported.
    export_all: Option<Arc<Propagation>>,
    /// The tail sampler. `None`: only head sampling selects traces.
    tail_sampler: Option<Arc<TailSampler>>,
    conventions: Arc<SpanConventions>,
    limits: SpanLimits,
}

impl SpanSink {
    /// Starts the export of spans to the endpoint in `settings`. The collector may still be unreachable.
    pub fn start(settings: &TracingSettings) -> Result<Self, SpanSinkStartError> {
        let outbound = collector_client::outbound(&settings.security, settings.protocol.alpn())?;
        let exporter = export::exporter(settings, &outbound)?;
        Ok(Self {
            outbound: Some(outbound),
            ..Self::with_exporter(exporter, settings)
        })
    }

    /// Starts the export of spans with `exporter` in place of the exporter that `settings` describe.
    pub fn with_exporter(
        exporter: impl SpanExporter + 'static,
        settings: &TracingSettings,
    ) -> Self {
        let counts = Arc::<Mutex<SpanCounts>>::default();
        let processor = Arc::new(export::processor(exporter, counts.clone(), settings));
        Self {
            outbound: None,
            processor,
            counts,
            export_all: (settings.sampling == TraceSampling::All)
                .then(|| Arc::new(settings.limited_propagation())),
            tail_sampler: (settings.sampling != TraceSampling::Head).then(Arc::default),
            conventions: Arc::new(settings.style.clone()),
            limits: settings.limits,
        }
    }

    /// Numbers of queued, exported, failed and filtered spans.
    pub fn counts(&self) -> SpanCounts {
        *lock(&self.counts)
    }

    /// TLS settings of the connections to the collector. `None`: the caller passed its own exporter.
    pub fn outbound(&self) -> Option<&Arc<OutboundTls>> {
        self.outbound.as_ref()
    }

    /// Exports the queued spans and stops the export, within 5 s. The spans of requests that end
    /// later are not exported.
    pub async fn shutdown(self) {
        self.shutdown_within(SHUTDOWN_TIMEOUT).await;
    }

    async fn shutdown_within(self, limit: Duration) {
        let processor = self.processor.clone();
        // The processor blocks its caller until the export thread has exported the queued spans. The export
        // thread needs the runtime for its connection. If this task blocked the runtime's only worker thread,
        // both would wait for each other forever.
        let stop = move || processor.shutdown_with_timeout(limit);
        let failure = match tokio::task::spawn_blocking(stop).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        let dropped = self.counts().dropped();
        if failure.is_some() || dropped > 0 {
            let error = failure.as_deref().unwrap_or("the queue was full");
            tracing::warn!(
                spans = dropped,
                error,
                "span export ended: spans were dropped, or the exporter did not stop cleanly"
            );
        }
    }
}

impl Sink for SpanSink {
    fn sample_reason(&self, record: &RequestRecord) -> Option<SampleReason> {
        record.trace.as_ref()?;
        let reason = self
            .tail_sampler
            .as_ref()
            .and_then(|tail| tail.sample(record));
        reason.or_else(|| sampling::sample_head(record, self.export_all.as_deref()))
    }

    fn finished(&self, records: &[&RequestRecord]) {
        for record in records {
            let Some(trace) = &record.trace else { continue };
            if record.sample_reason.is_none() && !(self.export_all.is_some() && trace.is_sampled) {
                lock(&self.counts).filtered += spans::span_count(record);
                continue;
            }
            let spans = spans::build_spans(record, trace, &self.conventions);
            // Counting before queueing keeps the count of queued spans at or above the count of exported spans.
            lock(&self.counts).queued += spans.len() as u64;
            for mut span in spans {
                self.limits.apply(&mut span);
                self.processor.on_end(span);
            }
        }
    }
}
