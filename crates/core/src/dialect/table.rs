//! What a dialect is: a prefix, and rows that say which number of which metric goes where. The rows
//! of a line are found by its first bytes, without looking for the end of its name: most lines are
//! buckets of histograms, and this is all that is read of them.

use super::line::Sample;
use super::{Load, Server};

/// One family of servers.
pub(super) struct Dialect {
    /// Which it is; `None`: whatever else is in the process.
    pub(super) server: Option<Server>,
    /// What its metrics begin with, without the `:` or `_` after it: some exporters write `vllm_x`
    /// for `vllm:x`.
    prefix: Head,
    prefix_length: usize,
    pub(super) rows: &'static [Row],
    index: Index,
}

/// One number, and the names that it has had.
pub(super) struct Row {
    /// The name to prefer first. Names of one number can stand on a page side by side, so they are
    /// never added up.
    names: &'static [&'static str],
    pub(super) reads: Reads,
}

/// What becomes of a line.
pub(super) enum Reads {
    /// A number of the load.
    Number {
        /// Where it is.
        source: Source,
        /// How the series of several engines become one.
        fold: Fold,
        /// Where it goes.
        field: fn(&mut Load) -> &mut Option<f64>,
    },
    /// The LoRA adapters, of the newest series.
    Adapters,
}

/// Where a number is.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// It is the value of the sample.
    Value,
    /// It is the value, but only of the series with this label.
    ValueWhere(&'static str, &'static str),
    /// It is the value of a label.
    Label(&'static str),
}

/// How several numbers become one.
#[derive(Clone, Copy)]
pub(super) enum Fold {
    Sum,
    Greatest,
    Least,
    Count,
}

/// A row that a line is of.
pub(super) struct Found<'a> {
    pub(super) row: usize,
    /// The place of its name among the names of the row.
    pub(super) rank: u8,
    /// What follows the name.
    pub(super) rest: &'a [u8],
}

/// Names by a hash of their first eight bytes.
struct Index {
    heads: [Head; MAX_NAMES],
    rows: [u8; MAX_NAMES],
    ranks: [u8; MAX_NAMES],
    /// The first name of each slot, and the next in its slot; [`END`] is none.
    slots: [u8; SLOTS],
    next: [u8; MAX_NAMES],
}

/// The first eight bytes of a text, as one number.
pub(super) type Head = u64;

/// Most rows of a dialect.
pub(super) const MAX_ROWS: usize = 32;
const MAX_NAMES: usize = 48;
/// Bytes in a head. No name is shorter, and no prefix longer.
const HEAD: usize = 8;
const SLOT_BITS: u32 = 7;
const SLOTS: usize = 1 << SLOT_BITS;
const END: u8 = u8::MAX;

// === impl Dialect ===

impl Dialect {
    /// A table. Fails to compile with a name that is too short, or too many of them.
    pub(super) const fn new(
        server: Option<Server>,
        prefix: &'static str,
        rows: &'static [Row],
    ) -> Self {
        let prefix_length = prefix.len();
        Self { server, prefix: head(prefix), prefix_length, rows, index: Index::of(rows) }
    }

    /// What follows the prefix and its separator, in a line that begins with `head`.
    #[inline]
    pub(super) fn after_prefix<'a>(&self, head: Head, line: &'a [u8]) -> Option<&'a [u8]> {
        let beyond = u64::BITS - 8 * self.prefix_length as u32;
        let is_prefix = (head << beyond) == (self.prefix << beyond);
        let is_whole = is_prefix && matches!(line.get(self.prefix_length), Some(b':' | b'_'));
        if is_whole { line.get(self.prefix_length + 1..) } else { None }
    }

    /// The rows of a line, which begins after the prefix.
    #[inline]
    pub(super) fn find<'a>(&self, line: &'a [u8]) -> impl Iterator<Item = Found<'a>> {
        let head = head_of(line);
        let mut at = head.map_or(END, |head| self.index.slots[slot(head)]);
        std::iter::from_fn(move || {
            while at != END {
                let name = usize::from(at);
                at = self.index.next[name];
                if Some(self.index.heads[name]) == head
                    && let Some(found) = self.found(name, line)
                {
                    return Some(found);
                }
            }
            None
        })
    }

    fn found<'a>(&self, name: usize, line: &'a [u8]) -> Option<Found<'a>> {
        let (row, rank) = (usize::from(self.index.rows[name]), self.index.ranks[name]);
        let name = self.rows[row].names[usize::from(rank)].as_bytes();
        // Most lines that begin like a name have a longer one.
        if !matches!(line.get(name.len()), Some(b'{' | b' ' | b'\t')) {
            return None;
        }
        Some(Found { row, rank, rest: line.strip_prefix(name)? })
    }
}

