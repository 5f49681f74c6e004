//! The series of one metric: a number or a histogram for each combination of label values.
//!
//! The lock of a metric is held only while values of a few requests are added or the series are copied. The
//! metrics page is written without the lock.

use super::exemplar::Exemplar;
use crate::metric::{KnownLabelValues, MetricDescriptor};
use crate::status::StatusSnapshot;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard};
use tokenweir_protocol::histogram::{BucketBounds, ExponentialHistogram, HistogramSnapshot};
use tokenweir_protocol::mutex::lock;

pub(super) struct MetricFamily {
    pub(super) row: &'static MetricDescriptor,
    /// Upper bounds of the buckets. Empty for a metric that is no histogram.
    pub(super) bounds: BucketBounds,
    pub(super) bucket_labels: Vec<String>,
    /// Indexes into the row's labels, sorted by label name, without `folded_label`.
    label_order: Box<[usize]>,
    /// Index of the label that is left out. Values that differ only in this label are added up in one series.
    /// `None`: the series have all labels of the row.
    folded_label: Option<usize>,
    table: Mutex<SeriesTable>,
}

/// Adds values to the series of a metric. The writer takes the lock of the series only at the first value,
/// because most requests have no value for most metrics.
pub(super) struct SeriesWriter<'f> {
    family: &'f MetricFamily,
    table: Option<MutexGuard<'f, SeriesTable>>,
}

#[derive(Default)]
struct SeriesTable {
    series: HashTable<Series>,
    hasher: DefaultHashBuilder,
    /// Number of series that were ever created, including removed series.
    created_count: usize,
}

/// One series. It is stored in the hash table itself and aligned to a cache line, so that a lookup costs one
/// cache miss. A pointer to the series would cost a second one.
#[repr(align(64))]
struct Series {
    /// Hash of the label values. A lookup compares only the hash, because comparing the values would cost
    /// further cache misses for each request. With a million series the probability that two series have the
    /// same 64-bit hash is 1 in 30 million. Clients cannot choose label values, which are all from closed sets.
    labels_hash: u64,
    labels: Arc<SeriesLabels>,
    point: SeriesPoint,
}

#[derive(Debug)]
pub(super) struct SeriesLabels {
    /// Number of series of the metric that were created earlier. It defines the order of the series on the
    /// metrics page.
    creation_index: usize,
    /// The label values, in the order of the row's labels.
    values: Box<[Box<str>]>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct SeriesPoint {
    /// Number of recorded values in each bucket of a histogram, not cumulative. The last bucket has
    /// no upper bound. Empty for a counter or gauge.
    pub(super) counts: Box<[u64]>,
    /// Sum of all recorded values. For a counter or gauge, this is its value.
    pub(super) sum: f64,
    /// The exemplars and the exponential buckets. A separate allocation keeps a series within one cache line.
    /// `None`: the series has neither.
    details: Option<Box<HistogramDetails>>,
}

/// Exemplars and exponential buckets of a histogram series. Few series have either.
#[derive(Debug, Clone, Default)]
struct HistogramDetails {
    /// The latest exemplar of each bucket, with the index of the bucket. Buckets without an
    /// exemplar have no entry.
    exemplars: Vec<(usize, Exemplar)>,
    /// The recorded values in exponential buckets. Empty if the metric has no exponential buckets.
    exponential: ExponentialHistogram,
}

impl MetricFamily {
    /// Creates a metric without series. Its series will not have the label named `folded_label`.
    pub(super) fn new(
        row: &'static MetricDescriptor,
        bounds: BucketBounds,
        folded_label: Option<&str>,
    ) -> Self {
        let folded_label = row
            .labels
            .iter()
            .position(|label| Some(label.name) == folded_label);
        let mut label_order: Vec<usize> = (0..row.labels.len())
            .filter(|index| Some(*index) != folded_label)
            .collect();
        label_order.sort_unstable_by_key(|index| row.labels[*index].name);
        let label_order = label_order.into();
        let bucket_labels = format_bucket_labels(&bounds);
        Self {
            row,
            bounds,
            bucket_labels,
            label_order,
            folded_label,
            table: Mutex::default(),
        }
    }

    /// Creates the series that exist before the first request: one for each combination of `known`
    /// label values. Existing series are kept.
    pub(super) fn seed(&self, known: &KnownLabelValues) {
        let mut series = self.writer();
        for combination in self.row.seeds(known) {
            let labels: Vec<&str> = combination.iter().map(String::as_str).collect();
            series.get_or_create(&labels);
        }
    }

