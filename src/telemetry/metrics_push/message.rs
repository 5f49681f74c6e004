//! Converts the metrics to OTLP export requests. Counters become sums, histograms keep their
//! bounds or have exponential buckets, and all values are cumulative since the start of the process.

use super::otlp_names::{attribute_name, otlp_name};
use crate::telemetry::metric::MetricDescriptor;
use crate::telemetry::metrics_registry::exemplar::Exemplar;
use crate::telemetry::metrics_registry::prometheus::{FamilyValue, Prometheus};
use crate::telemetry::metrics_registry::series::{MetricFamily, SeriesPoint};
use crate::telemetry::status::StatusSnapshot;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, DataPointFlags, Exemplar as OtlpExemplar,
    ExponentialHistogram as OtlpExponentialHistogram, ExponentialHistogramDataPoint, Gauge,
    Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum,
    exemplar, exponential_histogram_data_point, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use std::time::SystemTime;
use tokenweir_core::histogram::ZERO_THRESHOLD;
use tokenweir_core::metric_kind::MetricKind;

/// Maximum number of data points in one export request. A collector accepts requests of up to 4 MiB
/// over gRPC by default, and a histogram point with all its exemplars has about 2 KiB.
const MAX_POINTS_PER_REQUEST: usize = 1_000;
const CUMULATIVE_TEMPORALITY: i32 = AggregationTemporality::Cumulative as i32;

/// The time range of the values of a push, in nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
pub(super) struct PushTimeRange {
    /// Start of the cumulative totals.
    start_nanos: u64,
    /// Time of the push.
    end_nanos: u64,
}

/// The OTLP data points of one metric.
enum FamilyPoints {
    Numbers(Vec<NumberDataPoint>),
    Histograms(Vec<HistogramDataPoint>),
    ExponentialHistograms(Vec<ExponentialHistogramDataPoint>),
}

/// Converts every metric that has a value. A metric with more than [`MAX_POINTS_PER_REQUEST`]
/// points becomes several OTLP metrics. `is_exponential`: histograms have exponential buckets.
pub(super) fn build_metrics(
    prometheus: &Prometheus,
    status: &StatusSnapshot,
    time_range: PushTimeRange,
    is_exponential: bool,
) -> Vec<Metric> {
    let mut metrics = Vec::new();
    for family in prometheus.families(status) {
        let row = family.row;
        let (mut numbers, mut histograms, mut exponential) = (Vec::new(), Vec::new(), Vec::new());
        prometheus.values(family, status, &mut |value| match value {
            FamilyValue::Current(labels, value) => {
                let attributes = build_attributes(row, labels.iter().copied());
                numbers.push(time_range.number_point(attributes, value));
            }
            FamilyValue::Recorded(labels, point) if point.counts.is_empty() => {
                let attributes = build_attributes(row, labels.values());
                numbers.push(time_range.number_point(attributes, point.sum));
            }
            FamilyValue::Recorded(labels, point) if is_exponential => {
                let attributes = build_attributes(row, labels.values());
                exponential.push(time_range.exponential_point(attributes, point));
            }
            FamilyValue::Recorded(labels, point) => {
                let attributes = build_attributes(row, labels.values());
                histograms.push(time_range.histogram_point(attributes, family, point));
            }
        });
        let numbers = numbers.chunks(MAX_POINTS_PER_REQUEST);
        let numbers = numbers.map(|points| FamilyPoints::Numbers(points.to_vec()));
        let histograms = histograms.chunks(MAX_POINTS_PER_REQUEST);
        let histograms = histograms.map(|points| FamilyPoints::Histograms(points.to_vec()));
        let exponential = exponential.chunks(MAX_POINTS_PER_REQUEST);
        let exponential =
            exponential.map(|points| FamilyPoints::ExponentialHistograms(points.to_vec()));
        let points = numbers.chain(histograms).chain(exponential);
        metrics.extend(points.map(|points| build_metric(row.name, row.help, row.kind, points)));
    }
    prometheus.process_metrics(&mut |name, help, kind, value| {
        let points = FamilyPoints::Numbers(vec![time_range.number_point(Vec::new(), value)]);
        metrics.push(build_metric(name, help, kind, points));
    });
    metrics
}

/// Distributes the metrics, in order, to export requests of at most [`MAX_POINTS_PER_REQUEST`]
/// points.
pub(super) fn build_requests(
    metrics: Vec<Metric>,
    resource: &Resource,
) -> Vec<ExportMetricsServiceRequest> {
    let mut batches: Vec<Vec<Metric>> = Vec::new();
    let mut points = 0;
    for metric in metrics {
        let metric_points = count_points(&metric);
        points += metric_points;
        if let Some(batch) = batches.last_mut().filter(|_| points <= MAX_POINTS_PER_REQUEST) {
            batch.push(metric);
        } else {
            batches.push(vec![metric]);
            points = metric_points;
        }
    }
    batches.into_iter().map(|metrics| build_request(metrics, resource.clone())).collect()
}

fn build_request(metrics: Vec<Metric>, resource: Resource) -> ExportMetricsServiceRequest {
    let scope = InstrumentationScope {
        name: env!("CARGO_PKG_NAME").to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_metrics = ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() };
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(resource),
            scope_metrics: vec![scope_metrics],
            ..ResourceMetrics::default()
        }],
    }
}

