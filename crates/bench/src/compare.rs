//! Two runs beside each other. A difference counts if it is larger than what chance does within the
//! runs: requests are drawn anew, in blocks of neighbours, because they wait behind each other, and
//! the difference of both is taken each time (the moving block bootstrap, Künsch 1989).

use super::report::Report;
use super::samples::Sample;
use serde::Serialize;
use std::fmt::Write;

/// Two runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// One row for each quantity.
    pub rows: Vec<Row>,
    /// What else is different, so that the runs may not compare.
    pub differences: Vec<String>,
    /// Quantities that got worse by more than the limit.
    pub regressions: Vec<&'static str>,
}

/// One quantity of both.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Row {
    /// What it is.
    pub quantity: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// In the earlier run.
    pub before: f64,
    /// In the later one.
    pub after: f64,
    /// After ÷ before − 1; of shares after − before.
    pub change: f64,
    /// Where 95 % of the changes are that chance makes around it.
    pub interval: Option<[f64; 2]>,
    /// What that means.
    pub verdict: Verdict,
}

/// What a change means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// More than chance does.
    Better,
    /// More than chance does.
    Worse,
    /// Chance does as much.
    Noise,
    /// There are too few values to say.
    TooFew,
}

/// What is compared: how it is computed from values, and what they are.
struct Quantity {
    name: &'static str,
    unit: &'static str,
    of: fn(&Report) -> Vec<f64>,
    statistic: Statistic,
    /// More is better.
    is_gain: bool,
    /// Values that it takes to say anything.
    least: usize,
}

#[derive(Clone, Copy)]
enum Statistic {
    Quantile(f64),
    Mean,
    /// A mean of zeros and ones, whose changes are differences.
    Share,
}

/// Times that requests are drawn anew.
const ROUNDS: usize = 400;
/// Makes the same draws each time.
const SEED: u64 = 1;
/// Values that a median or a mean takes.
const FEW: usize = 20;
/// Values that a 99th percentile takes: two are above it.
const MANY: usize = 200;

const QUANTITIES: [Quantity; 8] = [
    latency("TTFT p50", |report| of_samples(report, |sample| sample.ttft), 0.5, FEW),
    latency("TTFT p99", |report| of_samples(report, |sample| sample.ttft), 0.99, MANY),
    latency("TPOT p50", |report| of_samples(report, |sample| sample.tpot), 0.5, FEW),
    latency("TPOT p99", |report| of_samples(report, |sample| sample.tpot), 0.99, MANY),
    latency("E2E p50", |report| of_samples(report, |sample| sample.e2e), 0.5, FEW),
    latency("E2E p99", |report| of_samples(report, |sample| sample.e2e), 0.99, MANY),
    Quantity {
        name: "goodput",
        unit: "share",
        of: |report| of_samples(report, |sample| Some(f64::from(u8::from(sample.is_good)))),
        statistic: Statistic::Share,
        is_gain: true,
        least: FEW,
    },
    Quantity {
        name: "output tokens/s",
        unit: "1/s",
        of: tokens,
        statistic: Statistic::Mean,
        is_gain: true,
        least: FEW,
    },
];

const fn latency(
    name: &'static str,
    of: fn(&Report) -> Vec<f64>,
    q: f64,
    least: usize,
) -> Quantity {
    Quantity { name, unit: "s", of, statistic: Statistic::Quantile(q), is_gain: false, least }
}

fn of_samples(report: &Report, of: fn(&Sample) -> Option<f64>) -> Vec<f64> {
    report.samples.requests.iter().filter_map(of).collect()
}

/// Of each slot but the last, which is not full.
fn tokens(report: &Report) -> Vec<f64> {
    let slots = report.course.slots.split_last().map_or(&[][..], |(_, slots)| slots);
    slots.iter().map(|slot| slot.tokens / report.course.width).collect()
}

// === impl Comparison ===