// === impl Row ===

impl Row {
    /// A number whose engines are added up.
    pub(super) const fn sum(
        names: &'static [&'static str],
        field: fn(&mut Load) -> &mut Option<f64>,
    ) -> Self {
        Self::number(names, Fold::Sum, Source::Value, field)
    }

    /// The LoRA adapters.
    pub(super) const fn adapters(names: &'static [&'static str]) -> Self {
        Self { names, reads: Reads::Adapters }
    }

    /// A number.
    pub(super) const fn number(
        names: &'static [&'static str],
        fold: Fold,
        source: Source,
        field: fn(&mut Load) -> &mut Option<f64>,
    ) -> Self {
        Self { names, reads: Reads::Number { source, fold, field } }
    }
}

// === impl Source ===

impl Source {
    /// The number of a line, if it has one that is finite and not negative.
    pub(super) fn of(self, sample: &Sample<'_>) -> Option<f64> {
        let number = match self {
            Self::Value => sample.number(),
            Self::ValueWhere(label, value) => {
                sample.label(label).filter(|found| *found == value.as_bytes())?;
                sample.number()
            }
            Self::Label(label) => number(sample.label(label)?),
        };
        number.filter(|value| value.is_finite() && *value >= 0.0)
    }
}

/// Reads a number as Prometheus writes it.
pub(super) fn number(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

// === impl Fold ===

impl Fold {
    /// What there was, and one more.
    pub(super) fn of(self, before: Option<f64>, value: f64) -> f64 {
        match (self, before) {
            (Self::Count, before) => before.unwrap_or(0.0) + 1.0,
            (Self::Sum, Some(before)) => before + value,
            (Self::Greatest, Some(before)) => before.max(value),
            (Self::Least, Some(before)) => before.min(value),
            (_, None) => value,
        }
    }
}

// === impl Index ===

impl Index {
    const fn of(rows: &[Row]) -> Self {
        assert!(rows.len() <= MAX_ROWS, "too many rows");
        let mut index = Self {
            heads: [0; MAX_NAMES],
            rows: [0; MAX_NAMES],
            ranks: [0; MAX_NAMES],
            slots: [END; SLOTS],
            next: [END; MAX_NAMES],
        };
        let (mut count, mut row) = (0, 0);
        while row < rows.len() {
            let mut rank = 0;
            while rank < rows[row].names.len() {
                let name = rows[row].names[rank];
                assert!(name.len() >= HEAD, "a name is too short");
                let head = head(name);
                index.heads[count] = head;
                index.rows[count] = row as u8;
                index.ranks[count] = rank as u8;
                index.next[count] = index.slots[slot(head)];
                index.slots[slot(head)] = count as u8;
                count += 1;
                rank += 1;
            }
            row += 1;
        }
        index
    }
}

/// The first eight bytes of a line, if it has so many.
#[inline]
pub(super) fn head_of(line: &[u8]) -> Option<Head> {
    line.first_chunk().map(|head| u64::from_le_bytes(*head))
}

/// The first eight bytes of a name, or fewer.
const fn head(name: &str) -> Head {
    let name = name.as_bytes();
    let mut head = [0; HEAD];
    let mut at = 0;
    while at < HEAD && at < name.len() {
        head[at] = name[at];
        at += 1;
    }
    u64::from_le_bytes(head)
}

const fn slot(head: Head) -> usize {
    (head.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SLOT_BITS)) as usize
}
