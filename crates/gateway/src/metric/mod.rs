//! The types of the metrics catalogue: one row per metric, with the labels of the metric and the
//! source of its values.

mod label;

pub use label::{
    BACKEND, KnownLabelValues, MODEL, MetricLabel, OUTCOME, TIER, TOKEN_TYPE, TOKEN_TYPES,
    computed, counted, fixed, variable,
};

use crate::status::{BackendStatusSnapshot, StatusSnapshot};
use std::time::Duration;
use tokenweir_protocol::histogram::HistogramSnapshot;
use tokenweir_protocol::metric_kind::MetricKind;
use tokenweir_request::record::RequestRecord;
use tokenweir_request::slo::Objective;

/// The imports of a file that defines rows of the catalogue.
pub mod prelude {
    pub use super::MetricSource::{
        Backend, BackendOrLeaving, BackendValues, Counts, FirstOutput, Record, RecordEvent,
        RecordHistogram, RecordValue, RecordWithObjectives, Recorded, Status, Value,
    };
    pub use super::{
        BACKEND, BackendEmitter, MODEL, MetricDescriptor, MetricEmitter, MetricLabel, MetricSource,
        OUTCOME, TIER, TOKEN_TYPE, TOKEN_TYPES, computed, counted, counts, fixed, histogram,
        of_backend, of_backend_or_leaving, or_nan, row, value, variable, with_first_labels,
    };
    pub(crate) use super::{
        OBJECTIVE_RATIO_METRIC, SCHEDULING_DELAY_METRIC, SCRAPE_DURATION_METRIC,
        SCRAPE_ERRORS_METRIC, seconds,
    };
}

/// One metric: its name, its labels, and how its values are read.
pub struct MetricDescriptor {
    /// The name of the metric in the Prometheus exposition format.
    pub name: &'static str,
    /// The help text of the metric on the metrics page.
    pub help: &'static str,
    /// Counter, gauge or histogram.
    pub kind: MetricKind,
    /// The labels, in the order in which a [`MetricEmitter`] receives the label values.
    pub labels: &'static [MetricLabel],
    /// The source of the values, with the function that reads them.
    pub read: MetricSource,
}

/// A callback for one value of a metric. Its arguments are the label values, in the order of
/// [`MetricDescriptor::labels`], and the value.
pub type MetricEmitter<'a> = &'a mut dyn FnMut(&[&str], f64);

/// A callback for one value of a backend. Its arguments are the label values after the name of the backend,
/// and the value. `None`: the value is not known.
pub type BackendEmitter<'a> = &'a mut dyn FnMut(&[&str], Option<f64>);

