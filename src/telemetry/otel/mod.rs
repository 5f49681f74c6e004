//! The spans of a request, made from its record when it is over and handed to a thread that sends
//! them. Their ids were drawn when the request arrived, because they travel upstream; nothing
//! else of tracing happens while bytes flow. A slow or absent collector costs spans, never time.

mod attributes;
pub(super) mod environment;
pub(super) mod export;
#[cfg(test)]
mod golden_tests;
mod inference;
mod moving;
mod profiles;
mod propagators;
mod reach;
mod settings;
mod span_limits;
mod spans;
mod style;
mod tail;
#[cfg(test)]
mod tests;

pub use environment::{Protocol, SettingsError};
pub use export::Counts;
pub use settings::{Batch, Configured, Settings};
pub use span_limits::SpanLimits;
pub use style::{Profile, Semconv, Style};

use crate::telemetry::collector;
use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SpanExporter, SpanProcessor};
use std::sync::Arc;
use std::time::Duration;
use tail::{Share, Tail};
use tokenweir_core::clock;
use tokenweir_core::observe::Sink;
use tokenweir_core::record::{Kept, RequestRecord};
use tokenweir_net::tls::{Outbound, TlsError};

/// How long [`Otel::shutdown`] waits for the collector.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

/// The sink that makes spans. Clones share one queue.
#[derive(Debug, Clone)]
pub struct Otel {
    outbound: Option<Arc<Outbound>>,
    processor: Arc<BatchSpanProcessor>,
    counts: Arc<Counts>,
    /// All spans are sent, and of those that nothing speaks for this share is kept. `None`: only
    /// what is kept is sent.
    all: Option<Arc<Share>>,
    /// `None`: only the head decides.
    tail: Option<Arc<Tail>>,
    style: Arc<Style>,
    limits: SpanLimits,
}

/// Why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Traces are off.
    #[error("traces are off: there is no endpoint to send them to")]
    Off,
    /// It needs a tokio runtime from the start.
    #[error("the exporter must be started inside a tokio runtime")]
    NoRuntime,
    /// The endpoint is no URL.
    #[error("the endpoint of the spans is not a URL")]
    Endpoint(#[from] tonic::transport::Error),
    /// The files of TLS cannot be used.
    #[error("the TLS of the spans cannot be set up")]
    Tls(#[from] TlsError),
    /// The exporter refuses its settings.
    #[error("the span exporter could not be built")]
    Exporter(#[from] ExporterBuildError),
}

impl Otel {
    /// Starts to export to the endpoint of the settings. It need not answer yet.
    pub fn start(settings: &Settings) -> Result<Self, StartError> {
        let outbound = collector::outbound(&settings.security, settings.protocol)?;
        let exporter = export::exporter(settings, &outbound)?;
        Ok(Self { outbound: Some(outbound), ..Self::with_exporter(exporter, settings) })
    }

    /// Starts with an exporter of the caller's, in place of the one that the settings describe.
    pub fn with_exporter(exporter: impl SpanExporter + 'static, settings: &Settings) -> Self {
        let counts = Arc::new(Counts::default());
        let processor = Arc::new(export::processor(exporter, counts.clone(), settings));
        Self {
            outbound: None,
            processor,
            counts,
            all: settings.send_all.then(|| Arc::new(settings.share(clock::now()))),
            tail: settings.tail.then(Arc::default),
            style: Arc::new(settings.style.clone()),
            limits: settings.limits,
        }
    }

    /// What has become of the spans so far.
    pub fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Whom the gateway is, and believes, at the collector.
    pub fn outbound(&self) -> Option<&Arc<Outbound>> {
        self.outbound.as_ref()
    }

    /// Sends what is queued and stops, within 5 s. Requests that end later are not exported.
    pub async fn shutdown(self) {
        self.shutdown_within(SHUTDOWN_LIMIT).await;
    }

    async fn shutdown_within(self, limit: Duration) {
        let Self { processor, counts, .. } = self;
        // The processor blocks its caller until its thread has sent the rest, and that thread
        // needs the runtime for its connection: with one worker, waiting here would be a deadlock.
        let stop = move || processor.shutdown_with_timeout(limit);
        let lost = match tokio::task::spawn_blocking(stop).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if lost.is_some() || counts.dropped() > 0 {
            let error = lost.as_deref().unwrap_or("the queue was full");
            tracing::warn!(spans = counts.dropped(), error, "spans were not exported");
        }
    }
}

impl Sink for Otel {
    fn judge(&self, record: &RequestRecord) -> Option<Kept> {
        record.trace.as_ref()?;
        let verdict = self.tail.as_ref().and_then(|tail| tail.judge(record));
        verdict.or_else(|| tail::head(record, self.all.as_deref()))
    }

    fn finished(&self, record: &RequestRecord) {
        let Some(trace) = &record.trace else { return };
        if record.kept.is_none() && !(self.all.is_some() && trace.is_sampled) {
            self.counts.add_filtered(spans::count(record));
            return;
        }
        for mut span in spans::tree(record, trace, &self.style) {
            self.limits.apply(&mut span);
            // Counted first, so that no span is exported before it was queued.
            self.counts.add_queued(1);
            self.processor.on_end(span);
        }
    }
}