    /// Removes each series for which `should_retain` returns false. `should_retain` receives the series' value
    /// of the label `label_name`. A metric without this label is not changed.
    pub(super) fn retain(&self, label_name: &str, should_retain: impl Fn(&str) -> bool) {
        let index = self
            .row
            .labels
            .iter()
            .position(|label| label.name == label_name);
        let Some(index) = index.filter(|index| Some(*index) != self.folded_label) else {
            return;
        };
        lock(&self.table)
            .series
            .retain(|series| should_retain(&series.labels.values[index]));
    }

    /// Returns a writer that adds values to the series. The writer locks the series once for all
    /// its values.
    pub(super) fn writer(&self) -> SeriesWriter<'_> {
        SeriesWriter {
            family: self,
            table: None,
        }
    }

    /// Returns a copy of the labels and the accumulated value of each series, in the order of
    /// creation.
    pub(super) fn points(&self) -> Vec<(Arc<SeriesLabels>, SeriesPoint)> {
        let copy = |series: &Series| (series.labels.clone(), series.point.clone());
        let mut points: Vec<_> = lock(&self.table).series.iter().map(copy).collect();
        points.sort_unstable_by_key(|(labels, _)| labels.creation_index);
        points
    }

    /// Calls `emit` for each series, with its label values in the order of the row's labels. The values come from
    /// the current state of the gateway, or are those that were added to the series.
    pub(super) fn values(
        &self,
        status: &StatusSnapshot,
        emit: &mut dyn FnMut(&[&str], &SeriesPoint),
    ) {
        let has_current = self.row.read_current(status, &mut |labels, value| {
            let point = SeriesPoint {
                sum: value,
                ..SeriesPoint::default()
            };
            emit(labels, &point);
        });
        if !has_current {
            for (labels, point) in &self.points() {
                emit(&labels.values().collect::<Vec<_>>(), point);
            }
        }
    }

    /// Returns the names and values of the exported labels, sorted by name. `labels` has the label
    /// values in the order of the row's labels.
    pub(super) fn sorted_labels<'l>(
        &self,
        labels: &[&'l str],
    ) -> impl Iterator<Item = (&'static str, &'l str)> {
        let pair = |index: &usize| Some((self.row.labels.get(*index)?.name, *labels.get(*index)?));
        self.label_order.iter().filter_map(pair)
    }

    /// Renders label names and values in the exposition format, without braces. `labels` has the
    /// label values in the order of the row's labels. The result is sorted by label name.
    pub(super) fn render_labels(&self, labels: &[&str]) -> String {
        let mut text = String::new();
        for (name, value) in self.sorted_labels(labels) {
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(name);
            text.push_str("=\"");
            escape(value, true, &mut text);
            text.push('"');
        }
        text
    }
}

impl SeriesWriter<'_> {
    /// Adds `value` to a counter or gauge, or records `value` in a histogram, which also keeps the
    /// exemplar.
    pub(super) fn record(&mut self, labels: &[&str], value: f64, exemplar: Option<Exemplar>) {
        if !value.is_finite() {
            // NaN or an infinity would corrupt the sum permanently.
            return;
        }
        let bucket = self.family.bounds.bucket_index(value);
        let is_native = self.family.bounds.is_native();
        let point = self.get_or_create(labels);
        point.sum += value;
        if let Some(count) = point.counts.get_mut(bucket) {
            *count += 1;
            point.set_exemplar(bucket, value, exemplar);
            if is_native {
                point
                    .details
                    .get_or_insert_default()
                    .exponential
                    .record_n(value, 1);
            }
        }
    }

    /// Adds all values of `snapshot` to a histogram. The exemplar is attached to the bucket of the
    /// largest value.
    pub(super) fn record_histogram(
        &mut self,
        labels: &[&str],
        snapshot: &HistogramSnapshot<'_>,
        exemplar: Option<Exemplar>,
    ) {
        let bucket = self.family.bounds.bucket_index(snapshot.max);
        let point = self.get_or_create(labels);
        point.sum += snapshot.sum;
        for (total, count) in point.counts.iter_mut().zip(snapshot.bucket_counts) {
            *total += u64::from(*count);
        }
        point.set_exemplar(bucket, snapshot.max, exemplar);
        if let Some(exponential) = snapshot.exponential {
            point
                .details
                .get_or_insert_default()
                .exponential
                .merge(exponential);
        }
    }

    /// Attaches an exemplar to a value that a histogram has counted before.
    pub(super) fn attach_exemplar(&mut self, labels: &[&str], value: f64, exemplar: Exemplar) {
        let bucket = self.family.bounds.bucket_index(value);
        self.get_or_create(labels)
            .set_exemplar(bucket, value, Some(exemplar));
    }

    /// Returns the accumulated value of the series with these label values. Creates a missing series.
    fn get_or_create(&mut self, labels: &[&str]) -> &mut SeriesPoint {
        let family = self.family;
        let table = self.table.get_or_insert_with(|| lock(&family.table));
        let SeriesTable {
            series,
            created_count,
            hasher,
        } = &mut **table;
        let folded = family.folded_label;
        let exported = labels
            .iter()
            .enumerate()
            .map(move |(index, value)| if Some(index) == folded { "" } else { *value });
        let labels_hash = hash_labels(hasher, exported.clone());
        let entry = series.entry(
            labels_hash,
            |series| series.labels_hash == labels_hash,
            |series| series.labels_hash,
        );
        let entry = entry.or_insert_with(|| {
            let values = exported.map(Into::into).collect();
            let labels = SeriesLabels {
                creation_index: *created_count,
                values,
            }
            .into();
            *created_count += 1;
            Series {
                labels_hash,
                labels,
                point: SeriesPoint::with_bounds(&family.bounds),
            }
        });
        &mut entry.into_mut().point
    }
}