/// The source of the values of a metric, with the function that reads them.
#[derive(Clone, Copy)]
pub enum MetricSource {
    /// One value is read from the record of a stream at its first output, when the record has no later data.
    /// [`MetricLabel::of_request`] reads the label values. `None`: the stream has no value.
    FirstOutput(fn(&RequestRecord) -> Option<f64>),
    /// Values are read from the record of each finished request.
    Record(fn(&RequestRecord, MetricEmitter<'_>)),
    /// One value is read from the record of each finished request. [`MetricLabel::of_request`]
    /// reads the label values. `None`: the request has no value.
    RecordValue(fn(&RequestRecord) -> Option<f64>),
    /// Each finished request is counted under one value of the only label of the metric. The
    /// function reads this value from the record of the request. `None`: the request is not
    /// counted.
    RecordEvent(fn(&RequestRecord) -> Option<&'static str>),
    /// Values are read from the record of each finished request and the objectives of `slos`.
    RecordWithObjectives(fn(&[Objective], &RequestRecord, MetricEmitter<'_>)),
    /// A histogram with many values is read from the record of each finished request.
    /// [`MetricLabel::of_request`] reads the label values.
    RecordHistogram(fn(&RequestRecord) -> HistogramSnapshot<'_>),
    /// No function reads the values. Other code passes them to
    /// [`Prometheus::record`](crate::telemetry::metrics_registry::Prometheus::record).
    Recorded,
    /// Values of each registered backend are read when the metrics page is read. The first label is the
    /// backend. A value that is not known is omitted.
    BackendValues(fn(&BackendStatusSnapshot, BackendEmitter<'_>)),
    /// One value of each registered backend is read when the metrics page is read. `None`: the value is
    /// omitted. The only label is the backend.
    Backend(fn(&BackendStatusSnapshot) -> Option<f64>),
    /// Like `Backend`, and also for each removed backend that still serves requests.
    BackendOrLeaving(fn(&BackendStatusSnapshot) -> Option<f64>),
    /// One value is read from the state of the gateway when the metrics page is read. `None`: the metric
    /// has no value. The metric has no labels.
    Value(fn(&StatusSnapshot) -> Option<f64>),
    /// Values are read from the state of the gateway when the metrics page is read.
    Status(fn(&StatusSnapshot, MetricEmitter<'_>)),
    /// The metric has one label, a label of [`counted`]. The count of each label value is read
    /// from the state of the gateway when the metrics page is read.
    Counts,
}

/// Maximum number of labels of a metric whose label values are read with [`MetricLabel::of_request`]. A metric
/// with more labels would make [`MetricDescriptor::read_labels`] panic for every request.
const MAX_REQUEST_LABELS: usize = 6;

/// Name of the metric that measures the delay with which timers of the runtime fire.
pub(crate) const SCHEDULING_DELAY_METRIC: &str = "tokenweir_scheduling_delay_seconds";
/// Name of the metric with the share of requests that must meet each objective of `slos`.
pub(crate) const OBJECTIVE_RATIO_METRIC: &str = "tokenweir_slo_objective_ratio";
/// Name of the metric that measures the duration of a scrape of a backend's metrics page.
pub(crate) const SCRAPE_DURATION_METRIC: &str = "tokenweir_scrape_duration_seconds";
/// Name of the metric that counts failed scrapes of the metrics pages of backends.
pub(crate) const SCRAPE_ERRORS_METRIC: &str = "tokenweir_scrape_errors_total";

/// Converts a duration to seconds, for a metric. `None`: the metric has no value.
pub(crate) fn seconds(duration: Option<Duration>) -> Option<f64> {
    duration.map(|duration| duration.as_secs_f64())
}

/// Returns the value of a gauge. An unknown value becomes NaN, which a graph shows as a gap.
pub fn or_nan(value: Option<f64>) -> Option<f64> {
    value.or(Some(f64::NAN))
}

/// Returns a function that emits values. It puts the label values `first` before the label values that it
/// receives, and does not emit `None`.
pub fn with_first_labels(
    first: &[&str],
    emit: MetricEmitter<'_>,
) -> impl FnMut(&[&str], Option<f64>) {
    move |labels, value| {
        if let Some(value) = value {
            emit(&[first, labels].concat(), value);
        }
    }
}

impl MetricSource {
    pub(crate) fn reads_record(&self) -> bool {
        matches!(
            self,
            Self::FirstOutput(_)
                | Self::Record(_)
                | Self::RecordValue(_)
                | Self::RecordEvent(_)
                | Self::RecordWithObjectives(_)
                | Self::RecordHistogram(_)
        )
    }
}

/// Creates the row of a counter if the name ends with `_total`, and of a gauge for any other name.
pub const fn row(
    name: &'static str,
    help: &'static str,
    labels: &'static [MetricLabel],
    read: MetricSource,
) -> MetricDescriptor {
    let is_counter = matches!(name.as_bytes(), [.., b'_', b't', b'o', b't', b'a', b'l']);
    let kind = if is_counter {
        MetricKind::Counter
    } else {
        MetricKind::Gauge
    };
    MetricDescriptor {
        name,
        help,
        kind,
        labels,
        read,
    }
}

/// Creates the row of a histogram. `bounds` are the default bounds of its buckets.
pub const fn histogram(
    name: &'static str,
    help: &'static str,
    bounds: &'static [f64],
    labels: &'static [MetricLabel],
    read: MetricSource,
) -> MetricDescriptor {
    MetricDescriptor {
        name,
        help,
        kind: MetricKind::Histogram(bounds),
        labels,
        read,
    }
}

/// Creates the row of a metric without labels. `read` gets the value from the state of the gateway.
pub const fn value(
    name: &'static str,
    help: &'static str,
    read: fn(&StatusSnapshot) -> Option<f64>,
) -> MetricDescriptor {
    row(name, help, &[], MetricSource::Value(read))
}

/// Creates the row of a counter whose only label, `labels`, is a [`counted`].
pub const fn counts(
    name: &'static str,
    help: &'static str,
    labels: &'static [MetricLabel; 1],
) -> MetricDescriptor {
    row(name, help, labels, MetricSource::Counts)
}

/// Creates the row of a metric with one value for each registered backend.
pub const fn of_backend(
    name: &'static str,
    help: &'static str,
    read: fn(&BackendStatusSnapshot) -> Option<f64>,
) -> MetricDescriptor {
    row(name, help, &[BACKEND], MetricSource::Backend(read))
}

/// Creates the row of a metric with one value for each registered backend, and for each removed
/// backend that still serves requests.
pub const fn of_backend_or_leaving(
    name: &'static str,
    help: &'static str,
    read: fn(&BackendStatusSnapshot) -> Option<f64>,
) -> MetricDescriptor {
    row(name, help, &[BACKEND], MetricSource::BackendOrLeaving(read))
}

impl MetricDescriptor {
    /// Calls `emit` with the label values of a request. Does not call `emit` if one of the values
    /// is missing.
    pub(crate) fn read_labels(&self, record: &RequestRecord, emit: impl FnOnce(&[&str])) {
        let read = |label: &MetricLabel| (label.read)(record);
        // A fast path for at most two labels, because each request reads the labels of most metrics.
        match self.labels {
            [] => return emit(&[]),
            [label] => return read(label).map_or((), |value| emit(&[value])),
            [first, second] => {
                return read(first)
                    .zip(read(second))
                    .map_or((), |(one, two)| emit(&[one, two]));
            }
            _ => {}
        }
        let mut values = [""; MAX_REQUEST_LABELS];
        let values = &mut values[..self.labels.len()];
        for (value, label) in values.iter_mut().zip(self.labels) {
            let Some(read) = read(label) else { return };
            *value = read;
        }
        emit(values);
    }

    /// Emits the values of a metric that is read when the metrics page is read. Returns `false` for a metric
    /// whose values are recorded earlier, for example at the end of each request.
    pub(crate) fn read_current(&self, status: &StatusSnapshot, emit: MetricEmitter<'_>) -> bool {
        match self.read {
            MetricSource::Backend(read) | MetricSource::BackendOrLeaving(read) => {
                let has_leaving = matches!(self.read, MetricSource::BackendOrLeaving(_));
                for backend in &status.backends {
                    if (has_leaving || backend.is_registered())
                        && let Some(value) = read(backend)
                    {
                        emit(&[&backend.backend], value);
                    }
                }
            }
            MetricSource::Value(read) => {
                if let Some(value) = read(status) {
                    emit(&[], value);
                }
            }
            MetricSource::Status(read) => read(status, emit),
            MetricSource::Counts => {
                for (value, count) in self.labels.iter().flat_map(|label| label.counts(status)) {
                    emit(&[value], count as f64);
                }
            }
            MetricSource::BackendValues(read) => {
                for backend in status.registered_backends() {
                    read(backend, &mut with_first_labels(&[&backend.backend], emit));
                }
            }
            _ => return false,
        }
        true
    }

    /// Returns all combinations of label values that have a series before the first request. Each combination
    /// has the order of `labels`.
    ///
    /// Such a series begins with 0, so that `rate()` counts its first increase. Two kinds of metrics have no
    /// such series, because there would be too many: histograms with labels, and metrics with the label
    /// `backend` and a further label.
    pub fn seeds(&self, known: &KnownLabelValues) -> Vec<Vec<String>> {
        let has_backend = self.labels.iter().any(|label| label.name == BACKEND.name);
        let is_histogram = matches!(self.kind, MetricKind::Histogram(_)) && !self.labels.is_empty();
        if is_histogram || has_backend && self.labels.len() > 1 {
            return Vec::new();
        }
        let mut combinations = vec![Vec::new()];
        for label in self.labels {
            let values = label.seeds(known);
            let append_values = |prefix: &Vec<String>| {
                let append_value =
                    |value: &String| [prefix.as_slice(), std::slice::from_ref(value)].concat();
                values.iter().map(append_value).collect::<Vec<_>>()
            };
            combinations = combinations.iter().flat_map(append_values).collect();
        }
        combinations
    }
}
