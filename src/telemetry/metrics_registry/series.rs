//! The series of one metric: numbers or histograms by label values.
//!
//! The lock of a metric is held only while the values of a few requests are added or the numbers
//! are copied. The page is written without the lock.

use super::exemplar::Exemplar;
use crate::telemetry::metric::{KnownLabelValues, MetricDescriptor};
use hashbrown::HashTable;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokenweir_core::histogram::{BucketBounds, HistogramSnapshot};
use xxhash_rust::xxh3::xxh3_64;

/// All series of one metric of the catalogue.
pub(in crate::telemetry) struct MetricFamily {
    /// The metric's row in the catalogue.
    pub(in crate::telemetry) row: &'static MetricDescriptor,
    /// Upper bounds of the buckets. Empty unless the metric is a histogram.
    pub(in crate::telemetry) bounds: BucketBounds,
    /// Indexes into the row's labels, sorted by label name.
    label_order: Box<[usize]>,
    table: Mutex<SeriesTable>,
}

/// The locked series of a metric.
pub(super) struct LockedSeries<'f> {
    family: &'f MetricFamily,
    table: MutexGuard<'f, SeriesTable>,
}

#[derive(Default)]
struct SeriesTable {
    series: HashTable<Series>,
    /// Number of series that were ever created.
    created_count: usize,
    key_buffer: LabelKeyBuffer,
}

/// A buffer of label values, each followed by [`LABEL_TERMINATOR`].
#[derive(Default)]
struct LabelKeyBuffer(Vec<u8>);

/// A byte that does not occur in UTF-8.
const LABEL_TERMINATOR: u8 = 0xff;

/// One series, stored in the table itself and aligned to a cache line: with many series the lookup
/// of one is a cache miss, and a pointer to it would be a second one.
#[repr(align(64))]
struct Series {
    /// Hash of the label values. The values themselves are not compared, because that would cost
    /// further cache misses for each request. With a million series the chance that two have the
    /// same 64-bit hash is 1 in 30 million. Clients cannot choose label values, because all are
    /// from closed sets.
    labels_hash: u64,
    labels: Arc<SeriesLabels>,
    point: SeriesPoint,
}

/// The label values of a series.
#[derive(Debug)]
pub(in crate::telemetry) struct SeriesLabels {
    /// Number of series that were created before this one. Pages list series in this order.
    creation_index: usize,
    values: Box<[Box<str>]>,
    /// Names and values in the exposition format, without braces.
    pub(super) text: String,
}

/// The accumulated value of a series.
#[derive(Debug, Clone, Default)]
pub(in crate::telemetry) struct SeriesPoint {
    /// Number of values by bucket; the last bucket has no upper bound. Empty for a counter.
    pub(in crate::telemetry) counts: Box<[u64]>,
    /// Sum of all values.
    pub(in crate::telemetry) sum: f64,
    /// The latest exemplar of each bucket that has one, with the index of the bucket.
    pub(in crate::telemetry) exemplars: Vec<(usize, Exemplar)>,
}

// === impl Family ===

impl MetricFamily {
    /// A metric without series.
    pub(super) fn new(row: &'static MetricDescriptor, bounds: BucketBounds) -> Self {
        let mut label_order: Vec<usize> = (0..row.labels.len()).collect();
        label_order.sort_unstable_by_key(|index| row.labels[*index].name);
        Self { row, bounds, label_order: label_order.into(), table: Mutex::default() }
    }

    /// Creates the series of all combinations of known label values.
    pub(super) fn seed(&self, known: &KnownLabelValues) {
        let mut series = self.open();
        for seed in self.row.seeds(known) {
            let labels: Vec<&str> = seed.iter().map(String::as_str).collect();
            series.get_or_create(&labels);
        }
    }

    /// Removes the series whose value of the label with this name does not satisfy
    /// `should_retain`. Without effect if the metric lacks the label.
    pub(super) fn retain(&self, label: &str, should_retain: impl Fn(&str) -> bool) {
        let index = self.row.labels.iter().position(|other| other.name == label);
        let Some(index) = index else { return };
        self.lock_table().series.retain(|series| should_retain(&series.labels.values[index]));
    }

