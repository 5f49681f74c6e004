//! The families of the page as messages of OTLP: counters as sums, histograms with their bounds,
//! all cumulative since the start of the process.

use super::names::{attribute, name};
use crate::telemetry::exemplar::Exemplar;
use crate::telemetry::metric::{Kind, Row};
use crate::telemetry::prometheus::{Prometheus, Value};
use crate::telemetry::series::{Family, Point};
use crate::telemetry::vitals::Vitals;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, DataPointFlags, Exemplar as Shown, Gauge, Histogram,
    HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum, exemplar,
    number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use std::time::SystemTime;

/// Most points of one message. A collector takes 4 MiB over gRPC unless told otherwise; a point
/// of a histogram with all its exemplars has 2 KiB or so.
const MAX_POINTS: usize = 1_000;
const CUMULATIVE: i32 = AggregationTemporality::Cumulative as i32;

/// From the start of the counting to the moment of the push, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    since: u64,
    until: u64,
}

/// The points of one family.
enum Points {
    Numbers(Vec<NumberDataPoint>),
    Histograms(Vec<HistogramDataPoint>),
}

/// Every family that has a series, in parts of at most [`MAX_POINTS`] points.
pub(super) fn metrics(prometheus: &Prometheus, vitals: &Vitals, span: Span) -> Vec<Metric> {
    let mut metrics = Vec::new();
    for family in prometheus.families(vitals) {
        let row = family.row;
        let (mut numbers, mut histograms) = (Vec::new(), Vec::new());
        prometheus.values(family, vitals, &mut |value| match value {
            Value::Live(labels, value) => {
                numbers.push(span.number(attributes(row, labels.iter().copied()), value));
            }
            Value::Kept(labels, point) if point.counts.is_empty() => {
                numbers.push(span.number(attributes(row, labels.values()), point.sum));
            }
            Value::Kept(labels, point) => {
                histograms.push(span.histogram(attributes(row, labels.values()), family, point));
            }
        });
        for part in numbers.chunks(MAX_POINTS) {
            metrics.push(metric(row.name, row.help, row.kind, Points::Numbers(part.to_vec())));
        }
        for part in histograms.chunks(MAX_POINTS) {
            metrics.push(metric(row.name, row.help, row.kind, Points::Histograms(part.to_vec())));
        }
    }
    prometheus.process(&mut |name, help, kind, value| {
        let points = Points::Numbers(vec![span.number(Vec::new(), value)]);
        metrics.push(metric(name, help, kind, points));
    });
    metrics
}

/// As few requests as have room for all of them.
pub(super) fn requests(
    metrics: Vec<Metric>,
    resource: &Resource,
) -> Vec<ExportMetricsServiceRequest> {
    let mut parts: Vec<Vec<Metric>> = Vec::new();
    let mut points = 0;
    for metric in metrics {
        let more = count(&metric);
        points += more;
        if let Some(part) = parts.last_mut().filter(|_| points <= MAX_POINTS) {
            part.push(metric);
        } else {
            parts.push(vec![metric]);
            points = more;
        }
    }
    parts.into_iter().map(|metrics| request(metrics, resource.clone())).collect()
}

fn request(metrics: Vec<Metric>, resource: Resource) -> ExportMetricsServiceRequest {
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

fn metric(metric: &str, help: &str, kind: Kind, points: Points) -> Metric {
    let name = name(metric, kind);
    let data = match points {
        Points::Histograms(data_points) => {
            Data::Histogram(Histogram { data_points, aggregation_temporality: CUMULATIVE })
        }
        Points::Numbers(data_points) if kind == Kind::Counter => {
            Data::Sum(Sum { data_points, aggregation_temporality: CUMULATIVE, is_monotonic: true })
        }
        Points::Numbers(data_points) => Data::Gauge(Gauge { data_points }),
    };
    Metric {
        name: name.name,
        unit: name.unit.to_owned(),
        description: help.to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

fn count(metric: &Metric) -> usize {
    match &metric.data {
        Some(Data::Gauge(gauge)) => gauge.data_points.len(),
        Some(Data::Sum(sum)) => sum.data_points.len(),
        Some(Data::Histogram(histogram)) => histogram.data_points.len(),
        _ => 0,
    }
}

/// A label without a value is none, as on the page.
fn attributes<'a>(row: &Row, values: impl Iterator<Item = &'a str>) -> Vec<KeyValue> {
    let attribute = |(label, value): (_, &str)| KeyValue {
        key: attribute(label).to_owned(),
        value: Some(AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) }),
        ..KeyValue::default()
    };
    let names = row.labels.iter().map(|label| label.name());
    names.zip(values).filter(|(_, value)| !value.is_empty()).map(attribute).collect()
}

fn nanos(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

// === impl Span ===

impl Span {
    pub(super) fn new(since: SystemTime, until: SystemTime) -> Self {
        Self { since: nanos(since), until: nanos(until) }
    }

    /// A value that is not known is a point without a value: a gap, never a zero.
    fn number(self, attributes: Vec<KeyValue>, value: f64) -> NumberDataPoint {
        let known = (!value.is_nan()).then_some(number_data_point::Value::AsDouble(value));
        let unknown = DataPointFlags::NoRecordedValueMask as u32;
        NumberDataPoint {
            attributes,
            start_time_unix_nano: self.since,
            time_unix_nano: self.until,
            flags: if known.is_some() { 0 } else { unknown },
            value: known,
            ..NumberDataPoint::default()
        }
    }

    fn histogram(
        self,
        attributes: Vec<KeyValue>,
        family: &Family,
        point: &Point,
    ) -> HistogramDataPoint {
        HistogramDataPoint {
            attributes,
            start_time_unix_nano: self.since,
            time_unix_nano: self.until,
            count: point.counts.iter().sum(),
            sum: Some(point.sum),
            bucket_counts: point.counts.to_vec(),
            explicit_bounds: family.bounds.to_vec(),
            exemplars: point.exemplars.iter().map(|(_, exemplar)| shown(exemplar)).collect(),
            ..HistogramDataPoint::default()
        }
    }
}

fn shown(exemplar: &Exemplar) -> Shown {
    Shown {
        time_unix_nano: u64::try_from(exemplar.at.as_nanos()).unwrap_or(u64::MAX),
        trace_id: exemplar.trace_id.to_be_bytes().to_vec(),
        span_id: exemplar.span_id.to_be_bytes().to_vec(),
        value: Some(exemplar::Value::AsDouble(exemplar.value)),
        ..Shown::default()
    }
}
