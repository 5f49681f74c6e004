//! The lookup table of a metrics dialect: a name prefix, and rows that map metrics to fields of [`EngineLoad`].
//!
//! The first eight bytes of a metric name select the rows to compare, so the end of the name need not be
//! searched. Most lines of a page are histogram buckets, of which only the first bytes are read.

use super::engine_kind::EngineKind;
use super::engine_load::EngineLoad;
use super::metric_sample::{MetricSample, parse_number};

/// The metrics of one engine kind, or of the process.
pub(super) struct MetricsDialect {
    /// The engine kind. `None`: the metrics describe the process, independent of the engine in it.
    pub(super) engine_kind: Option<EngineKind>,
    /// The prefix of the metric names, without the `:` or `_` that follows it. Some exporters write `vllm_x`
    /// instead of `vllm:x`.
    prefix: NameHead,
    /// Number of leading bytes of the prefix that are compared, at most [`HEAD_BYTES`].
    prefix_length: usize,
    /// The bytes that can follow the compared bytes of the prefix.
    separators: [u8; 2],
    pub(super) rows: &'static [MetricRow],
    index: NameIndex,
}

/// A value of the load, and the metric names under which versions of the engine export this value.
pub(super) struct MetricRow {
    /// Names without the prefix of the dialect, the preferred name first. A page can have one value under
    /// several names, so values of different names are never summed.
    names: &'static [&'static str],
    pub(super) target: RowTarget,
}

/// The part of the [`EngineLoad`] that a row sets.
pub(super) enum RowTarget {
    /// The row sets a field of the load to a number.
    Number {
        /// The source of the number: the value of the sample, or one of its labels.
        source: ValueSource,
        /// How the values of several series become one number. Each engine has one series.
        aggregation: Aggregation,
        field: fn(&mut EngineLoad) -> &mut Option<f64>,
    },
    /// The row sets the LoRA adapters of the load, from the newest series.
    Adapters,
}

/// The source of a value in a metric line.
#[derive(Clone, Copy)]
pub(super) enum ValueSource {
    Value,
    /// The value of the sample, if the sample has a label with this name and value.
    ValueWithLabel(&'static str, &'static str),
    Label(&'static str),
}

/// How the values of several time series become one value. Each engine has one series.
#[derive(Clone, Copy)]
pub(super) enum Aggregation {
    Sum,
    Max,
    Min,
    Count,
}

/// A row of a dialect that has the metric name of a line of a metrics page.
pub(super) struct RowMatch<'a> {
    /// Index of the row in the rows of the dialect.
    pub(super) row: usize,
    /// Index of the matching name in the names of the row. A lower index is preferred.
    pub(super) name_index: u8,
    /// The part of the line after the metric name.
    pub(super) labels_and_value: &'a [u8],
}

/// A hash index of the metric names of a dialect by their first eight bytes.
struct NameIndex {
    /// The first eight bytes of each name.
    name_heads: [NameHead; MAX_NAMES],
    /// For each name, the index of its row in the rows of the dialect.
    rows: [u8; MAX_NAMES],
    name_indexes: [u8; MAX_NAMES],
    first_in_slot: [u8; SLOT_COUNT],
    /// For each name, the next name in the same hash slot, or [`NO_NAME`].
    next_in_slot: [u8; MAX_NAMES],
}

/// The first eight bytes of a text as a little-endian number.
pub(super) type NameHead = u64;

/// Maximum number of rows of a dialect.
pub(super) const MAX_ROWS: usize = 48;
/// Maximum number of names in all rows of a dialect.
const MAX_NAMES: usize = 64;
/// Number of bytes in a [`NameHead`]. A metric name has at least this length. A prefix can be one byte longer.
const HEAD_BYTES: usize = 8;
const SLOT_BITS: u32 = 7;
const SLOT_COUNT: usize = 1 << SLOT_BITS;
const NO_NAME: u8 = u8::MAX;

