//! A section's numbers: the medians of all rounds, and whether they reach what they must.

use super::section::{Bar, Section};
use super::subject::Kind;
use std::fmt::Write;

/// What was measured in a section: of each subject, the numbers of each round.
pub(crate) struct Measured {
    section: Section,
    subjects: Vec<(Kind, Vec<Vec<f64>>)>,
}

impl Measured {
    /// Nothing yet, of the subjects in a list of names or of those that are worth their time.
    pub(crate) fn new(section: Section, only: Option<&str>) -> Self {
        let subjects = section.subjects(only).into_iter().map(|kind| (kind, Vec::new())).collect();
        Self { section, subjects }
    }

    /// Who is measured.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        self.subjects.iter().map(|(kind, _)| *kind).collect()
    }

    /// Keeps the numbers of a round, in the order of the subjects.
    pub(crate) fn keep(&mut self, round: Vec<Vec<f64>>) {
        for ((_, rounds), found) in self.subjects.iter_mut().zip(round) {
            rounds.push(found);
        }
    }

    /// A table in Markdown, and how many bars were missed.
    pub(crate) fn table(&self) -> (String, usize) {
        let (mut text, mut missed) = (format!("\n| {} |", self.section.name()), 0);
        for (kind, _) in &self.subjects {
            let _ = write!(text, " {} |", kind.name());
        }
        let _ = writeln!(text, " must reach |\n|---|{}---|", "--:|".repeat(self.subjects.len()));
        for (index, figure) in self.section.figures().iter().enumerate() {
            let _ = write!(text, "| {} |", figure.name);
            for (kind, _) in &self.subjects {
                let value = median(self.rounds(*kind, index));
                let _ = write!(text, " {value:.*} |", figure.decimals);
            }
            let verdicts = figure.bars.iter().filter_map(|bar| self.verdict(*bar, index));
            let (said, reached): (Vec<String>, Vec<bool>) = verdicts.unzip();
            missed += reached.iter().filter(|reached| !**reached).count();
            let _ = writeln!(text, " {} |", said.join("; "));
        }
        (text, missed)
    }

    /// What a bar says of a number with all telemetry, and whether that is reached. `None`: not all
    /// that it needs was measured.
    fn verdict(&self, bar: Bar, index: usize) -> Option<(String, bool)> {
        // The machine changes from round to round: each is compared with itself.
        let against = |other: Kind, compare: &dyn Fn(f64, f64) -> f64| {
            let pairs = self.rounds(Kind::All, index).zip(self.rounds(other, index));
            median(pairs.map(|(all, other)| compare(all, other)))
        };
        let times = |other| against(other, &|all, other| all / other);
        let (value, what, is_most, bar) = match bar {
            Bar::AtMost(most) => (median(self.rounds(Kind::All, index)), String::new(), true, most),
            Bar::AtLeast(least) => {
                (median(self.rounds(Kind::All, index)), String::new(), false, least)
            }
            Bar::Over(kind, most) => {
                let over = against(kind, &|all, other| all - other);
                (over, format!(" more than {}", kind.name()), true, most)
            }
            Bar::WithinTimes(kind, most) => {
                let over = against(kind, &|all, other| most.mul_add(-other, all));
                (over, format!(" more than {most} × {}", kind.name()), true, 0.0)
            }
            Bar::TimesAtMost(kind, most) => {
                (times(kind), format!(" × {}", kind.name()), true, most)
            }
            Bar::TimesAtLeast(kind, least) => {
                (times(kind), format!(" × {}", kind.name()), false, least)
            }
        };
        let reached = if is_most { value <= bar } else { value >= bar };
        let [sign, verdict] =
            [["≥", "≤"][usize::from(is_most)], ["MISSED", "ok"][usize::from(reached)]];
        let said = format!("{value:.2}{what} {sign} {bar}: {verdict}");
        (!value.is_nan()).then_some((said, reached))
    }

    /// A number of a subject, of each round.
    fn rounds(&self, kind: Kind, index: usize) -> impl Iterator<Item = f64> {
        let found = self.subjects.iter().find(move |(other, _)| *other == kind);
        found.into_iter().flat_map(|(_, rounds)| rounds).map(move |values| values[index])
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
