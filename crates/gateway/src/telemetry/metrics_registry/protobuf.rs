//! Writes the metrics page as Protocol Buffers messages of the package `io.prometheus.client` (`metrics.proto`
//! of the repository `prometheus/client_model`). Fields that the gateway does not use are left out.

use super::exemplar::Exemplar;
use super::prometheus::{INITIAL_PAGE_CAPACITY_BYTES, Prometheus};
use super::series::{FamilyValue, MetricFamily, SeriesPoint};
use crate::status::StatusSnapshot;
use prost::Message;
use tokenweir_protocol::histogram::{ExponentialHistogram, ZERO_THRESHOLD};
use tokenweir_protocol::metric_kind::MetricKind;

#[derive(Clone, PartialEq, Message)]
pub(super) struct FamilyMessage {
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

/// The message `google.protobuf.Timestamp`.
#[derive(Clone, Copy, PartialEq, Message)]
struct TimestampMessage {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

impl FamilyMessage {
    /// Creates the message of a metric, without series.
    pub(super) fn new(name: &str, help: &str, kind: MetricKind) -> Self {
        let kind = match kind {
            MetricKind::Counter => 0,
            MetricKind::Gauge => 1,
            MetricKind::Histogram(_) => 4,
        };
        Self {
            name: name.to_owned(),
            help: help.to_owned(),
            kind: Some(kind),
            metrics: Vec::new(),
        }
    }

    /// Adds a series with one number.
    pub(super) fn add_number<'l>(
        &mut self,
        labels: impl Iterator<Item = (&'static str, &'l str)>,
        value: f64,
    ) {
        let mut metric = MetricMessage {
            labels: label_messages(labels),
            ..MetricMessage::default()
        };
        let is_counter = self.kind == Some(0);
        let number = if is_counter {
            &mut metric.counter
        } else {
            &mut metric.gauge
        };
        *number = Some(NumberMessage { value: Some(value) });
        self.metrics.push(metric);
    }

    /// Adds a series of a histogram, with its classic and its native buckets.
    pub(super) fn add_histogram<'l>(
        &mut self,
        family: &MetricFamily,
        labels: impl Iterator<Item = (&'static str, &'l str)>,
        point: &SeriesPoint,
    ) {
        let histogram = HistogramMessage::new(&family.bounds, point);
        self.metrics.push(MetricMessage {
            labels: label_messages(labels),
            histogram: Some(histogram),
            ..MetricMessage::default()
        });
    }

    /// Appends the message with its length to `page`. A metric without series is left out.
    pub(super) fn append_to(&self, page: &mut Vec<u8>) {
        if !self.metrics.is_empty() {
            page.extend_from_slice(&self.encode_length_delimited_to_vec());
        }
    }
}

impl HistogramMessage {
    fn new(bounds: &[f64], point: &SeriesPoint) -> Self {
        let mut cumulative_count = 0;
        let bounds = bounds.iter().copied().chain([f64::INFINITY]);
        let buckets = bounds
            .zip(&point.counts)
            .enumerate()
            .map(|(index, (bound, count))| {
                cumulative_count += count;
                let exemplar = point
                    .exemplars()
                    .iter()
                    .find(|(bucket, _)| *bucket == index);
                BucketMessage {
                    cumulative_count: Some(cumulative_count),
                    upper_bound: Some(bound),
                    exemplar: exemplar.map(|(_, exemplar)| ExemplarMessage::new(exemplar)),
                }
            });
        let buckets = buckets.collect();
        let native = point.exponential();
        Self {
            count: Some(cumulative_count),
            sum: Some(point.sum),
            buckets,
            schema: Some(native.scale()),
            // A native histogram without values has no spans. Prometheus recognizes it by its zero threshold
            // above 0.
            zero_threshold: Some(ZERO_THRESHOLD),
            zero_count: Some(native.zero_count()),
            spans: SpanMessage::of(&native).into_iter().collect(),
            deltas: deltas(native.counts()),
        }
    }
}

impl SpanMessage {
    /// Returns one span that covers all native buckets. `None`: the histogram has no native buckets. Prometheus
    /// numbers a bucket by its upper bound, but [`ExponentialHistogram`] by its lower bound. So the offset for
    /// Prometheus is larger by one.
    fn of(native: &ExponentialHistogram) -> Option<Self> {
        let length = u32::try_from(native.counts().len())
            .ok()
            .filter(|length| *length > 0)?;
        Some(Self {
            offset: Some(native.offset() + 1),
            length: Some(length),
        })
    }
}

impl ExemplarMessage {
    fn new(exemplar: &Exemplar) -> Self {
        let label = |name: &str, value| LabelMessage {
            name: name.to_owned(),
            value,
        };
        Self {
            labels: vec![
                label("trace_id", format!("{:032x}", exemplar.trace_id)),
                label("span_id", format!("{:016x}", exemplar.span_id)),
            ],
            value: Some(exemplar.value),
            timestamp: Some(TimestampMessage {
                seconds: i64::try_from(exemplar.ended_at.as_secs()).unwrap_or(i64::MAX),
                nanos: exemplar.ended_at.subsec_nanos().cast_signed(),
            }),
        }
    }
}

fn label_messages<'l>(labels: impl Iterator<Item = (&'static str, &'l str)>) -> Vec<LabelMessage> {
    let label = |(name, value): (&str, &str)| LabelMessage {
        name: name.into(),
        value: value.into(),
    };
    labels.map(label).collect()
}

/// Returns the difference of each count from the previous one. The first count is unchanged.
fn deltas(counts: &[u64]) -> Vec<i64> {
    let mut previous = 0;
    let delta = |count: &u64| {
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        count - std::mem::replace(&mut previous, count)
    };
    counts.iter().map(delta).collect()
}

impl Prometheus {
    /// Renders the metrics page as messages of Protocol Buffers.
    pub fn protobuf_page(&self, status: &StatusSnapshot) -> Vec<u8> {
        let mut page = Vec::with_capacity(INITIAL_PAGE_CAPACITY_BYTES);
        self.update_known_labels(status);
        for family in &self.families {
            let row = family.row;
            let mut message = FamilyMessage::new(row.name, row.help, row.kind);
            family.values(status, &mut |value| match value {
                FamilyValue::Current(labels, value) => {
                    message.add_number(family.sorted_labels(labels), value);
                }
                FamilyValue::Recorded(labels, point) => {
                    let labels: Vec<&str> = labels.values().collect();
                    let labels = family.sorted_labels(&labels);
                    if point.counts.is_empty() {
                        message.add_number(labels, point.sum);
                    } else {
                        message.add_histogram(family, labels, point);
                    }
                }
            });
            message.append_to(&mut page);
        }
        self.process_metrics(&mut |name, help, kind, value| {
            let mut message = FamilyMessage::new(name, help, kind);
            message.add_number(std::iter::empty(), value);
            message.append_to(&mut page);
        });
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::StatusSnapshot;
    use crate::telemetry::metrics_registry::{BucketOverrides, ExpositionFormat, Prometheus};
    use std::collections::BTreeMap;
    use tokenweir_request::observe::Sink;
    use tokenweir_request::record::fixtures::streamed;

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
    fn the_page_has_the_series_of_text() {
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
        let page = prometheus.protobuf_page(&status);
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
}
