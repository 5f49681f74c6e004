//! Laps. A lap is a measured section of the run: the instructions between two calls of a marker function.
//! Before each call of this function, callgrind dumps its counts.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::hint::black_box;
use std::path::Path;

/// The name of the marker function, as callgrind knows it.
pub(crate) const MARK: &str = "instructions::laps::mark";
/// The base name of the dump files of callgrind, which appends a dot and the number of the dump.
pub(crate) const DUMP: &str = "dump";
/// The name of the file that lists the laps of a run, one per line.
const NAMES: &str = "laps";

/// The finished laps, one line each: the number of items, a tab and the name of the lap.
#[derive(Default)]
pub(crate) struct Laps(String);

impl Laps {
    /// Begins a lap. Instructions between the end of the lap before and this call are not counted.
    pub(crate) fn begin() {
        mark();
    }

    /// Ends a lap, in which this number of items was processed. The counts per item of laps with the same
    /// name are added. A lap with a negative number of items is subtracted.
    pub(crate) fn end(&mut self, name: &str, items: f64) {
        mark();
        let _ = writeln!(self.0, "{items}\t{name}");
    }

    pub(crate) fn write(&self, folder: &Path) {
        fs::write(folder.join(NAMES), &self.0).unwrap();
    }
}

#[inline(never)]
fn mark() {
    // Without this call, the compiler would remove the empty function.
    black_box(());
}

/// Reads the dumps and the list of laps of a finished run. Returns the instructions per item, by the name of
/// the lap.
pub(crate) fn read(folder: &Path) -> BTreeMap<String, f64> {
    let mut counts = BTreeMap::new();
    for (index, line) in fs::read_to_string(folder.join(NAMES))
        .unwrap()
        .lines()
        .enumerate()
    {
        let (items, name) = line.split_once('\t').unwrap();
        let items: f64 = items.parse().unwrap();
        // Dumps are numbered from one. Each lap has two dumps: one at its begin, and one at its end, which
        // has its counts.
        let dump = folder.join(format!("{DUMP}.{}", 2 * index + 2));
        *counts.entry(name.to_owned()).or_insert(0.0) += total(&dump) / items;
    }
    counts
}

/// The number of instructions that a dump file of callgrind states.
fn total(dump: &Path) -> f64 {
    let dump = fs::read_to_string(dump).unwrap();
    let total = dump
        .lines()
        .find_map(|line| line.strip_prefix("totals: "))
        .unwrap();
    total.trim().parse().unwrap()
}