impl Comparison {
    /// An earlier run and a later one. What got worse by more than `limit`, a share, is a regression.
    pub fn of(before: &Report, after: &Report, limit: f64) -> Self {
        let rows: Vec<Row> = QUANTITIES.iter().map(|it| it.row(before, after)).collect();
        let is_regression = |row: &&Row| row.verdict == Verdict::Worse && row.change.abs() > limit;
        let regressions = rows.iter().filter(is_regression).map(|row| row.quantity).collect();
        Self { differences: differences(before, after), regressions, rows }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, to: &mut String) -> std::fmt::Result {
        for difference in &self.differences {
            writeln!(to, "not the same: {difference}")?;
        }
        writeln!(
            to,
            "{:<16}{:>12}{:>12}{:>10}   {:<20}",
            "", "before", "after", "change", "95 % of chance"
        )?;
        for row in &self.rows {
            let shown = |value: f64| match row.unit {
                "s" => format!("{} ms", super::text::millis(value)),
                "share" => format!("{:.1} %", value * 1e2),
                _ => format!("{value:.1}"),
            };
            let interval = row.interval.map_or("-".to_owned(), |[low, high]| {
                format!("{:+.1} to {:+.1} %", low * 1e2, high * 1e2)
            });
            let verdict = match row.verdict {
                Verdict::Better => "better",
                Verdict::Worse => "WORSE",
                Verdict::Noise => "noise",
                Verdict::TooFew => "too few values",
            };
            writeln!(
                to,
                "{:<16}{:>12}{:>12}{:>+8.1} %   {interval:<20} {verdict}",
                row.quantity,
                shown(row.before),
                shown(row.after),
                row.change * 1e2,
            )?;
        }
        if !self.regressions.is_empty() {
            writeln!(to, "regressions: {}", self.regressions.join(", "))?;
        }
        Ok(())
    }
}

/// What makes runs hard to compare.
fn differences(before: &Report, after: &Report) -> Vec<String> {
    let (a, b) = (&before.run, &after.run);
    let mut found = Vec::new();
    if a.model != b.model {
        found.push(format!("the models: {} and {}", a.model, b.model));
    }
    if a.scenario != b.scenario {
        found.push(format!("the scenarios: {} and {}", a.scenario.arrivals, b.scenario.arrivals));
    }
    if a.seed != b.seed {
        found.push(format!("the seeds: {} and {}", a.seed, b.seed));
    }
    if a.objectives != b.objectives {
        found.push("the objectives, so goodput does not compare".to_owned());
    }
    for (which, report) in [("earlier", before), ("later", after)] {
        let complaints = report.generator.complaints.iter();
        found.extend(complaints.map(|it| format!("the {which} run is not valid: {it}")));
    }
    found
}

// === impl Quantity ===

impl Quantity {
    fn row(&self, before: &Report, after: &Report) -> Row {
        let (a, b) = ((self.of)(before), (self.of)(after));
        let [old, new] = [&a, &b].map(|values| self.statistic.of(&mut values.clone()));
        let is_enough = a.len() >= self.least && b.len() >= self.least;
        let interval = is_enough.then(|| self.interval(&a, &b));
        let verdict = match interval {
            None => Verdict::TooFew,
            Some([low, high]) if low <= 0.0 && high >= 0.0 => Verdict::Noise,
            Some([low, _]) if (low > 0.0) == self.is_gain => Verdict::Better,
            Some(_) => Verdict::Worse,
        };
        let change = self.change(old, new);
        Row {
            quantity: self.name,
            unit: self.unit,
            before: old,
            after: new,
            change,
            interval,
            verdict,
        }
    }

    fn change(&self, old: f64, new: f64) -> f64 {
        match self.statistic {
            Statistic::Share => new - old,
            _ if old > 0.0 => new / old - 1.0,
            _ => 0.0,
        }
    }

    fn interval(&self, a: &[f64], b: &[f64]) -> [f64; 2] {
        let mut random = fastrand::Rng::with_seed(SEED);
        let mut changes: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let [old, new] =
                    [a, b].map(|values| self.statistic.of(&mut drawn(values, &mut random)));
                self.change(old, new)
            })
            .collect();
        changes.sort_by(f64::total_cmp);
        let at = |share: f64| changes[((ROUNDS - 1) as f64 * share).round() as usize];
        [at(0.025), at(0.975)]
    }
}

