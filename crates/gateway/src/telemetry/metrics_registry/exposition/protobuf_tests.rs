//! Tests of the page as Protocol Buffers, which they decode with `prost`.

use crate::status::StatusSnapshot;
use crate::telemetry::metrics_registry::{BucketOverrides, ExpositionFormat, Prometheus};
use prost::Message;
use std::collections::BTreeMap;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::fixtures::streamed;

#[derive(Clone, PartialEq, Message)]
struct FamilyMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    help: String,
    /// The type of the metric. 0: counter, 1: gauge, 4: histogram. Like the client libraries of Prometheus, the
    /// gateway writes the field even if it is 0.
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
    #[prost(message, repeated, tag = "4")]
    metrics: Vec<MetricMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct MetricMessage {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<LabelMessage>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<NumberMessage>,
    #[prost(message, optional, tag = "3")]
    counter: Option<NumberMessage>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<HistogramMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct LabelMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// The Prometheus messages `Gauge` and `Counter`, which have the same fields.
#[derive(Clone, Copy, PartialEq, Message)]
struct NumberMessage {
    #[prost(double, optional, tag = "1")]
    value: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct HistogramMessage {
    #[prost(uint64, optional, tag = "1")]
    count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    sum: Option<f64>,
    #[prost(message, repeated, tag = "3")]
    buckets: Vec<BucketMessage>,
    #[prost(sint32, optional, tag = "5")]
    schema: Option<i32>,
    #[prost(double, optional, tag = "6")]
    zero_threshold: Option<f64>,
    #[prost(uint64, optional, tag = "7")]
    zero_count: Option<u64>,
    #[prost(message, repeated, tag = "12")]
    spans: Vec<SpanMessage>,
    /// The counts of the native buckets. The first element is a count. Each further element is the difference
    /// from the previous count.
    #[prost(sint64, repeated, tag = "13")]
    deltas: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct BucketMessage {
    #[prost(uint64, optional, tag = "1")]
    cumulative_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    upper_bound: Option<f64>,
    #[prost(message, optional, tag = "3")]
    exemplar: Option<ExemplarMessage>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct SpanMessage {
    #[prost(sint32, optional, tag = "1")]
    offset: Option<i32>,
    #[prost(uint32, optional, tag = "2")]
    length: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct ExemplarMessage {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<LabelMessage>,
    #[prost(double, optional, tag = "2")]
    value: Option<f64>,
    #[prost(message, optional, tag = "3")]
    timestamp: Option<TimestampMessage>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct TimestampMessage {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// Returns the series of a message, named as in the text format, with their values. The value
/// of a histogram is the number of its recorded values.
fn samples(family: &FamilyMessage) -> Vec<(String, f64)> {
    let sample = |metric: &MetricMessage| {
        let labels: Vec<String> = metric
            .labels
            .iter()
            .map(|label| format!("{}=\"{}\"", label.name, label.value))
            .collect();
        let labels = if labels.is_empty() {
            String::new()
        } else {
            format!("{{{}}}", labels.join(","))
        };
        let number = metric
            .counter
            .or(metric.gauge)
            .and_then(|number| number.value);
        match (&metric.histogram, number) {
            (Some(histogram), None) => (
                format!("{}_count{labels}", family.name),
                histogram.count.unwrap() as f64,
            ),
            (None, Some(number)) => (format!("{}{labels}", family.name), number),
            other => panic!("{other:?}"),
        }
    };
    family.metrics.iter().map(sample).collect()
}

#[test]
fn the_protobuf_page_has_the_text_formats_series() {
    let prometheus = Prometheus::new(
        BucketOverrides {
            is_native: true,
            ..BucketOverrides::default()
        },
        Vec::new(),
    );
    let record = streamed();
    prometheus.first_output(&record);
    prometheus.finished(&[&record]);
    let status = StatusSnapshot::default();
    let (mut series_values, mut native_values, mut exemplars) = (BTreeMap::new(), 0, 0);
    let page = prometheus.page(&status, ExpositionFormat::Protobuf);
    let mut rest = &page[..];
    while !rest.is_empty() {
        let family = FamilyMessage::decode_length_delimited(&mut rest).unwrap();
        series_values.extend(samples(&family));
        for histogram in family
            .metrics
            .iter()
            .filter_map(|metric| metric.histogram.as_ref())
        {
            // The count of a bucket is the sum of the differences up to and including it.
            let mut count = 0;
            let mut total = histogram.zero_count.unwrap().cast_signed();
            for delta in &histogram.deltas {
                count += delta;
                total += count;
            }
            let length = histogram
                .spans
                .first()
                .map_or(0, |span| span.length.unwrap());
            assert_eq!(length as usize, histogram.deltas.len());
            if !["inter_", "chunk_"]
                .iter()
                .any(|name| family.name.contains(name))
            {
                assert_eq!(
                    total.cast_unsigned(),
                    histogram.count.unwrap(),
                    "{}",
                    family.name
                );
            }
            native_values += total;
            exemplars += histogram
                .buckets
                .iter()
                .filter(|bucket| bucket.exemplar.is_some())
                .count();
        }
    }
    let text = prometheus.page(&status, ExpositionFormat::Text);
    let text = String::from_utf8(text).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let lines = lines.filter(|line| !line.contains("_bucket") && !line.contains("_sum"));
    let mut count = 0;
    // These values change between two pages.
    let is_stable = |line: &&str| {
        !line.starts_with("process_") && !line.starts_with("tokenweir_telemetry_cpu_seconds")
    };
    for line in lines.filter(is_stable) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap();
        let found = series_values.get(series).copied();
        assert!(
            found.is_some_and(|found| found.total_cmp(&value).is_eq()),
            "{line} {found:?}"
        );
        count += 1;
    }
    assert!(
        count > 200 && native_values > 10 && exemplars > 5,
        "{count} {native_values}"
    );
}