impl MetricsDialect {
    /// Builds the table at compile time. The build fails if a name is too short, or if there are too many names
    /// or rows.
    pub(super) const fn new(
        engine_kind: Option<EngineKind>,
        prefix: &'static str,
        rows: &'static [MetricRow],
    ) -> Self {
        // If the prefix is one letter longer than a name head, this letter is compared as the separator.
        let (prefix_length, separators) = if prefix.len() > HEAD_BYTES {
            (HEAD_BYTES, [prefix.as_bytes()[HEAD_BYTES]; 2])
        } else {
            (prefix.len(), [b':', b'_'])
        };
        Self {
            engine_kind,
            prefix: name_head(prefix),
            prefix_length,
            separators,
            rows,
            index: NameIndex::new(rows),
        }
    }

    /// The part of a line after the prefix of this dialect and its separator. `head`: the first
    /// eight bytes of the line. `None`: the line has another prefix.
    #[inline]
    pub(super) fn after_prefix<'a>(&self, head: NameHead, line: &'a [u8]) -> Option<&'a [u8]> {
        let unused_bits = u64::BITS - 8 * self.prefix_length as u32;
        let is_prefix = (head << unused_bits) == (self.prefix << unused_bits);
        let [first, second] = self.separators;
        let separator = line.get(self.prefix_length);
        let has_separator =
            is_prefix && separator.is_some_and(|byte| *byte == first || *byte == second);
        if has_separator {
            line.get(self.prefix_length + 1..)
        } else {
            None
        }
    }

    /// Returns the rows of the dialect that have the metric name of a line. `line` begins after the
    /// prefix and its separator.
    #[inline]
    pub(super) fn find<'a>(&self, line: &'a [u8]) -> impl Iterator<Item = RowMatch<'a>> {
        let head = line_head(line);
        let mut next_name =
            head.map_or(NO_NAME, |head| self.index.first_in_slot[slot_of_head(head)]);
        std::iter::from_fn(move || {
            while next_name != NO_NAME {
                let name = usize::from(next_name);
                next_name = self.index.next_in_slot[name];
                if Some(self.index.name_heads[name]) == head
                    && let Some(row_match) = self.match_name(name, line)
                {
                    return Some(row_match);
                }
            }
            None
        })
    }

    /// Compares the line with the name at this index. `None`: the line has another name.
    fn match_name<'a>(&self, name: usize, line: &'a [u8]) -> Option<RowMatch<'a>> {
        let row = usize::from(self.index.rows[name]);
        let name_index = self.index.name_indexes[name];
        let name = self.rows[row].names[usize::from(name_index)].as_bytes();
        // Most lines that begin with `name` have a longer metric name.
        if !matches!(line.get(name.len()), Some(b'{' | b' ' | b'\t')) {
            return None;
        }
        Some(RowMatch {
            row,
            name_index,
            labels_and_value: line.strip_prefix(name)?,
        })
    }
}

impl MetricRow {
    /// A row whose value is summed over the engines.
    pub(super) const fn sum(
        names: &'static [&'static str],
        field: fn(&mut EngineLoad) -> &mut Option<f64>,
    ) -> Self {
        Self::number(names, Aggregation::Sum, ValueSource::Value, field)
    }

    /// A row whose value is the highest value of all engines.
    pub(super) const fn max(
        names: &'static [&'static str],
        field: fn(&mut EngineLoad) -> &mut Option<f64>,
    ) -> Self {
        Self::number(names, Aggregation::Max, ValueSource::Value, field)
    }

    /// A row whose value is summed over the samples that have the label `label` with the value `value`.
    pub(super) const fn sum_with(
        names: &'static [&'static str],
        label: &'static str,
        value: &'static str,
        field: fn(&mut EngineLoad) -> &mut Option<f64>,
    ) -> Self {
        Self::number(
            names,
            Aggregation::Sum,
            ValueSource::ValueWithLabel(label, value),
            field,
        )
    }

    /// The row of the highest KV cache usage of the engines.
    pub(super) const fn kv_usage(names: &'static [&'static str]) -> Self {
        Self::max(names, |load| &mut load.kv_usage)
    }

    /// The row of the lowest KV cache usage of the engines, with the names of [`MetricRow::kv_usage`].
    pub(super) const fn min_kv_usage(names: &'static [&'static str]) -> Self {
        Self::number(names, Aggregation::Min, ValueSource::Value, |load| {
            &mut load.min_kv_usage
        })
    }

    pub(super) const fn running(names: &'static [&'static str]) -> Self {
        Self::sum(names, |load| &mut load.running)
    }

    /// The row of the number of engines: it counts the series of a metric that each engine exports once.
    pub(super) const fn engines(names: &'static [&'static str]) -> Self {
        Self::number(names, Aggregation::Count, ValueSource::Value, |load| {
            &mut load.engines
        })
    }

    pub(super) const fn adapters(names: &'static [&'static str]) -> Self {
        Self {
            names,
            target: RowTarget::Adapters,
        }
    }

    /// A row with the given aggregation and source.
    pub(super) const fn number(
        names: &'static [&'static str],
        aggregation: Aggregation,
        source: ValueSource,
        field: fn(&mut EngineLoad) -> &mut Option<f64>,
    ) -> Self {
        Self {
            names,
            target: RowTarget::Number {
                source,
                aggregation,
                field,
            },
        }
    }
}