/// Computes the hash of label values without copying them into one text. `["ab", "c"]` and `["a", "bc"]` have
/// different hashes, because each value is hashed separately into the state.
fn hash_labels<'l>(hasher: &DefaultHashBuilder, labels: impl Iterator<Item = &'l str>) -> u64 {
    let mut hasher = hasher.build_hasher();
    labels.for_each(|label| hasher.write(label.as_bytes()));
    hasher.finish()
}

/// Appends a label value or a help text to `output`, with the escapes that the exposition formats require:
/// backslashes, newlines and, if `has_quotes`, quotes. Other control characters are not escaped.
pub(super) fn escape(text: &str, has_quotes: bool, output: &mut String) {
    for character in text.chars() {
        match character {
            '\\' => output.push_str("\\\\"),
            '\n' => output.push_str("\\n"),
            '"' if has_quotes => output.push_str("\\\""),
            other => output.push(other),
        }
    }
}

/// Formats bucket bounds as values of the `le` label of a histogram, in the form in which Prometheus stores them:
/// always with a decimal point or an exponent. Appends `+Inf`.
pub(super) fn format_bucket_labels(bounds: &[f64]) -> Vec<String> {
    let to_label = |bound: &f64| {
        if *bound >= 1e-4 {
            return format!("{bound:?}");
        }
        let text = format!("{bound:e}");
        match text.split_once("e-") {
            Some((digits, power)) => format!("{digits}e-{power:0>2}"),
            None => text,
        }
    };
    bounds
        .iter()
        .map(to_label)
        .chain(["+Inf".to_owned()])
        .collect()
}

impl SeriesLabels {
    /// The label values, in the order of the row's labels.
    pub(super) fn values(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(AsRef::as_ref)
    }
}

impl SeriesPoint {
    /// Creates an accumulated value of 0: a histogram with these bucket bounds, or a counter if `bounds` is
    /// empty.
    fn with_bounds(bounds: &BucketBounds) -> Self {
        let buckets = if bounds.is_empty() {
            0
        } else {
            bounds.len() + 1
        };
        Self {
            counts: vec![0; buckets].into(),
            ..Self::default()
        }
    }

    /// Returns the latest exemplar of each bucket, with the index of the bucket. Buckets without an
    /// exemplar have no entry.
    pub(super) fn exemplars(&self) -> &[(usize, Exemplar)] {
        self.details
            .as_ref()
            .map_or(&[], |details| &details.exemplars)
    }

    /// Returns the recorded values in exponential buckets. Empty if the metric has no such buckets.
    pub(super) fn exponential(&self) -> ExponentialHistogram {
        self.details
            .as_ref()
            .map(|details| details.exponential.clone())
            .unwrap_or_default()
    }

    /// Replaces the exemplar of the bucket. The exemplar gets `value`. `None` changes nothing.
    fn set_exemplar(&mut self, bucket: usize, value: f64, exemplar: Option<Exemplar>) {
        let Some(exemplar) = exemplar.map(|exemplar| Exemplar { value, ..exemplar }) else {
            return;
        };
        let exemplars = &mut self.details.get_or_insert_default().exemplars;
        match exemplars.iter_mut().find(|(other, _)| *other == bucket) {
            Some((_, last)) => *last = exemplar,
            None => exemplars.push((bucket, exemplar)),
        }
    }
}

#[cfg(test)]
#[path = "series_tests.rs"]
pub(super) mod tests;
