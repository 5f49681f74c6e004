//! What is pushed is what the page shows, whatever the collector makes of it.

use super::message::{self, Span};
use super::names;
use super::*;
use crate::backend::LabelledModel;
use crate::telemetry::buckets::Buckets;
use crate::telemetry::catalog;
use crate::telemetry::exposition::Format;
use crate::telemetry::metric::{Kind, Known, Label};
use crate::telemetry::otel::Protocol;
use crate::telemetry::prometheus::Prometheus;
use crate::telemetry::vitals::BackendVitals;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::exemplar::Value as Shown;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{Metric, NumberDataPoint, number_data_point};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use tokenweir_core::record::sample::streamed;
use tokenweir_core::spread::Bounds;

// === As Prometheus translates ===

/// What Prometheus calls a metric of OTLP with its strategy `UnderscoreEscapingWithSuffixes`,
/// after its documentation.
fn translated(name: &str, unit: &str, kind: Kind) -> String {
    let letters = |c: char| !c.is_ascii_alphanumeric();
    let mut words: Vec<&str> = name.split(letters).filter(|word| !word.is_empty()).collect();
    let unit_word = match unit {
        "s" => "seconds",
        "By" => "bytes",
        _ => "",
    };
    if !unit_word.is_empty() && !words.contains(&unit_word) {
        words.push(unit_word);
    }
    let last = match kind {
        Kind::Counter => "total",
        Kind::Gauge if unit == "1" => "ratio",
        _ => return words.join("_"),
    };
    words.retain(|word| *word != last);
    words.push(last);
    words.join("_")
}

/// The same of an attribute.
fn label(attribute: &str) -> String {
    attribute.replace('.', "_")
}

#[test]
fn every_name_comes_back_from_prometheus_as_it_is_on_the_page() {
    let mut names = BTreeSet::new();
    for row in catalog::rows() {
        let own = names::name(row.name, row.kind);
        assert_eq!(translated(&own.name, own.unit, row.kind), row.name, "{own:?}");
        assert!(names.insert(own.name), "{} stands twice", row.name);
        for name in row.labels.iter().copied().map(Label::name) {
            assert_eq!(label(names::attribute(name)), name);
        }
    }
}

#[test]
fn names_are_those_of_the_conventions_where_there_are_any() {
    let histogram = Kind::Histogram(&[]);
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
        ("tokenweir_body_bytes_total", Kind::Counter, "tokenweir.body", "By"),
        ("tokenweir_backend_kv_usage_ratio", Kind::Gauge, "tokenweir.backend_kv_usage", "1"),
        ("process_cpu_seconds_total", Kind::Counter, "process.cpu", "s"),
    ] {
        let own = names::name(metric, kind);
        assert_eq!((own.name.as_str(), own.unit), (name, unit));
    }
}

// === Against the page ===

fn vitals() -> Vitals {
    let known = BackendVitals { backend: "gpu-0".into(), health: "up", ..BackendVitals::default() };
    let told = BackendVitals { backend: "gpu-1".into(), kv_usage: Some(0.5), ..known.clone() };
    Vitals {
        backends: vec![known, told],
        models: vec![LabelledModel { name: "tiny".into(), is_seeded: true }],
        ..Vitals::default()
    }
}

fn counted() -> Prometheus {
    use tokenweir_core::observe::Sink;
    let prometheus = Prometheus::new(Known::default(), &Buckets::default(), Vec::new());
    let record = streamed();
    prometheus.first_output(&record);
    prometheus.finished(&record);
    prometheus
}

fn span() -> Span {
    let since = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    Span::new(since, since + Duration::from_secs(1))
}