fn build_metric(metric: &str, help: &str, kind: MetricKind, points: FamilyPoints) -> Metric {
    let name = otlp_name(metric, kind);
    let data = match points {
        FamilyPoints::Histograms(data_points) => Data::Histogram(Histogram {
            data_points,
            aggregation_temporality: CUMULATIVE_TEMPORALITY,
        }),
        FamilyPoints::ExponentialHistograms(data_points) => {
            Data::ExponentialHistogram(OtlpExponentialHistogram {
                data_points,
                aggregation_temporality: CUMULATIVE_TEMPORALITY,
            })
        }
        FamilyPoints::Numbers(data_points) if kind == MetricKind::Counter => Data::Sum(Sum {
            data_points,
            aggregation_temporality: CUMULATIVE_TEMPORALITY,
            is_monotonic: true,
        }),
        FamilyPoints::Numbers(data_points) => Data::Gauge(Gauge { data_points }),
    };
    Metric {
        name: name.name,
        unit: name.unit.to_owned(),
        description: help.to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

fn count_points(metric: &Metric) -> usize {
    match &metric.data {
        Some(Data::Gauge(gauge)) => gauge.data_points.len(),
        Some(Data::Sum(sum)) => sum.data_points.len(),
        Some(Data::Histogram(histogram)) => histogram.data_points.len(),
        Some(Data::ExponentialHistogram(histogram)) => histogram.data_points.len(),
        _ => 0,
    }
}

/// The attributes of a data point, from the label values in the order of the row. A label with an
/// empty value is omitted, because Prometheus treats it like an absent label.
fn build_attributes<'a>(
    row: &MetricDescriptor,
    values: impl Iterator<Item = &'a str>,
) -> Vec<KeyValue> {
    let attribute = |(label, value): (_, &str)| KeyValue {
        key: attribute_name(label).to_owned(),
        value: Some(AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) }),
        ..KeyValue::default()
    };
    let names = row.labels.iter().map(|label| label.name);
    names.zip(values).filter(|(_, value)| !value.is_empty()).map(attribute).collect()
}

/// Converts a time to nanoseconds since the Unix epoch.
fn unix_nanos(time: SystemTime) -> u64 {
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}

// === impl PushTimeRange ===

impl PushTimeRange {
    pub(super) fn new(start: SystemTime, end: SystemTime) -> Self {
        Self { start_nanos: unix_nanos(start), end_nanos: unix_nanos(end) }
    }

    /// The data point of a counter or a gauge. NaN becomes a point without a value, which a graph
    /// shows as a gap and not as a zero.
    fn number_point(self, attributes: Vec<KeyValue>, value: f64) -> NumberDataPoint {
        let recorded_value = (!value.is_nan()).then_some(number_data_point::Value::AsDouble(value));
        let no_value_flag = DataPointFlags::NoRecordedValueMask as u32;
        NumberDataPoint {
            attributes,
            start_time_unix_nano: self.start_nanos,
            time_unix_nano: self.end_nanos,
            flags: if recorded_value.is_some() { 0 } else { no_value_flag },
            value: recorded_value,
            ..NumberDataPoint::default()
        }
    }

    fn histogram_point(
        self,
        attributes: Vec<KeyValue>,
        family: &MetricFamily,
        point: &SeriesPoint,
    ) -> HistogramDataPoint {
        HistogramDataPoint {
            attributes,
            start_time_unix_nano: self.start_nanos,
            time_unix_nano: self.end_nanos,
            count: point.counts.iter().sum(),
            sum: Some(point.sum),
            bucket_counts: point.counts.to_vec(),
            explicit_bounds: family.bounds.to_vec(),
            exemplars: otlp_exemplars(point),
            ..HistogramDataPoint::default()
        }
    }

    fn exponential_point(
        self,
        attributes: Vec<KeyValue>,
        point: &SeriesPoint,
    ) -> ExponentialHistogramDataPoint {
        let histogram = point.exponential();
        let positive = exponential_histogram_data_point::Buckets {
            offset: histogram.offset(),
            bucket_counts: histogram.counts().to_vec(),
        };
        ExponentialHistogramDataPoint {
            attributes,
            start_time_unix_nano: self.start_nanos,
            time_unix_nano: self.end_nanos,
            count: point.counts.iter().sum(),
            sum: Some(point.sum),
            scale: histogram.scale(),
            zero_count: histogram.zero_count(),
            zero_threshold: ZERO_THRESHOLD,
            positive: Some(positive),
            exemplars: otlp_exemplars(point),
            ..ExponentialHistogramDataPoint::default()
        }
    }
}

fn otlp_exemplars(point: &SeriesPoint) -> Vec<OtlpExemplar> {
    point.exemplars().iter().map(|(_, exemplar)| to_otlp_exemplar(exemplar)).collect()
}

fn to_otlp_exemplar(exemplar: &Exemplar) -> OtlpExemplar {
    OtlpExemplar {
        time_unix_nano: u64::try_from(exemplar.ended_at.as_nanos()).unwrap_or(u64::MAX),
        trace_id: exemplar.trace_id.to_be_bytes().to_vec(),
        span_id: exemplar.span_id.to_be_bytes().to_vec(),
        value: Some(exemplar::Value::AsDouble(exemplar.value)),
        ..OtlpExemplar::default()
    }
}
