//! Span export: a bounded queue of finished spans, a thread that exports the queued spans over
//! OTLP, and counts of the spans by result. `TracingSettings::reach` checks whether the collector
//! accepts spans.

use super::collector_client::{self, OtlpHttpSender};
use super::export_failure::describe_failure;
use super::resource::resource;
use super::settings::TracingSettings;
use super::settings::environment::OtlpProtocol;
use crate::status::StatusBlock;
use crate::telemetry::cpu_time::{self, TelemetryPart};
use opentelemetry_otlp::{
    ExporterBuildError, RetryPolicy, WithExportConfig, WithHttpConfig, WithTonicConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanExporter, SpanProcessor,
};
use serde::Serialize;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokenweir_net::supervise::{self, BackgroundTask};
use tokenweir_net::tls::{OutboundTls, TlsError};
use tokenweir_protocol::mutex::lock;
use tokio::runtime::Handle;
use tonic::transport::Endpoint;

/// Maximum time for retries of the export of one batch. An export is retried if the collector sent no response,
/// or a response that OTLP calls retryable (429, 502, 503, 504, `UNAVAILABLE`). A `Retry-After` within this
/// time is respected, and a longer one ends the retries at once. During the retries new spans wait in the
/// queue, and spans that do not fit are dropped.
const RETRY_LIMIT: Duration = Duration::from_secs(20);
const GZIP_COMPRESSION: opentelemetry_otlp::Compression = opentelemetry_otlp::Compression::Gzip;

/// Number of spans by export result. Each queued span is later exported, failed or dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SpanCounts {
    /// Spans passed to the queue of the exporter, including spans that the full queue dropped.
    pub queued: u64,
    /// Spans that the collector accepted.
    pub exported: u64,
    /// Spans that the collector rejected, or that could not be delivered.
    pub failed: u64,
    /// Spans that were not exported because their trace is not sampled.
    pub filtered: u64,
    /// Lost spans: their export failed, or they did not fit into the queue. Only the status snapshot sets this
    /// count. Elsewhere it is 0.
    pub lost: u64,
    /// Why the last failed export failed, in words. `None`: no export has failed.
    pub last_failure: Option<&'static str>,
}

/// An exporter that passes spans to `exporter` and counts the results. Of several consecutive failures it logs
/// the first, and then the first success.
#[derive(Debug)]
struct CountingExporter<E> {
    exporter: E,
    counts: Arc<Mutex<SpanCounts>>,
    is_failing: AtomicBool,
}

