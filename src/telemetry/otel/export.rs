//! The way out: an OTLP exporter, a thread with a queue before it, and between the two a counter
//! that knows what became of each span.

use super::StartError;
use super::environment::Protocol;
use super::settings::Settings;
use crate::telemetry::collector::{self, Sender};
use opentelemetry_otlp::{WithExportConfig, WithHttpConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanExporter, SpanProcessor,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokenweir_net::supervise::{self, Task};
use tokenweir_net::tls::Outbound;
use tokio::runtime::Handle;
use tonic::transport::Endpoint;

const GZIP: opentelemetry_otlp::Compression = opentelemetry_otlp::Compression::Gzip;

/// What became of spans. A span that was queued is exported, or failed, or waits; after the
/// shutdown, what seems to wait was dropped.
#[derive(Debug, Default)]
pub struct Counts {
    queued: AtomicU64,
    exported: AtomicU64,
    failed: AtomicU64,
    filtered: AtomicU64,
}

/// An exporter that counts, and tells once when it begins to fail and when it has recovered.
#[derive(Debug)]
struct Counting<E> {
    exporter: E,
    counts: Arc<Counts>,
    is_failing: AtomicBool,
}

/// The OTLP exporter. Headers it reads from `OTEL_EXPORTER_OTLP_HEADERS`.
pub(super) fn exporter(
    settings: &Settings,
    outbound: &Arc<Outbound>,
) -> Result<opentelemetry_otlp::SpanExporter, StartError> {
    let endpoint = settings.endpoint.as_deref().ok_or(StartError::Off)?;
    let runtime = Handle::try_current().map_err(|_| StartError::NoRuntime)?;
    let builder = opentelemetry_otlp::SpanExporter::builder();
    let exporter = match settings.protocol {
        Protocol::Grpc => {
            let channel = Endpoint::from_shared(endpoint.to_owned())?.timeout(settings.timeout);
            let channel = channel.connect_with_connector_lazy(collector::connector(outbound));
            let builder = builder.with_tonic().with_channel(channel).with_timeout(settings.timeout);
            if settings.is_gzip { builder.with_compression(GZIP) } else { builder }.build()
        }
        Protocol::HttpProtobuf => {
            let sender = Sender::new(outbound, runtime, settings.timeout);
            let builder = builder
                .with_http()
                .with_http_client(sender)
                .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
                .with_endpoint(endpoint)
                .with_timeout(settings.timeout);
            if settings.is_gzip { builder.with_compression(GZIP) } else { builder }.build()
        }
    };
    Ok(exporter?)
}

/// The thread that sends. Its queue never blocks: a span that does not fit is dropped.
pub(super) fn processor(
    exporter: impl SpanExporter + 'static,
    counts: Arc<Counts>,
    settings: &Settings,
) -> BatchSpanProcessor {
    let batch = BatchConfigBuilder::default()
        .with_max_queue_size(settings.batch.queue)
        .with_max_export_batch_size(settings.batch.size)
        .with_scheduled_delay(settings.batch.delay)
        .build();
    let counting = Counting { exporter, counts, is_failing: AtomicBool::new(false) };
    let mut processor = BatchSpanProcessor::builder(counting).with_batch_config(batch).build();
    processor.set_resource(&resource(&settings.service_name));
    processor
}

/// Who speaks, in spans and in metrics: the service, and what `OTEL_RESOURCE_ATTRIBUTES` adds.
pub(in crate::telemetry) fn resource(service_name: &str) -> Resource {
    Resource::builder().with_service_name(service_name.to_owned()).build()
}

// === impl Counts ===

impl Counts {
    /// Spans that were handed to the queue.
    pub fn queued(&self) -> u64 {
        self.queued.load(Ordering::Relaxed)
    }

    /// Spans that the collector took.
    pub fn exported(&self) -> u64 {
        self.exported.load(Ordering::Relaxed)
    }

    /// Spans that the collector did not take.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Spans of traces that are not sampled.
    pub fn filtered(&self) -> u64 {
        self.filtered.load(Ordering::Relaxed)
    }

    /// After the shutdown: spans that found no room in the queue, or that were not sent in time.
    /// Before it, those that wait are among them.
    pub fn dropped(&self) -> u64 {
        self.queued().saturating_sub(self.exported() + self.failed())
    }

    pub(super) fn add_queued(&self, spans: u64) {
        self.queued.fetch_add(spans, Ordering::Relaxed);
    }

    pub(super) fn add_filtered(&self, spans: u64) {
        self.filtered.fetch_add(spans, Ordering::Relaxed);
    }
}

// === impl Counting ===

impl<E: SpanExporter> SpanExporter for Counting<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len() as u64;
        // A panic would end the thread of the processor, and with it all export.
        let exporting = self.exporter.export(batch);
        let result = supervise::catch_async(Task::SpanExport, exporting).await;
        let panicked = || Err(OTelSdkError::InternalFailure("the exporter panicked".to_owned()));
        let result = result.unwrap_or_else(panicked);
        let count = if result.is_ok() { &self.counts.exported } else { &self.counts.failed };
        count.fetch_add(spans, Ordering::Relaxed);
        let was_failing = self.is_failing.swap(result.is_err(), Ordering::Relaxed);
        match &result {
            Err(error) if !was_failing => tracing::warn!(%error, "spans cannot be exported"),
            Ok(()) if was_failing => tracing::info!("spans are exported again"),
            _ => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn shutdown(&self) -> OTelSdkResult {
        self.exporter.shutdown()
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Batch, Otel};
    use super::*;
    use opentelemetry_sdk::error::OTelSdkError;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;
    use tokenweir_core::clock;
    use tokenweir_core::observe::Sink;
    use tokenweir_core::record::RequestRecord;
    use tokenweir_core::record::sample::streamed;

    /// Waits at a gate before each batch, then takes it or not.
    #[derive(Debug)]
    struct Gated {
        gate: Mutex<Receiver<()>>,
        takes: bool,
    }

    impl SpanExporter for Gated {
        async fn export(&self, _batch: Vec<SpanData>) -> OTelSdkResult {
            let _ = self.gate.lock().unwrap().recv();
            if self.takes { Ok(()) } else { Err(OTelSdkError::InternalFailure("no".into())) }
        }
    }

    /// An exporter whose gate is open.
    fn open(takes: bool) -> Gated {
        Gated { gate: Mutex::new(channel().1), takes }
    }

    fn not_sampled() -> RequestRecord {
        let mut record = streamed();
        record.kept = None;
        record
    }

    async fn counted(exporter: Gated, records: &[RequestRecord]) -> [u64; 5] {
        let otel = Otel::with_exporter(exporter, &Settings::default());
        for record in records {
            otel.finished(record);
        }
        let counts = otel.counts().clone();
        otel.shutdown().await;
        [counts.queued(), counts.exported(), counts.failed(), counts.filtered(), counts.dropped()]
    }

    #[tokio::test]
    async fn every_span_is_counted_by_what_became_of_it() {
        let no_trace = RequestRecord { trace: None, ..streamed() };
        let records = [streamed(), not_sampled(), no_trace];
        assert_eq!(counted(open(true), &records).await, [3, 3, 0, 3, 0]);
        assert_eq!(counted(open(false), &records).await, [3, 0, 3, 3, 0]);
    }

    #[tokio::test]
    async fn a_full_queue_drops_spans_and_holds_nobody_up() {
        let (opener, gate) = channel();
        let batch = Batch { queue: 2, size: 1, delay: Duration::from_mins(1) };
        let settings = Settings { batch, ..Settings::default() };
        let otel = Otel::with_exporter(Gated { gate: Mutex::new(gate), takes: true }, &settings);
        (0..10).for_each(|_| otel.finished(&streamed()));
        drop(opener);
        let counts = otel.counts().clone();
        otel.shutdown().await;
        // Two in the queue, and one that the thread may have taken already.
        assert_eq!(counts.queued(), 30);
        assert!((2..=3).contains(&counts.exported()), "{counts:?}");
        assert_eq!(counts.dropped(), 30 - counts.exported());
    }

    #[tokio::test]
    async fn an_exporter_needs_an_endpoint() {
        let off = Otel::start(&Settings::default());
        assert!(matches!(off, Err(StartError::Off)));
    }

    #[test]
    fn grpc_without_a_runtime_is_an_error_and_no_panic() {
        let endpoint = Some("http://127.0.0.1:4317".to_owned());
        let started = Otel::start(&Settings { endpoint, ..Settings::default() });
        assert!(matches!(started, Err(StartError::NoRuntime)));
    }

    /// What a collector does with each connection.
    fn collector(serve: fn(TcpStream)) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || listener.incoming().flatten().for_each(serve));
        url
    }

    fn refusing() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    }

    /// Reads a little, so that the answer is not lost to a reset.
    fn unavailable(mut stream: TcpStream) {
        let _ = stream.read(&mut [0; 4_096]);
        let _ = stream.write_all(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n");
    }

    /// Real time, because the exporter's thread knows no other.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_collector_that_fails_in_any_way_delays_the_shutdown_by_its_limit_only() {
        for (failing, url) in [
            ("hangs", collector(std::mem::forget)),
            ("refuses", refusing()),
            ("closes", collector(drop)),
            ("is busy", collector(unavailable)),
        ] {
            for protocol in [Protocol::Grpc, Protocol::HttpProtobuf] {
                let endpoint = Some(url.clone());
                let settings = Settings { endpoint, protocol, ..Settings::default() };
                let otel = Otel::start(&settings).unwrap();
                otel.finished(&streamed());
                let counts = otel.counts().clone();
                let before = clock::now();
                otel.shutdown_within(Duration::from_millis(500)).await;
                let took = clock::now() - before;
                assert!(took < Duration::from_secs(2), "{failing} {protocol:?} {took:?}");
                assert_eq!((counts.queued(), counts.exported()), (3, 0), "{failing}");
            }
        }
    }
}
