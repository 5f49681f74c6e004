//! Tests that pushed metrics equal the metrics page, and that failures of the collector are
//! counted.

mod exponential;

use super::message::{self, PushTimeRange};
use super::otlp_names;
use super::*;
use crate::backend::LabelledModel;
use crate::telemetry::catalog;
use crate::telemetry::metric::KnownLabelValues;
use crate::telemetry::metrics_registry::BucketOverrides;
use crate::telemetry::metrics_registry::ExpositionFormat;
use crate::telemetry::metrics_registry::Prometheus;
use crate::telemetry::otel::OtlpProtocol;
use crate::telemetry::status::BackendStatusSnapshot;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::exemplar::Value as ExemplarValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{Metric, NumberDataPoint, number_data_point};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use tokenweir_core::histogram::BucketBounds;
use tokenweir_core::metric_kind::MetricKind;
use tokenweir_core::record::fixtures::streamed;
use tokenweir_core::record::{RequestRecord, ResponseBuckets};

// === Translation by Prometheus ===

/// Translates the name of an OTLP metric to its Prometheus name, as a Prometheus server does with
/// the translation strategy `UnderscoreEscapingWithSuffixes`.
fn prometheus_name(name: &str, unit: &str, kind: MetricKind) -> String {
    let is_separator = |c: char| !c.is_ascii_alphanumeric();
    let mut words: Vec<&str> = name.split(is_separator).filter(|word| !word.is_empty()).collect();
    let unit_word = match unit {
        "s" => "seconds",
        "By" => "bytes",
        _ => "",
    };
    if !unit_word.is_empty() && !words.contains(&unit_word) {
        words.push(unit_word);
    }
    let suffix = match kind {
        MetricKind::Counter => "total",
        MetricKind::Gauge if unit == "1" => "ratio",
        _ => return words.join("_"),
    };
    words.retain(|word| *word != suffix);
    words.push(suffix);
    words.join("_")
}

/// The Prometheus label name of an OTLP attribute.
fn label_name(attribute: &str) -> String {
    attribute.replace('.', "_")
}

#[test]
fn otlp_names_translate_back_to_exposition_names() {
    let mut names = BTreeSet::new();
    for row in catalog::rows() {
        let otlp = otlp_names::otlp_name(row.name, row.kind);
        assert_eq!(prometheus_name(&otlp.name, otlp.unit, row.kind), row.name, "{otlp:?}");
        assert!(names.insert(otlp.name), "{} is not unique", row.name);
        for name in row.labels.iter().map(|label| label.name) {
            assert_eq!(label_name(otlp_names::attribute_name(name)), name);
        }
    }
}

#[test]
fn names_follow_semantic_conventions() {
    let histogram = MetricKind::Histogram(&[]);
    for (metric, kind, name, unit) in [
        (
            "gen_ai_server_time_to_first_token_seconds",
            histogram,
            "gen_ai.server.time_to_first_token",
            "s",
        ),
        (
            "gen_ai_server_time_per_output_token_seconds",
            histogram,
            "gen_ai.server.time_per_output_token",
            "s",
        ),
        (
            "gen_ai_server_request_duration_seconds",
            histogram,
            "gen_ai.server.request.duration",
            "s",
        ),
        ("gen_ai_client_token_usage", histogram, "gen_ai.client.token.usage", "{token}"),
        ("tokenweir_request_body_bytes_total", MetricKind::Counter, "tokenweir.request_body", "By"),
        ("tokenweir_backend_kv_usage_ratio", MetricKind::Gauge, "tokenweir.backend_kv_usage", "1"),
        ("process_cpu_seconds_total", MetricKind::Counter, "process.cpu", "s"),
    ] {
        let otlp = otlp_names::otlp_name(metric, kind);
        assert_eq!((otlp.name.as_str(), otlp.unit), (name, unit));
    }
}

// === Comparison with the metrics page ===

fn status_snapshot() -> StatusSnapshot {
    let silent_backend = BackendStatusSnapshot {
        backend: "gpu-0".into(),
        health: "up",
        ..BackendStatusSnapshot::default()
    };
    let reporting_backend = BackendStatusSnapshot {
        backend: "gpu-1".into(),
        kv_usage: Some(0.5),
        ..silent_backend.clone()
    };
    StatusSnapshot {
        backends: vec![silent_backend, reporting_backend],
        models: vec![LabelledModel { name: "tiny".into(), is_seeded: true }],
        ..StatusSnapshot::default()
    }
}

/// A record of a stream whose histograms also have exponential buckets.
fn streamed_with_exponential_buckets() -> RequestRecord {
    let mut record = streamed();
    let buckets = ResponseBuckets { has_exponential: true, ..ResponseBuckets::default() };
    record.observed.set_buckets(&buckets);
    for millis in [7, 11, 45] {
        record.observed.inter_chunk_latency.record_duration_n(Duration::from_millis(millis), 3);
        record.observed.chunk_transit.record_n(0.000_03, 3);
    }
    record
}

