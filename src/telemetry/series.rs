//! The series of one metric: numbers or histograms under their labels. A lock is held for as long
//! as the values of a few requests take to be added, or the numbers to be copied; nothing is
//! written under it.

use super::exemplar::Exemplar;
use super::metric::{Known, Label, Row};
use hashbrown::HashTable;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokenweir_core::spread::{Bounds, Parts};
use xxhash_rust::xxh3::xxh3_64;

/// All series of one row of the catalogue.
pub(super) struct Family {
    /// The row.
    pub(super) row: &'static Row,
    /// The bounds, if its values are histograms.
    pub(super) bounds: Bounds,
    /// Labels in the order of their names, as indexes into those of the row.
    order: Box<[usize]>,
    table: Mutex<Table>,
}

/// The series while nobody else can change them.
pub(super) struct Open<'f> {
    family: &'f Family,
    table: MutexGuard<'f, Table>,
}

#[derive(Default)]
struct Table {
    series: HashTable<Series>,
    /// How many were ever made.
    made: usize,
    key: Key,
}

/// Label values in one piece, each with its end behind it.
#[derive(Default)]
struct Key(Vec<u8>);

/// A byte that no text has.
const END: u8 = 0xff;

/// In one line of the CPU's cache, in the table itself: of many series each is in none when it is asked
/// for, and nor is what leads to it.
#[repr(align(64))]
struct Series {
    /// Of the labels. The values themselves are not compared: they would be fetched into the cache for
    /// each request, and of a million series two have the same hash of 64 bits once in 30 million
    /// gateways. No client can choose values: all are of closed sets.
    hash: u64,
    labels: Arc<Labels>,
    point: Point,
}

/// What tells a series from the others of its family.
#[derive(Debug)]
pub(super) struct Labels {
    /// How many series were made before it. Pages keep the order.
    number: usize,
    values: Box<[Box<str>]>,
    /// Names and values, as a page has them.
    pub(super) text: String,
}

/// What a series has come to.
#[derive(Debug, Clone, Default)]
pub(super) struct Point {
    /// Values by bucket, the open one last. Empty for a counter.
    pub(super) counts: Box<[u64]>,
    /// The sum of all values.
    pub(super) sum: f64,
    /// The last exemplar of each bucket that has one.
    pub(super) exemplars: Vec<(usize, Exemplar)>,
}

// === impl Family ===

impl Family {
    /// Without any series.
    pub(super) fn new(row: &'static Row, bounds: Bounds) -> Self {
        let mut order: Vec<usize> = (0..row.labels.len()).collect();
        order.sort_unstable_by_key(|index| row.labels[*index].name());
        Self { row, bounds, order: order.into(), table: Mutex::default() }
    }

    /// Makes the series of label values that are known.
    pub(super) fn seed(&self, known: &Known) {
        let mut series = self.open();
        for seed in self.row.seeds(known) {
            let labels: Vec<&str> = seed.iter().map(String::as_str).collect();
            series.point(&labels);
        }
    }

    /// Ends the series whose value of a label is none to keep.
    pub(super) fn retain(&self, label: Label, keeps: impl Fn(&str) -> bool) {
        let Some(index) = self.row.labels.iter().position(|other| *other == label) else { return };
        self.table().series.retain(|series| keeps(&series.labels.values[index]));
    }

    /// Holds the series, to add values to them.
    pub(super) fn open(&self) -> Open<'_> {
        Open { family: self, table: self.table() }
    }

    /// A copy of every series, as they were made: its labels, and what it has come to.
    pub(super) fn points(&self) -> Vec<(Arc<Labels>, Point)> {
        let copy = |series: &Series| (series.labels.clone(), series.point.clone());
        let mut points: Vec<_> = self.table().series.iter().map(copy).collect();
        points.sort_unstable_by_key(|(labels, _)| labels.number);
        points
    }

    /// Label values, in the order of the row, as a page has them.
    pub(super) fn text(&self, labels: &[&str]) -> String {
        let mut text = String::new();
        for index in &self.order {
            let (Some(label), Some(value)) = (self.row.labels.get(*index), labels.get(*index))
            else {
                continue;
            };
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(label.name());
            text.push_str("=\"");
            escape(value, &mut text);
            text.push('"');
        }
        text
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Open ===

impl Open<'_> {
    /// Adds to a counter, or one value to a histogram.
    pub(super) fn take(&mut self, labels: &[&str], value: f64, exemplar: Option<Exemplar>) {
        let bucket = self.family.bounds.bucket(value);
        let point = self.point(labels);
        point.sum += value;
        if let Some(count) = point.counts.get_mut(bucket) {
            *count += 1;
            point.show(bucket, value, exemplar);
        }
    }

    /// Adds many values to a histogram at once. The exemplar is of the largest.
    pub(super) fn absorb(
        &mut self,
        labels: &[&str],
        parts: &Parts<'_>,
        exemplar: Option<Exemplar>,
    ) {
        let bucket = self.family.bounds.bucket(parts.max);
        let point = self.point(labels);
        point.sum += parts.sum;
        for (total, count) in point.counts.iter_mut().zip(parts.counts) {
            *total += u64::from(*count);
        }
        point.show(bucket, parts.max, exemplar);
    }

    /// Gives a value of a histogram, which was taken before, its exemplar.
    pub(super) fn show(&mut self, labels: &[&str], value: f64, exemplar: Exemplar) {
        let bucket = self.family.bounds.bucket(value);
        self.point(labels).show(bucket, value, Some(exemplar));
    }

    /// The series of these labels. It is made if there is none.
    fn point(&mut self, labels: &[&str]) -> &mut Point {
        let Table { series, made, key } = &mut *self.table;
        let hash = key.hash(labels);
        let entry = series.entry(hash, |it| it.hash == hash, |it| it.hash);
        let entry = entry.or_insert_with(|| {
            let values = labels.iter().map(|value| (*value).into()).collect();
            let labels = Labels { number: *made, values, text: self.family.text(labels) }.into();
            *made += 1;
            Series { hash, labels, point: Point::of(&self.family.bounds) }
        });
        &mut entry.into_mut().point
    }
}

// === impl Key ===

impl Key {
    /// Of label values. The key is made anew.
    fn hash(&mut self, labels: &[&str]) -> u64 {
        self.0.clear();
        for label in labels {
            self.0.extend_from_slice(label.as_bytes());
            self.0.push(END);
        }
        xxh3_64(&self.0)
    }
}

/// What the formats of pages ask to be escaped in the value of a label. All else is text, control
/// characters too.
fn escape(value: &str, into: &mut String) {
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

impl Labels {
    /// The values, in the order of the row.
    pub(super) fn values(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(AsRef::as_ref)
    }
}

// === impl Point ===

impl Point {
    /// Nothing yet. Without bounds it is a number.
    fn of(bounds: &Bounds) -> Self {
        let buckets = if bounds.is_empty() { 0 } else { bounds.len() + 1 };
        Self { counts: vec![0; buckets].into(), ..Self::default() }
    }

    fn show(&mut self, bucket: usize, value: f64, exemplar: Option<Exemplar>) {
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
