//! The medians of all rounds, and ratios to the floor.

use super::loads::Figures;
use super::subject::Kind;
use std::fmt::Write;

/// A column: its heading, what it reads, and its decimals.
type Column = (&'static str, fn(&Figures) -> f64, usize);

const COLUMNS: [Column; 10] = [
    ("µs/chunk, paced", |figures| figures.paced, 2),
    ("µs/chunk, flat out", |figures| figures.flat_out, 2),
    ("µs/request", |figures| figures.small, 1),
    ("requests/s", |figures| figures.rate, 0),
    ("TTFT p50, µs", |figures| figures.ttft[0], 0),
    ("p99", |figures| figures.ttft[1], 0),
    ("transit p50, µs", |figures| figures.transit[0], 0),
    ("p99", |figures| figures.transit[1], 0),
    ("KiB/open stream", |figures| figures.stream, 1),
    ("fresh MiB", |figures| figures.fresh, 1),
];

/// The table, in Markdown.
pub(crate) fn of(measured: &[(Kind, Vec<Figures>)]) -> String {
    let mut text = String::from("|  |");
    for (heading, ..) in COLUMNS {
        let _ = write!(text, " {heading} |");
    }
    let _ = writeln!(text, "\n|---|{}", "--:|".repeat(COLUMNS.len()));
    for (kind, figures) in measured {
        let _ = write!(text, "| {} |", kind.name());
        for (_, read, decimals) in COLUMNS {
            let _ = write!(text, " {:.decimals$} |", median(figures.iter().map(read)));
        }
        text.push('\n');
    }
    for (kind, base) in [(Kind::All, Kind::Floor), (Kind::All, Kind::Off)] {
        let (rounds, bases) = (rounds(measured, kind), rounds(measured, base));
        let _ = write!(text, "| {} ÷ {} |", kind.name(), base.name());
        for (_, read, _) in COLUMNS {
            // Of each round, because the machine changes from round to round.
            let ratios = rounds.iter().zip(bases).map(|(a, b)| read(a) / read(b));
            let _ = write!(text, " {:.2} |", median(ratios));
        }
        text.push('\n');
    }
    text
}

fn rounds(measured: &[(Kind, Vec<Figures>)], kind: Kind) -> &[Figures] {
    let found = measured.iter().find(|(other, _)| *other == kind);
    found.map_or(&[], |(_, figures)| figures)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