fn prometheus_with_request() -> Prometheus {
    use tokenweir_core::observe::Sink;
    let prometheus =
        Prometheus::new(KnownLabelValues::default(), &BucketOverrides::default(), Vec::new())
            .with_exponential_buckets();
    let record = streamed_with_exponential_buckets();
    prometheus.first_output(&record);
    prometheus.finished(&[&record]);
    prometheus
}

fn time_range() -> PushTimeRange {
    let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    PushTimeRange::new(start, start + Duration::from_secs(1))
}

/// The values and exemplars on the metrics page by series, without the `process_*` metrics, which
/// change between two reads.
fn samples_on_page(prometheus: &Prometheus) -> BTreeMap<String, String> {
    let page = prometheus.page(&status_snapshot(), ExpositionFormat::OpenMetrics);
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    let samples = samples.filter(|line| !line.starts_with("process_"));
    let sample = |line: &str| {
        let (sample, exemplar) = line.split_once(" # ").unwrap_or((line, ""));
        let (series, value) = sample.rsplit_once(' ').unwrap();
        // A label with an empty value equals an absent label.
        let series =
            ["tier", "error_type", "backend"].iter().fold(series.to_owned(), |series, name| {
                let empty = format!("{name}=\"\"");
                series
                    .replace(&format!("{empty},"), "")
                    .replace(&format!(",{empty}"), "")
                    .replace(&format!("{{{empty}}}"), "")
            });
        (series, format!("{value} {exemplar}"))
    };
    samples.map(sample).collect()
}

/// The name of a series in the form of the metrics page.
fn series(name: &str, suffix: &str, attributes: &[KeyValue], le: Option<&str>) -> String {
    let text = |attribute: &KeyValue| match &attribute.value.as_ref().unwrap().value {
        Some(any_value::Value::StringValue(text)) => {
            format!("{}=\"{text}\"", label_name(&attribute.key))
        }
        other => panic!("{other:?}"),
    };
    let mut labels: Vec<String> = attributes.iter().map(text).collect();
    labels.sort_unstable();
    labels.extend(le.map(|le| format!("le=\"{le}\"")));
    let labels =
        if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
    format!("{name}{suffix}{labels}")
}

/// The value of a data point. NaN: the point has no value.
fn number(point: &NumberDataPoint) -> f64 {
    assert_eq!(point.flags == 1, point.value.is_none());
    match point.value {
        None => f64::NAN,
        Some(number_data_point::Value::AsDouble(value)) => value,
        Some(number_data_point::Value::AsInt(value)) => panic!("{value}"),
    }
}

