//! Laps: what is counted between two calls of a function before which callgrind dumps its counts.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::hint::black_box;
use std::path::Path;

/// The function as callgrind knows it.
pub(crate) const MARK: &str = "instructions::laps::mark";
/// The dumps are files of this name, with a dot and their number.
pub(crate) const DUMP: &str = "dump";
/// The file that says what each lap was.
const NAMES: &str = "laps";

/// The laps so far.
#[derive(Default)]
pub(crate) struct Laps(String);

impl Laps {
    /// Begins a lap. What was counted since the last one belongs to none.
    pub(crate) fn begin() {
        mark();
    }

    /// Ends a lap of so many items. Of laps with one name the counts of an item are added; those with
    /// a negative number are taken off.
    pub(crate) fn end(&mut self, name: &str, items: f64) {
        mark();
        let _ = writeln!(self.0, "{items}\t{name}");
    }

    /// Says what the laps were.
    pub(crate) fn write(&self, folder: &Path) {
        fs::write(folder.join(NAMES), &self.0).unwrap();
    }
}

#[inline(never)]
fn mark() {
    // Else it would be the same as nothing.
    black_box(());
}

/// Instructions of one item, by name.
pub(crate) fn read(folder: &Path) -> BTreeMap<String, f64> {
    let mut counts = BTreeMap::new();
    for (index, line) in fs::read_to_string(folder.join(NAMES)).unwrap().lines().enumerate() {
        let (items, name) = line.split_once('\t').unwrap();
        let items: f64 = items.parse().unwrap();
        // Dumps are numbered from one, and each lap has one before and one after it.
        let dump = folder.join(format!("{DUMP}.{}", 2 * index + 2));
        *counts.entry(name.to_owned()).or_insert(0.0) += total(&dump) / items;
    }
    counts
}

/// Instructions of a dump.
fn total(dump: &Path) -> f64 {
    let dump = fs::read_to_string(dump).unwrap();
    let total = dump.lines().find_map(|line| line.strip_prefix("totals: ")).unwrap();
    total.trim().parse().unwrap()
}