/// The samples of a page without those of the process, which moves on. Also the exemplars.
fn on_page(prometheus: &Prometheus) -> BTreeMap<String, String> {
    let page = prometheus.page(&vitals(), Format::OpenMetrics);
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    let samples = samples.filter(|line| !line.starts_with("process_"));
    let sample = |line: &str| {
        let (sample, exemplar) = line.split_once(" # ").unwrap_or((line, ""));
        let (series, value) = sample.rsplit_once(' ').unwrap();
        // An empty label is none.
        let series = ["tier", "error_type"].iter().fold(series.to_owned(), |series, name| {
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

fn series(name: &str, suffix: &str, attributes: &[KeyValue], bar: Option<&str>) -> String {
    let text = |attribute: &KeyValue| match &attribute.value.as_ref().unwrap().value {
        Some(any_value::Value::StringValue(text)) => {
            format!("{}=\"{text}\"", label(&attribute.key))
        }
        other => panic!("{other:?}"),
    };
    let mut labels: Vec<String> = attributes.iter().map(text).collect();
    labels.sort_unstable();
    labels.extend(bar.map(|bar| format!("le=\"{bar}\"")));
    let labels =
        if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
    format!("{name}{suffix}{labels}")
}

fn number(point: &NumberDataPoint) -> f64 {
    assert_eq!(point.flags == 1, point.value.is_none());
    match point.value {
        None => f64::NAN,
        Some(number_data_point::Value::AsDouble(value)) => value,
        Some(number_data_point::Value::AsInt(value)) => panic!("{value}"),
    }
}

/// What a page would say of a metric of OTLP.
fn samples(metric: &Metric) -> Vec<(String, String)> {
    let Metric { name, unit, data, .. } = metric;
    let numbers = |points: &[NumberDataPoint], kind| {
        let name = translated(name, unit, kind);
        let sample = |point: &NumberDataPoint| {
            (series(&name, "", &point.attributes, None), format!("{} ", number(point)))
        };
        points.iter().map(sample).collect()
    };
    match data.as_ref().unwrap() {
        Data::Gauge(gauge) => numbers(&gauge.data_points, Kind::Gauge),
        Data::Sum(sum) => {
            assert!(sum.is_monotonic && sum.aggregation_temporality == 2);
            assert!(
                sum.data_points.iter().all(|point| point.start_time_unix_nano == 1_000_000_000)
            );
            numbers(&sum.data_points, Kind::Counter)
        }
        Data::Histogram(histogram) => {
            let name = translated(name, unit, Kind::Histogram(&[]));
            let mut samples = Vec::new();
            for point in &histogram.data_points {
                let bounds = Bounds::given(&point.explicit_bounds);
                let mut shown = vec![String::new(); bounds.len() + 1];
                for exemplar in &point.exemplars {
                    let Some(Shown::AsDouble(value)) = exemplar.value else {
                        panic!("{exemplar:?}");
                    };
                    let trace = u128::from_be_bytes(exemplar.trace_id[..].try_into().unwrap());
                    let span = u64::from_be_bytes(exemplar.span_id[..].try_into().unwrap());
                    let at = exemplar.time_unix_nano;
                    let (seconds, millis) = (at / 1_000_000_000, at / 1_000_000 % 1_000);
                    shown[bounds.bucket(value)] = format!(
                        "{{trace_id=\"{trace:032x}\",span_id=\"{span:016x}\"}} {value} {seconds}.{millis:03}"
                    );
                }
                let bars = crate::telemetry::exposition::bars(&bounds);
                let mut cumulative = 0;
                for ((bar, count), shown) in bars.iter().zip(&point.bucket_counts).zip(shown) {
                    cumulative += count;
                    samples.push((
                        series(&name, "_bucket", &point.attributes, Some(bar)),
                        format!("{cumulative} {shown}"),
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
fn what_is_pushed_is_what_the_page_shows_exemplars_and_all() {
    let prometheus = counted();
    let page = on_page(&prometheus);
    let metrics = message::metrics(&prometheus, &vitals(), span());
    let own = metrics.iter().filter(|metric| !metric.name.starts_with("process."));
    let pushed: BTreeMap<String, String> = own.flat_map(samples).collect();
    for (series, value) in &page {
        assert_eq!(pushed.get(series), Some(value), "{series}");
    }
    assert_eq!(pushed.len(), page.len());
    assert!(page.values().any(|value| value.contains("trace_id")));
    assert!(page.values().any(|value| value == "NaN "));
    assert!(metrics.iter().any(|metric| metric.name == "process.cpu"));
}

#[test]
fn a_large_fleet_is_told_in_messages_that_a_collector_takes_and_none_is_left_out() {
    use prost::Message;
    let prometheus = counted();
    let backend =
        |number| BackendVitals { backend: format!("gpu-{number}"), ..BackendVitals::default() };
    let model = |number| LabelledModel { name: format!("model-{number}").into(), is_seeded: true };
    let models = (0..20).map(model).collect();
    let fleet = Vitals { backends: (0..100).map(backend).collect(), models, ..Vitals::default() };
    let metrics = message::metrics(&prometheus, &fleet, span());
    let all: usize = metrics.iter().map(|metric| samples(metric).len()).sum();
    let requests = message::requests(metrics, &Resource::default());
    let metrics = |request: &ExportMetricsServiceRequest| {
        let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
        metrics.iter().map(|metric| samples(metric).len()).sum::<usize>()
    };
    assert_eq!(requests.iter().map(metrics).sum::<usize>(), all);
    assert!(requests.len() > 10 && all > 100_000, "{all} in {}", requests.len());
    for request in &requests {
        assert!(request.encoded_len() < 2 << 20, "{}", request.encoded_len());
    }
}

// === Collectors that fail ===

fn collector(serve: fn(TcpStream)) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1/metrics", listener.local_addr().unwrap());
    thread::spawn(move || listener.incoming().flatten().for_each(serve));
    url
}

fn refusing() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// Reads a little, so that the answer is not lost to a reset.
fn answer(mut stream: TcpStream, answer: &[u8]) {
    let _ = stream.read(&mut [0; 4_096]);
    let _ = stream.write_all(answer);
}

fn unavailable(stream: TcpStream) {
    answer(stream, b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n");
}

/// `partial_success { rejected_data_points: 3, error_message: "no" }`
fn partly(stream: TcpStream) {
    answer(stream, b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n\x0a\x06\x08\x03\x12\x02no");
}

fn garbage(stream: TcpStream) {
    answer(stream, b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n\xff\xff\xff\xff");
}

fn settings(endpoint: String, protocol: Protocol) -> Settings {
    let own = Configured {
        is_wanted: true,
        endpoint: Some("http://a".into()),
        protocol: Some(protocol),
        interval: Some(Duration::from_hours(1)),
    };
    Settings { endpoint, ..Settings::read(own, |_| None).unwrap().unwrap() }
}

fn source() -> Source {
    let telemetry = Arc::new(Telemetry::new(counted(), Vec::new()));
    Source { telemetry, vitals: Box::new(vitals), since: SystemTime::UNIX_EPOCH }
}

/// Real time: the collector is on a real socket.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_collector_that_fails_in_any_way_is_counted_and_delays_the_shutdown_by_its_limit_only() {
    for (failing, url) in [
        ("hangs", collector(std::mem::forget)),
        ("refuses", refusing()),
        ("closes", collector(drop)),
        ("is busy", collector(unavailable)),
        ("takes a part", collector(partly)),
        ("talks nonsense", collector(garbage)),
    ] {
        for protocol in [Protocol::Grpc, Protocol::HttpProtobuf] {
            let counter = Counter::default();
            let push = Push::start(&settings(url.clone(), protocol), source(), counter.clone());
            let before = clock::now();
            push.unwrap().shutdown().await;
            let took = clock::now() - before;
            assert!(took < SHUTDOWN_LIMIT + Duration::from_secs(1), "{failing} {took:?}");
            assert_eq!(counter.counts(), Counts { ok: 0, failed: 1 }, "{failing} {protocol:?}");
        }
    }
}