impl ValueSource {
    /// The number that this source reads from a sample. `None`: the sample does not have the
    /// number, or the number is negative.
    pub(super) fn read(self, sample: &MetricSample<'_>) -> Option<f64> {
        let number = match self {
            Self::Value => sample.number(),
            Self::ValueWithLabel(label, value) => {
                if sample.label(label)? != value.as_bytes() {
                    return None;
                }
                sample.number()
            }
            Self::Label(label) => parse_number(sample.label(label)?),
        };
        number.filter(|value| *value >= 0.0)
    }
}

impl Aggregation {
    /// The aggregate after one more value. `before`: the aggregate of the earlier values. `None`: this is the
    /// first value.
    pub(super) fn combine(self, before: Option<f64>, value: f64) -> f64 {
        match (self, before) {
            (Self::Count, before) => before.unwrap_or(0.0) + 1.0,
            (Self::Sum, Some(before)) => before + value,
            (Self::Max, Some(before)) => before.max(value),
            (Self::Min, Some(before)) => before.min(value),
            (_, None) => value,
        }
    }
}

impl NameIndex {
    const fn new(rows: &[MetricRow]) -> Self {
        assert!(rows.len() <= MAX_ROWS, "too many rows");
        let mut index = Self {
            name_heads: [0; MAX_NAMES],
            rows: [0; MAX_NAMES],
            name_indexes: [0; MAX_NAMES],
            first_in_slot: [NO_NAME; SLOT_COUNT],
            next_in_slot: [NO_NAME; MAX_NAMES],
        };
        let mut count = 0;
        let mut row = 0;
        while row < rows.len() {
            let mut name_index = 0;
            while name_index < rows[row].names.len() {
                let name = rows[row].names[name_index];
                assert!(name.len() >= HEAD_BYTES, "a name is too short");
                let head = name_head(name);
                index.name_heads[count] = head;
                index.rows[count] = row as u8;
                index.name_indexes[count] = name_index as u8;
                index.next_in_slot[count] = index.first_in_slot[slot_of_head(head)];
                index.first_in_slot[slot_of_head(head)] = count as u8;
                count += 1;
                name_index += 1;
            }
            row += 1;
        }
        index
    }
}

/// The first eight bytes of a line. `None`: the line is shorter.
#[inline]
pub(super) fn line_head(line: &[u8]) -> Option<NameHead> {
    line.first_chunk().map(|head| u64::from_le_bytes(*head))
}

/// The first eight bytes of a name, padded with zeros.
const fn name_head(name: &str) -> NameHead {
    let name = name.as_bytes();
    let mut head = [0; HEAD_BYTES];
    let mut index = 0;
    while index < HEAD_BYTES && index < name.len() {
        head[index] = name[index];
        index += 1;
    }
    u64::from_le_bytes(head)
}

const fn slot_of_head(head: NameHead) -> usize {
    (head.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SLOT_BITS)) as usize
}