/// The values and exemplars of an OTLP metric by series, in the form of the metrics page.
fn samples(metric: &Metric) -> Vec<(String, String)> {
    let Metric { name, unit, data, .. } = metric;
    let numbers = |points: &[NumberDataPoint], kind| {
        let name = prometheus_name(name, unit, kind);
        let sample = |point: &NumberDataPoint| {
            (series(&name, "", &point.attributes, None), format!("{} ", number(point)))
        };
        points.iter().map(sample).collect()
    };
    match data.as_ref().unwrap() {
        Data::Gauge(gauge) => numbers(&gauge.data_points, MetricKind::Gauge),
        Data::Sum(sum) => {
            assert!(sum.is_monotonic && sum.aggregation_temporality == 2);
            assert!(
                sum.data_points.iter().all(|point| point.start_time_unix_nano == 1_000_000_000)
            );
            numbers(&sum.data_points, MetricKind::Counter)
        }
        Data::Histogram(histogram) => {
            let name = prometheus_name(name, unit, MetricKind::Histogram(&[]));
            let mut samples = Vec::new();
            for point in &histogram.data_points {
                let bounds = BucketBounds::from_slice(&point.explicit_bounds);
                let mut exemplars = vec![String::new(); bounds.len() + 1];
                for exemplar in &point.exemplars {
                    let Some(ExemplarValue::AsDouble(value)) = exemplar.value else {
                        panic!("{exemplar:?}");
                    };
                    let trace = u128::from_be_bytes(exemplar.trace_id[..].try_into().unwrap());
                    let span = u64::from_be_bytes(exemplar.span_id[..].try_into().unwrap());
                    let nanos = exemplar.time_unix_nano;
                    let (seconds, millis) = (nanos / 1_000_000_000, nanos / 1_000_000 % 1_000);
                    exemplars[bounds.bucket_index(value)] = format!(
                        "{{trace_id=\"{trace:032x}\",span_id=\"{span:016x}\"}} {value} {seconds}.{millis:03}"
                    );
                }
                let bucket_labels =
                    crate::telemetry::metrics_registry::exposition::format_bucket_labels(&bounds);
                let mut cumulative = 0;
                let buckets = bucket_labels.iter().zip(&point.bucket_counts).zip(exemplars);
                for ((le, count), exemplar) in buckets {
                    cumulative += count;
                    samples.push((
                        series(&name, "_bucket", &point.attributes, Some(le)),
                        format!("{cumulative} {exemplar}"),
                    ));
                }
                assert_eq!(cumulative, point.count);
                samples.push((
                    series(&name, "_count", &point.attributes, None),
                    format!("{} ", point.count),
                ));
                samples.push((
                    series(&name, "_sum", &point.attributes, None),
                    format!("{} ", point.sum.unwrap()),
                ));
            }
            samples
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn pushed_metrics_equal_the_exposition_including_exemplars() {
    let prometheus = prometheus_with_request();
    let page = samples_on_page(&prometheus);
    let metrics = message::build_metrics(&prometheus, &status_snapshot(), time_range(), false);
    let gateway_metrics = metrics.iter().filter(|metric| !metric.name.starts_with("process."));
    let pushed: BTreeMap<String, String> = gateway_metrics.flat_map(samples).collect();
    for (series, value) in &page {
        assert_eq!(pushed.get(series), Some(value), "{series}");
    }
    assert_eq!(pushed.len(), page.len());
    assert!(page.values().any(|value| value.contains("trace_id")));
    assert!(page.values().any(|value| value == "NaN "));
    assert!(metrics.iter().any(|metric| metric.name == "process.cpu"));
}

#[test]
fn many_backends_are_split_into_bounded_requests_without_loss() {
    use prost::Message;
    let prometheus = prometheus_with_request();
    let backend = |number| BackendStatusSnapshot {
        backend: format!("gpu-{number}"),
        ..BackendStatusSnapshot::default()
    };
    let model = |number| LabelledModel { name: format!("model-{number}").into(), is_seeded: true };
    let models = (0..20).map(model).collect();
    let status = StatusSnapshot {
        backends: (0..100).map(backend).collect(),
        models,
        ..StatusSnapshot::default()
    };
    let metrics = message::build_metrics(&prometheus, &status, time_range(), false);
    let total: usize = metrics.iter().map(|metric| samples(metric).len()).sum();
    let requests = message::build_requests(metrics, &Resource::default());
    let metrics = |request: &ExportMetricsServiceRequest| {
        let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
        metrics.iter().map(|metric| samples(metric).len()).sum::<usize>()
    };
    assert_eq!(requests.iter().map(metrics).sum::<usize>(), total);
    assert!(requests.len() > 10 && total > 100_000, "{total} in {}", requests.len());
    for request in &requests {
        assert!(request.encoded_len() < 2 << 20, "{}", request.encoded_len());
    }
}

// === Failing collectors ===

fn spawn_collector(serve: fn(TcpStream)) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1/metrics", listener.local_addr().unwrap());
    thread::spawn(move || listener.incoming().flatten().for_each(serve));
    url
}

fn refusing_endpoint() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// Reads some bytes of the request and writes `response`. Without the read, a reset of the
/// connection could discard the response.
fn respond(mut stream: TcpStream, response: &[u8]) {
    let _ = stream.read(&mut [0; 4_096]);
    let _ = stream.write_all(response);
}

fn respond_unavailable(stream: TcpStream) {
    respond(stream, b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n");
}

/// Responds with `partial_success { rejected_data_points: 3, error_message: "no" }`.
fn respond_partial_success(stream: TcpStream) {
    respond(stream, b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n\x0a\x06\x08\x03\x12\x02no");
}

fn respond_garbage(stream: TcpStream) {
    respond(stream, b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n\xff\xff\xff\xff");
}

fn settings(endpoint: String, protocol: OtlpProtocol) -> MetricsPushSettings {
    let configured = MetricsPushConfig {
        is_wanted: true,
        endpoint: Some("http://a".into()),
        protocol: Some(protocol),
        interval: Some(Duration::from_hours(1)),
    };
    MetricsPushSettings {
        endpoint,
        ..MetricsPushSettings::read(configured, |_| None).unwrap().unwrap()
    }
}

fn source() -> MetricsPushSource {
    let telemetry = Arc::new(Telemetry::new(prometheus_with_request(), Vec::new()));
    MetricsPushSource {
        telemetry,
        vitals: Box::new(status_snapshot),
        since: SystemTime::UNIX_EPOCH,
    }
}

/// Runs in real time, because the collector uses a real socket.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn failing_collector_is_counted_and_shutdown_stays_within_its_timeout() {
    for (failure, url) in [
        ("hangs", spawn_collector(std::mem::forget)),
        ("refuses", refusing_endpoint()),
        ("closes", spawn_collector(drop)),
        ("is busy", spawn_collector(respond_unavailable)),
        ("accepts a part", spawn_collector(respond_partial_success)),
        ("sends garbage", spawn_collector(respond_garbage)),
    ] {
        for protocol in [OtlpProtocol::Grpc, OtlpProtocol::HttpProtobuf] {
            let counter = MetricsPushStats::default();
            let push =
                MetricsPusher::start(&settings(url.clone(), protocol), source(), counter.clone());
            let before = clock::now();
            push.unwrap().shutdown().await;
            let took = clock::now() - before;
            assert!(took < SHUTDOWN_TIMEOUT + Duration::from_secs(1), "{failure} {took:?}");
            assert_eq!(
                counter.counts(),
                MetricsPushCounts { ok: 0, failed: 1 },
                "{failure} {protocol:?}"
            );
        }
    }
}
