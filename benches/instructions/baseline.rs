//! The baseline: the recorded instruction counts, with which new counts are compared.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

/// Maximum ratio of a count to the count in the baseline. Compilers and libraries differ slightly.
const MAX_RATIO: f64 = 1.05;

/// The recorded instructions per item, by the name of the lap (see `laps.rs`).
pub(crate) struct Baseline(BTreeMap<String, f64>);

impl Baseline {
    /// Reads the baseline. Without a file, it is empty.
    pub(crate) fn read() -> Self {
        let text = fs::read_to_string(file()).unwrap_or_default();
        let lines = text
            .lines()
            .filter_map(|line| line.trim_start().split_once(' '));
        Self(
            lines
                .map(|(count, name)| (name.to_owned(), count.parse().unwrap()))
                .collect(),
        )
    }

    /// Compares the counts with the baseline. Returns a Markdown table, and how many counts are over the
    /// limit.
    pub(crate) fn compare(&self, counts: &BTreeMap<String, f64>) -> (String, usize) {
        let (mut table, mut worse) = (
            String::from("| instructions | now | baseline | |\n|---|--:|--:|--:|\n"),
            0,
        );
        for (name, now) in counts {
            let Some(before) = self.0.get(name) else {
                let _ = writeln!(table, "| {name} | {now:.0} | none | |");
                continue;
            };
            let ratio = now / before;
            let verdict = if ratio > MAX_RATIO {
                worse += 1;
                " MORE THAN 5 % WORSE"
            } else {
                ""
            };
            let change = 100.0 * (ratio - 1.0);
            let _ = writeln!(
                table,
                "| {name} | {now:.0} | {before:.0} | {change:+.1} %{verdict} |"
            );
        }
        (table, worse)
    }
}

/// Writes these instruction counts to the file of the baseline.
pub(crate) fn write(counts: &BTreeMap<String, f64>) {
    let line = |(name, count): (&String, &f64)| format!("{count:>10.0} {name}\n");
    fs::write(file(), counts.iter().map(line).collect::<String>()).unwrap();
}

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("benches/instructions/baseline.txt")
}
