//! The results of a section of the passthrough bench: the medians over all rounds, and their comparison with
//! the limits.

use super::ratios::Ratio;
use super::section::{Bar, Figure, Section};
use super::subject::Kind;
use std::fmt::Write;
use tokenweir_protocol::histogram::sample_quantile;

/// The values that a section measured: for each subject the values of each round.
pub(crate) struct Measured {
    section: Section,
    subjects: Vec<(Kind, Vec<Vec<f64>>)>,
}

impl Measured {
    /// Begins without values, for the subjects that `only` names, separated by commas, or for the default
    /// subjects of the section.
    pub(crate) fn new(section: Section, only: Option<&str>) -> Self {
        let subjects = section
            .subjects(only)
            .into_iter()
            .map(|kind| (kind, Vec::new()))
            .collect();
        Self { section, subjects }
    }

    /// The measured subjects, in the order of the columns.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        self.subjects.iter().map(|(kind, _)| *kind).collect()
    }

    /// Stores the values of a round, one list for each subject in the order of [`Measured::kinds`].
    pub(crate) fn add_round(&mut self, round: Vec<Vec<f64>>) {
        for ((_, rounds), values) in self.subjects.iter_mut().zip(round) {
            rounds.push(values);
        }
    }

    /// Returns the medians and limits as a Markdown table, and the number of missed limits.
    pub(crate) fn table(&self) -> (String, usize) {
        let (mut text, mut missed) = (format!("\n| {} |", self.section.as_str()), 0);
        for (kind, _) in &self.subjects {
            let _ = write!(text, " {} |", kind.as_str());
        }
        let _ = writeln!(
            text,
            " must reach |\n|---|{}---|",
            "--:|".repeat(self.subjects.len())
        );
        for (index, figure) in self.section.figures().iter().enumerate() {
            let _ = write!(text, "| {} |", figure.name);
            for (kind, _) in &self.subjects {
                let value = median(self.rounds(*kind, index));
                let _ = if value.is_nan() {
                    write!(text, " – |")
                } else {
                    write!(text, " {value:.*} |", figure.decimals)
                };
            }
            let verdicts = figure
                .bars
                .iter()
                .filter_map(|bar| self.verdict(*bar, index));
            let (texts, reached): (Vec<String>, Vec<bool>) = verdicts.unzip();
            missed += reached.iter().filter(|reached| !**reached).count();
            let _ = writeln!(text, " {} |", texts.join("; "));
        }
        (text, missed)
    }

    /// Compares the quantity with this index, for the gateway with all telemetry, with one limit. Returns a
    /// text, and whether the limit is met. `None`: a value for the comparison was not measured.
    fn verdict(&self, bar: Bar, index: usize) -> Option<(String, bool)> {
        // The load of the machine changes between rounds, so only values of the same round are compared.
        let against = |other: Kind, compare: &dyn Fn(f64, f64) -> f64| {
            let pairs = self.rounds(Kind::All, index).zip(self.rounds(other, index));
            median(pairs.map(|(all, other)| compare(all, other)))
        };
        let (value, what, is_most, bar) = match bar {
            Bar::AtMost(most) => (
                median(self.rounds(Kind::All, index)),
                String::new(),
                true,
                most,
            ),
            Bar::AtLeast(least) => (
                median(self.rounds(Kind::All, index)),
                String::new(),
                false,
                least,
            ),
            Bar::Over(kind, most) => {
                let over = against(kind, &|all, other| all - other);
                (over, format!(" more than {}", kind.as_str()), true, most)
            }
            Bar::WithinTimes(kind, most) => {
                let over = against(kind, &|all, other| most.mul_add(-other, all));
                (
                    over,
                    format!(" more than {most} × {}", kind.as_str()),
                    true,
                    0.0,
                )
            }
            Bar::TimesAtMost(kind, most) => {
                let times = against(kind, &|all, other| all / other);
                (times, format!(" × {}", kind.as_str()), true, most)
            }
        };
        let reached = if is_most { value <= bar } else { value >= bar };
        let [sign, verdict] = [
            ["≥", "≤"][usize::from(is_most)],
            ["MISSED", "ok"][usize::from(reached)],
        ];
        let text = format!("{value:.2}{what} {sign} {bar}: {verdict}");
        (!value.is_nan()).then_some((text, reached))
    }

    /// For each CPU time, its name and the ratio of the gateway with all telemetry to the reference proxy.
    pub(crate) fn ratios(&self) -> Vec<(&'static str, Ratio)> {
        let figures = self.section.figures().iter().enumerate();
        let costs = figures.filter(|(_, figure)| figure.name.starts_with("CPU"));
        let ratio = |(index, figure): (usize, &Figure)| {
            let pairs = self
                .rounds(Kind::All, index)
                .zip(self.rounds(Kind::Floor, index));
            let ratios: Vec<f64> = pairs.map(|(all, floor)| all / floor).collect();
            let range = ratios
                .iter()
                .fold([f64::MAX, 0.0], |[least, greatest]: [f64; 2], ratio| {
                    [least.min(*ratio), greatest.max(*ratio)]
                });
            let median = median(ratios.into_iter());
            (!median.is_nan()).then_some((figure.name, Ratio { median, range }))
        };
        costs.filter_map(ratio).collect()
    }

    /// The values of the quantity with this index for the subject `kind`, one per round.
    fn rounds(&self, kind: Kind, index: usize) -> impl Iterator<Item = f64> {
        let subject = self.subjects.iter().find(move |(other, _)| *other == kind);
        subject
            .into_iter()
            .flat_map(|(_, rounds)| rounds)
            .map(move |values| values[index])
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    sample_quantile(&mut values.collect::<Vec<_>>(), 0.5).unwrap_or(f64::NAN)
}
