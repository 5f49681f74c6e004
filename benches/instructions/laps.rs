//! Laps: the instructions between two calls of a marker function, before which callgrind dumps its
//! counts.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::hint::black_box;
use std::path::Path;

/// The name of the marker function in callgrind.
pub(crate) const MARK: &str = "instructions::laps::mark";
/// Base name of the dump files. A dot and their number follow.
pub(crate) const DUMP: &str = "dump";
/// The file with the names of the laps.
const NAMES: &str = "laps";

/// The laps so far, one line each: the number of items, a tab and the name.
#[derive(Default)]
pub(crate) struct Laps(String);

impl Laps {
    /// Begins a lap. Instructions since the last lap are not counted.
    pub(crate) fn begin() {
        mark();
    }

    /// Ends a lap with this number of items. The counts per item of laps with the same name are
    /// added. Laps with a negative number of items are subtracted.
    pub(crate) fn end(&mut self, name: &str, items: f64) {
        mark();
        let _ = writeln!(self.0, "{items}\t{name}");
    }

    /// Writes the names of the laps.
    pub(crate) fn write(&self, folder: &Path) {
        fs::write(folder.join(NAMES), &self.0).unwrap();
    }
}

#[inline(never)]
fn mark() {
    // Without this, the compiler would remove the empty function.
    black_box(());
}

/// Reads the dumps and the names of a finished run: the instructions per item, by the name of the lap.
pub(crate) fn read(folder: &Path) -> BTreeMap<String, f64> {
    let mut counts = BTreeMap::new();
    for (index, line) in fs::read_to_string(folder.join(NAMES)).unwrap().lines().enumerate() {
        let (items, name) = line.split_once('\t').unwrap();
        let items: f64 = items.parse().unwrap();
        // Dumps are numbered from one, and each lap has one dump before it and one after it.
        let dump = folder.join(format!("{DUMP}.{}", 2 * index + 2));
        *counts.entry(name.to_owned()).or_insert(0.0) += total(&dump) / items;
    }
    counts
}

/// The number of instructions in a dump file of callgrind.
fn total(dump: &Path) -> f64 {
    let dump = fs::read_to_string(dump).unwrap();
    let total = dump.lines().find_map(|line| line.strip_prefix("totals: ")).unwrap();
    total.trim().parse().unwrap()
}