    /// Locks the series, to add values to them.
    pub(super) fn open(&self) -> LockedSeries<'_> {
        LockedSeries { family: self, table: self.lock_table() }
    }

    /// A copy of every series in order of creation: its labels and its accumulated value.
    pub(super) fn points(&self) -> Vec<(Arc<SeriesLabels>, SeriesPoint)> {
        let copy = |series: &Series| (series.labels.clone(), series.point.clone());
        let mut points: Vec<_> = self.lock_table().series.iter().map(copy).collect();
        points.sort_unstable_by_key(|(labels, _)| labels.creation_index);
        points
    }

    /// Label values, given in the order of the row, in the exposition format.
    pub(super) fn text(&self, labels: &[&str]) -> String {
        let mut text = String::new();
        for index in &self.label_order {
            let (Some(label), Some(value)) = (self.row.labels.get(*index), labels.get(*index))
            else {
                continue;
            };
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(label.name);
            text.push_str("=\"");
            escape_label_value(value, &mut text);
            text.push('"');
        }
        text
    }

    fn lock_table(&self) -> MutexGuard<'_, SeriesTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Open ===

impl LockedSeries<'_> {
    /// Adds to a counter, or adds one value to a histogram.
    pub(super) fn record(&mut self, labels: &[&str], value: f64, exemplar: Option<Exemplar>) {
        let bucket = self.family.bounds.bucket_index(value);
        let point = self.get_or_create(labels);
        point.sum += value;
        if let Some(count) = point.counts.get_mut(bucket) {
            *count += 1;
            point.set_exemplar(bucket, value, exemplar);
        }
    }

    /// Adds many values to a histogram at once. The exemplar goes to the bucket of the largest
    /// value.
    pub(super) fn absorb(
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
    }

    /// Attaches an exemplar to a value that a histogram has counted before.
    pub(super) fn show(&mut self, labels: &[&str], value: f64, exemplar: Exemplar) {
        let bucket = self.family.bounds.bucket_index(value);
        self.get_or_create(labels).set_exemplar(bucket, value, Some(exemplar));
    }

    /// The series of these label values. It is created if it does not exist.
    fn get_or_create(&mut self, labels: &[&str]) -> &mut SeriesPoint {
        let SeriesTable { series, created_count, key_buffer } = &mut *self.table;
        let labels_hash = key_buffer.hash_labels(labels);
        let entry = series.entry(
            labels_hash,
            |series| series.labels_hash == labels_hash,
            |series| series.labels_hash,
        );
        let entry = entry.or_insert_with(|| {
            let values = labels.iter().map(|value| (*value).into()).collect();
            let text = self.family.text(labels);
            let labels = SeriesLabels { creation_index: *created_count, values, text }.into();
            *created_count += 1;
            Series { labels_hash, labels, point: SeriesPoint::with_bounds(&self.family.bounds) }
        });
        &mut entry.into_mut().point
    }
}

// === impl LabelKeyBuffer ===

impl LabelKeyBuffer {
    /// Hashes label values. Overwrites the buffer.
    fn hash_labels(&mut self, labels: &[&str]) -> u64 {
        self.0.clear();
        for label in labels {
            self.0.extend_from_slice(label.as_bytes());
            self.0.push(LABEL_TERMINATOR);
        }
        xxh3_64(&self.0)
    }
}

/// Escapes a label value as both exposition formats require. Other control characters stay as they
/// are.
fn escape_label_value(value: &str, into: &mut String) {
    for character in value.chars() {
        match character {
            '\\' => into.push_str("\\\\"),
            '"' => into.push_str("\\\""),
            '\n' => into.push_str("\\n"),
            other => into.push(other),
        }
    }
}

// === impl Labels ===

impl SeriesLabels {
    /// The label values, in the order of the row.
    pub(in crate::telemetry) fn values(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(AsRef::as_ref)
    }
}

// === impl Point ===

impl SeriesPoint {
    /// A point without values: a histogram with these bounds, or a number if there are no bounds.
    fn with_bounds(bounds: &BucketBounds) -> Self {
        let buckets = if bounds.is_empty() { 0 } else { bounds.len() + 1 };
        Self { counts: vec![0; buckets].into(), ..Self::default() }
    }

    fn set_exemplar(&mut self, bucket: usize, value: f64, exemplar: Option<Exemplar>) {
        let Some(exemplar) = exemplar.map(|exemplar| Exemplar { value, ..exemplar }) else {
            return;
        };
        match self.exemplars.iter_mut().find(|(other, _)| *other == bucket) {
            Some((_, last)) => *last = exemplar,
            None => self.exemplars.push((bucket, exemplar)),
        }
    }
}

#[cfg(test)]
#[path = "series_tests.rs"]
mod tests;