/// Why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum SpanSinkStartError {
    /// The settings have no collector endpoint. None is configured, or an environment variable such as
    /// `OTEL_SDK_DISABLED` disables tracing.
    #[error("tracing is disabled: no collector endpoint is configured")]
    TracingDisabled,
    /// The exporter was started outside of a tokio runtime.
    #[error("the span exporter must be started inside a tokio runtime")]
    NoRuntime,
    /// The URL of the collector cannot be parsed.
    #[error("the collector endpoint of spans is not a valid URL")]
    InvalidEndpoint(#[from] tonic::transport::Error),
    /// The TLS files cannot be used.
    #[error("the TLS files of the span export cannot be used")]
    Tls(#[from] TlsError),
    /// The exporter rejects its settings.
    #[error("the span exporter could not be built")]
    Exporter(#[from] ExporterBuildError),
}

/// Builds the OTLP exporter of spans. The SDK adds the headers in `OTEL_EXPORTER_OTLP_HEADERS` to
/// the requests.
pub(super) fn exporter(
    settings: &TracingSettings,
    outbound: &Arc<OutboundTls>,
) -> Result<opentelemetry_otlp::SpanExporter, SpanSinkStartError> {
    let endpoint = settings
        .endpoint
        .as_deref()
        .ok_or(SpanSinkStartError::TracingDisabled)?;
    let runtime = Handle::try_current().map_err(|_| SpanSinkStartError::NoRuntime)?;
    let builder = opentelemetry_otlp::SpanExporter::builder();
    let exporter = match settings.protocol {
        OtlpProtocol::Grpc => {
            let channel = Endpoint::from_shared(endpoint.to_owned())?.timeout(settings.timeout);
            let channel =
                channel.connect_with_connector_lazy(collector_client::connector(outbound));
            let builder = builder
                .with_tonic()
                .with_channel(channel)
                .with_retry_policy(retry_policy())
                .with_timeout(settings.timeout.max(RETRY_LIMIT));
            let builder = if settings.is_gzip {
                builder.with_compression(GZIP_COMPRESSION)
            } else {
                builder
            };
            builder.build()
        }
        OtlpProtocol::HttpProtobuf => {
            let sender = OtlpHttpSender::new(outbound, runtime, settings.timeout);
            let builder = builder
                .with_http()
                .with_http_client(sender)
                .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
                .with_endpoint(endpoint)
                .with_retry_policy(retry_policy())
                .with_timeout(settings.timeout.max(RETRY_LIMIT));
            let builder = if settings.is_gzip {
                builder.with_compression(GZIP_COMPRESSION)
            } else {
                builder
            };
            builder.build()
        }
    };
    Ok(exporter?)
}

/// Returns the retry policy: growing delays until [`RETRY_LIMIT`]. Each try has the timeout of the settings.
fn retry_policy() -> RetryPolicy {
    RetryPolicy::recommended()
        .with_max_retries(usize::MAX)
        .with_initial_delay(Duration::from_millis(500))
        .with_max_delay(Duration::from_secs(10))
}

/// Starts the export thread and its queue. Adding a span to the queue never blocks: a span that
/// does not fit is dropped.
pub(super) fn processor(
    exporter: impl SpanExporter + 'static,
    counts: Arc<Mutex<SpanCounts>>,
    settings: &TracingSettings,
) -> BatchSpanProcessor {
    let batch = BatchConfigBuilder::default()
        .with_max_queue_size(settings.batch.queue)
        .with_max_export_batch_size(settings.batch.size)
        .with_scheduled_delay(settings.batch.delay)
        .build();
    let counting = CountingExporter {
        exporter,
        counts,
        is_failing: AtomicBool::new(false),
    };
    let mut processor = BatchSpanProcessor::builder(counting)
        .with_batch_config(batch)
        .build();
    processor.set_resource(&resource(&settings.service_name));
    processor
}

impl TracingSettings {
    /// Checks the collector: sends an export request without spans and waits up to `limit` for the response.
    /// The inner error is the reason for a failure. `None`: tracing is disabled. Must be called inside a tokio
    /// runtime.
    pub async fn reach(&self, limit: Duration) -> Option<Result<(), String>> {
        self.endpoint.as_ref()?;
        let settings = Self {
            timeout: limit,
            ..self.clone()
        };
        let send = async {
            let outbound =
                collector_client::outbound(&settings.security, settings.protocol.alpn())?;
            exporter(&settings, &outbound)?.export(Vec::new()).await?;
            Ok::<(), Box<dyn Error + Send + Sync>>(())
        };
        Some(match tokio::time::timeout(limit, send).await {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no response within {limit:?}")),
        })
    }
}

impl StatusBlock for SpanCounts {
    const KEY: Option<&'static str> = Some("spans");
}

impl SpanCounts {
    /// Number of spans that are neither exported nor failed. After the shutdown these spans did not fit into
    /// the queue or were not exported in time. Before the shutdown the number includes the spans in the queue.
    pub fn dropped(&self) -> u64 {
        self.queued.saturating_sub(self.exported + self.failed)
    }
}

impl<E: SpanExporter> SpanExporter for CountingExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len() as u64;
        // An uncaught panic of the exporter would end the export thread.
        let export = self.exporter.export(batch);
        let export = cpu_time::measure_future(TelemetryPart::SpanExport, export);
        let result = supervise::catch_panic_async(BackgroundTask::SPAN_EXPORT, export).await;
        let panicked = || {
            Err(OTelSdkError::InternalFailure(
                "the exporter panicked".to_owned(),
            ))
        };
        let result = result.unwrap_or_else(panicked);
        let mut counts = lock(&self.counts);
        match &result {
            Ok(()) => counts.exported += spans,
            Err(error) => {
                counts.failed += spans;
                counts.last_failure = Some(describe_failure(error));
            }
        }
        drop(counts);
        let was_failing = self.is_failing.swap(result.is_err(), Ordering::Relaxed);
        match &result {
            Err(error) if !was_failing => tracing::warn!(
                %error,
                "span export failed: the spans of this batch are dropped, the next batch is tried"
            ),
            Ok(()) if was_failing => tracing::info!("span export recovered"),
            _ => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SpanBatchSettings, SpanSink};
    use super::*;
    use opentelemetry_sdk::error::OTelSdkError;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;
    use tokenweir_protocol::clock;
    use tokenweir_request::observe::Sink;
    use tokenweir_request::record::RequestRecord;
    use tokenweir_request::record::fixtures::streamed;

    /// A test exporter that waits for a message on the channel `gate` before each batch, and then accepts or
    /// rejects the batch. Without a sender of `gate`, it does not wait.
    #[derive(Debug)]
    struct GatedExporter {
        gate: Mutex<Receiver<()>>,
        should_accept: bool,
    }

    impl SpanExporter for GatedExporter {
        async fn export(&self, _batch: Vec<SpanData>) -> OTelSdkResult {
            let _ = self.gate.lock().unwrap().recv();
            if self.should_accept {
                Ok(())
            } else {
                Err(OTelSdkError::InternalFailure("no".into()))
            }
        }
    }

    /// Creates an exporter that never waits before it accepts or rejects a batch.
    fn ungated_exporter(should_accept: bool) -> GatedExporter {
        GatedExporter {
            gate: Mutex::new(channel().1),
            should_accept,
        }
    }

    /// Exports the spans of the records. Returns the numbers of queued, exported, failed, filtered
    /// and dropped spans.
    async fn export_and_count(exporter: GatedExporter, records: &[RequestRecord]) -> [u64; 5] {
        let sink = SpanSink::with_exporter(exporter, &TracingSettings::default());
        for record in records {
            sink.finished(&[record]);
        }
        sink.clone().shutdown().await;
        let counts = sink.counts();
        [
            counts.queued,
            counts.exported,
            counts.failed,
            counts.filtered,
            counts.dropped(),
        ]
    }

    #[tokio::test]
    async fn every_span_is_counted_by_its_export_result() {
        let no_trace = RequestRecord {
            trace: None,
            ..streamed()
        };
        let unsampled = RequestRecord {
            sample_reason: None,
            ..streamed()
        };
        let records = [streamed(), unsampled, no_trace];
        assert_eq!(
            export_and_count(ungated_exporter(true), &records).await,
            [3, 3, 0, 3, 0]
        );
        assert_eq!(
            export_and_count(ungated_exporter(false), &records).await,
            [3, 0, 3, 3, 0]
        );
    }

    #[tokio::test]
    async fn a_full_queue_drops_spans() {
        let (gate_sender, gate) = channel();
        let batch = SpanBatchSettings {
            queue: 2,
            size: 1,
            delay: Duration::from_mins(1),
        };
        let settings = TracingSettings {
            batch,
            ..TracingSettings::default()
        };
        let exporter = GatedExporter {
            gate: Mutex::new(gate),
            should_accept: true,
        };
        let sink = SpanSink::with_exporter(exporter, &settings);
        (0..10).for_each(|_| sink.finished(&[&streamed()]));
        drop(gate_sender);
        sink.clone().shutdown().await;
        let counts = sink.counts();
        // The queue held two spans, and the thread may have taken one more before.
        assert_eq!(counts.queued, 30);
        assert!((2..=3).contains(&counts.exported), "{counts:?}");
        assert_eq!(counts.dropped(), 30 - counts.exported);
    }

    #[tokio::test]
    async fn a_start_needs_an_endpoint() {
        let started = SpanSink::start(&TracingSettings::default());
        assert!(matches!(started, Err(SpanSinkStartError::TracingDisabled)));
    }

    #[test]
    fn grpc_needs_a_runtime() {
        let endpoint = Some("http://127.0.0.1:4317".to_owned());
        let started = SpanSink::start(&TracingSettings {
            endpoint,
            ..TracingSettings::default()
        });
        assert!(matches!(started, Err(SpanSinkStartError::NoRuntime)));
    }

    /// Starts a collector that runs `serve` for each connection. Returns its URL.
    fn spawn_collector(serve: fn(TcpStream)) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || listener.incoming().flatten().for_each(serve));
        url
    }

    fn refusing_endpoint() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    }

    /// Reads some bytes of the request and responds with status 503. Unread bytes could reset the connection
    /// and discard the response.
    fn respond_unavailable(mut stream: TcpStream) {
        let _ = stream.read(&mut [0; 4_096]);
        let _ = stream.write_all(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n");
    }

    /// A test in real time, which the exporter's thread uses.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_failing_collector_delays_only_by_the_timeout() {
        for (failure, url) in [
            ("hangs", spawn_collector(std::mem::forget)),
            ("refuses", refusing_endpoint()),
            ("closes", spawn_collector(drop)),
            ("is busy", spawn_collector(respond_unavailable)),
        ] {
            for protocol in [OtlpProtocol::Grpc, OtlpProtocol::HttpProtobuf] {
                let endpoint = Some(url.clone());
                let settings = TracingSettings {
                    endpoint,
                    protocol,
                    ..TracingSettings::default()
                };
                let sink = SpanSink::start(&settings).unwrap();
                sink.finished(&[&streamed()]);
                let before = clock::now();
                sink.clone()
                    .shutdown_within(Duration::from_millis(500))
                    .await;
                let took = clock::now() - before;
                assert!(
                    took < Duration::from_secs(2),
                    "{failure} {protocol:?} {took:?}"
                );
                let counts = sink.counts();
                assert_eq!((counts.queued, counts.exported), (3, 0), "{failure}");
            }
        }
    }
}