/// As many values, in blocks of neighbours.
fn drawn(values: &[f64], random: &mut fastrand::Rng) -> Vec<f64> {
    let count = values.len();
    let block = (count as f64).cbrt().ceil() as usize;
    let mut drawn = Vec::with_capacity(count + block);
    while drawn.len() < count {
        let begin = random.usize(..=count - block);
        drawn.extend_from_slice(&values[begin..begin + block]);
    }
    drawn.truncate(count);
    drawn
}

impl Statistic {
    fn of(self, values: &mut [f64]) -> f64 {
        match self {
            Self::Mean | Self::Share => values.iter().sum::<f64>() / values.len().max(1) as f64,
            Self::Quantile(q) => {
                let rank = (q * values.len() as f64).ceil() as usize;
                let place = rank.saturating_sub(1);
                if place >= values.len() {
                    return 0.0;
                }
                *values.select_nth_unstable_by(place, f64::total_cmp).1
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::{End, Ending, Run};
    use super::super::scenario::Preset;
    use super::super::tally::Tally;
    use super::*;
    use tokenweir_lab::score::Objectives;

    fn report(seed: u64, requests: u64, factor: f64) -> Report {
        let objectives = Objectives { ttft: 1.0, tpot: 1.0 };
        let run = Run {
            target: "http://a".to_owned(),
            model: "m".to_owned(),
            api: "completions".to_owned(),
            started: String::new(),
            scenario: Preset::LowLoad.scenario(),
            seed: 1,
            salt: 1,
            objectives,
            max_lag: 0.01,
        };
        let end = End { seconds: 10.0, ending: Ending::Complete };
        let mut report = Report::of(run, &end, Tally::new(objectives), None);
        let mut random = fastrand::Rng::with_seed(seed);
        let sample = |number: u64| {
            let ttft = factor * (0.05 + random.f64() * 0.05);
            let [ttft, tpot, e2e] = [Some(ttft), Some(ttft / 9.0), Some(ttft * 4.0)];
            Sample { number, at: number as f64, ttft, tpot, e2e, is_good: true }
        };
        report.samples.requests = (0..requests).map(sample).collect();
        report
    }

    fn row(comparison: &Comparison, quantity: &str) -> Row {
        *comparison.rows.iter().find(|row| row.quantity == quantity).unwrap()
    }

    #[test]
    fn two_runs_of_the_same_are_noise() {
        let comparison = Comparison::of(&report(1, 500, 1.0), &report(2, 500, 1.0), 0.0);
        assert_eq!(row(&comparison, "TTFT p50").verdict, Verdict::Noise, "{}", comparison.text());
        assert_eq!(comparison.differences, Vec::<String>::new());
    }

    #[test]
    fn what_is_slower_is_worse_and_a_regression_only_above_the_limit() {
        let (before, after) = (report(1, 500, 1.0), report(2, 500, 1.2));
        let comparison = Comparison::of(&before, &after, 0.1);
        assert_eq!(row(&comparison, "TTFT p50").verdict, Verdict::Worse);
        assert!(comparison.regressions.contains(&"TTFT p50"), "{comparison:?}");
        assert!(Comparison::of(&before, &after, 0.5).regressions.is_empty());
        let back = Comparison::of(&after, &before, 0.1);
        assert_eq!(row(&back, "TTFT p50").verdict, Verdict::Better);
        assert!(back.regressions.is_empty());
    }

    #[test]
    fn few_requests_say_nothing_of_a_99th_percentile() {
        let comparison = Comparison::of(&report(1, 50, 1.0), &report(2, 50, 5.0), 0.1);
        assert_eq!(row(&comparison, "TTFT p99").verdict, Verdict::TooFew);
        assert_eq!(row(&comparison, "TTFT p50").verdict, Verdict::Worse);
        assert_eq!(row(&comparison, "output tokens/s").verdict, Verdict::TooFew);
    }

    #[test]
    fn what_was_not_the_same_is_said() {
        let mut other = report(1, 50, 1.0);
        other.run.scenario = Preset::Burst.scenario();
        other.generator.complaints = vec!["late".to_owned()];
        let comparison = Comparison::of(&report(1, 50, 1.0), &other, 0.1);
        assert_eq!(comparison.differences.len(), 2, "{:?}", comparison.differences);
        assert!(comparison.text().contains("bursts of 32"));
    }
}
