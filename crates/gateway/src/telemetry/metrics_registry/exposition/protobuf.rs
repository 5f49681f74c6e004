//! The metrics page as Protocol Buffers: messages `io.prometheus.client.MetricFamily`, each preceded by its length.
//! Each histogram has its fixed buckets, and its exponential buckets as a native histogram.
//!
//! The numbers of the fields are those of `io/prometheus/client/metrics.proto` in `prometheus/client_model`.

use super::super::exemplar::Exemplar;
use super::super::prometheus::Prometheus;
use super::super::series::SeriesPoint;
use super::INITIAL_PAGE_CAPACITY_BYTES;
use crate::status::StatusSnapshot;
use tokenweir_protocol::histogram::ZERO_THRESHOLD;
use tokenweir_protocol::metric_kind::MetricKind;

impl Prometheus {
    pub(super) fn protobuf_page(&self, status: &StatusSnapshot) -> Vec<u8> {
        let mut page = Message(Vec::with_capacity(INITIAL_PAGE_CAPACITY_BYTES));
        for family in &self.families {
            let row = family.row;
            let mut message = Family::new(row.name, row.help, row.kind);
            family.values(status, &mut |labels, point| {
                message.add(family.sorted_labels(labels), |value| {
                    if point.counts.is_empty() {
                        value.double(1, point.sum);
                    } else {
                        value.histogram(&family.bounds, point);
                    }
                });
            });
            message.append_to(&mut page);
        }
        self.process_metrics(&mut |name, help, kind, value| {
            let mut message = Family::new(name, help, kind);
            message.add(std::iter::empty(), |number| number.double(1, value));
            message.append_to(&mut page);
        });
        page.0
    }
}

/// A Protocol Buffers message `MetricFamily` that is being written.
struct Family {
    message: Message,
    /// Number of the field of a message `Metric` that has the value of the metric.
    value_field: u64,
    has_metrics: bool,
}

impl Family {
    fn new(name: &str, help: &str, kind: MetricKind) -> Self {
        let (number, value_field) = match kind {
            MetricKind::Counter => (0, 3),
            MetricKind::Gauge => (1, 2),
            MetricKind::Histogram(_) => (4, 7),
        };
        let mut message = Message::default();
        message.bytes(1, name.as_bytes());
        message.bytes(2, help.as_bytes());
        message.integer(3, number);
        Self {
            message,
            value_field,
            has_metrics: false,
        }
    }

    /// Adds a message `Metric`.
    fn add<'l>(
        &mut self,
        labels: impl Iterator<Item = (&'static str, &'l str)>,
        write_value: impl FnOnce(&mut Message),
    ) {
        self.has_metrics = true;
        self.message.message(4, |metric| {
            for (name, value) in labels {
                metric.label(name, value);
            }
            metric.message(self.value_field, write_value);
        });
    }

    /// Appends the message and its length to the page, unless it has no series.
    fn append_to(self, page: &mut Message) {
        if self.has_metrics {
            page.varint(self.message.0.len() as u64);
            page.0.extend_from_slice(&self.message.0);
        }
    }
}

#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value > 0x7f {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn integer(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.varint(field << 3 | 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u64, write: impl FnOnce(&mut Self)) {
        let mut message = Self::default();
        write(&mut message);
        self.bytes(field, &message.0);
    }

    /// Adds a message `LabelPair`. An empty value is left out, because it is the default.
    fn label(&mut self, name: &str, value: &str) {
        self.message(1, |label| {
            label.bytes(1, name.as_bytes());
            if !value.is_empty() {
                label.bytes(2, value.as_bytes());
            }
        });
    }

    /// Adds the fields of a message `Histogram`.
    fn histogram(&mut self, bounds: &[f64], point: &SeriesPoint) {
        let native = point.exponential();
        self.integer(1, point.counts.iter().sum());
        self.double(2, point.sum);
        let bounds = bounds.iter().copied().chain([f64::INFINITY]);
        let mut cumulative_count = 0;
        for (index, (bound, count)) in bounds.zip(&point.counts).enumerate() {
            cumulative_count += count;
            self.message(3, |bucket| {
                bucket.integer(1, cumulative_count);
                bucket.double(2, bound);
                let exemplar = point.exemplars().iter().find(|(other, _)| *other == index);
                if let Some((_, exemplar)) = exemplar {
                    bucket.message(3, |message| message.exemplar(exemplar));
                }
            });
        }
        self.integer(5, zigzag(native.scale().into()));
        // A native histogram without values has no span. Prometheus recognizes it by its zero threshold above 0.
        self.double(6, ZERO_THRESHOLD);
        self.integer(7, native.zero_count());
        if native.counts().is_empty() {
            return;
        }
        self.message(12, |span| {
            // The bucket with the index `i` of Prometheus ends where that of OpenTelemetry begins.
            span.integer(1, zigzag(i64::from(native.offset()) + 1));
            span.integer(2, native.counts().len() as u64);
        });
        // Each count as its difference to the count before it.
        self.message(13, |deltas| {
            let mut previous = 0;
            for count in native.counts() {
                let count = i64::try_from(*count).unwrap_or(i64::MAX);
                deltas.varint(zigzag(count - previous));
                previous = count;
            }
        });
    }

    /// Adds the fields of a message `Exemplar`.
    fn exemplar(&mut self, exemplar: &Exemplar) {
        self.label("trace_id", &format!("{:032x}", exemplar.trace_id));
        self.label("span_id", &format!("{:016x}", exemplar.span_id));
        self.double(2, exemplar.value);
        self.message(3, |timestamp| {
            timestamp.integer(1, exemplar.ended_at.as_secs());
            timestamp.integer(2, exemplar.ended_at.subsec_nanos().into());
        });
    }
}

/// The form in which Protocol Buffers encode a signed integer as an unsigned one.
const fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63).cast_unsigned()
}

#[cfg(test)]
#[path = "protobuf_tests.rs"]
mod tests;
