//! Compares two benchmark runs. A difference is significant if it is larger than the random
//! variation within the runs. The variation is estimated with the moving block bootstrap (Künsch
//! 1989): requests are resampled in blocks of consecutive requests, because the latencies of
//! consecutive requests depend on each other. The difference of the runs is computed for each
//! resample.

use super::rendering::millis;
use super::report::BenchReport;
use super::samples::RequestSample;
use serde::Serialize;
use std::fmt::Write;
use tokenweir_core::histogram::sample_quantile;

/// The comparison of an earlier and a later benchmark run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// One row for each compared quantity.
    pub rows: Vec<ComparisonRow>,
    /// Differences of the setups of the runs, and reasons why a run is not valid. Each makes the
    /// results hard to compare.
    pub differences: Vec<String>,
    /// Names of the quantities that got significantly worse by more than the limit.
    pub regressions: Vec<&'static str>,
}

/// The values of one quantity in both runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ComparisonRow {
    /// Name of the quantity, such as `TTFT p50`.
    pub quantity: &'static str,
    /// Unit of `before` and `after`: `s`, `share` or `1/s`.
    pub unit: &'static str,
    /// Value of the earlier run.
    pub before: f64,
    /// Value of the later run.
    pub after: f64,
    /// Relative change, `after / before - 1`. For the unit `share`: `after - before`.
    pub change: f64,
    /// Lower and upper end of the 95 % bootstrap interval of the change. `None`: a run has too few
    /// values.
    pub interval: Option<[f64; 2]>,
    /// Significance and direction of the change.
    pub verdict: ChangeVerdict,
}

/// Significance and direction of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeVerdict {
    /// The later run is significantly better.
    Better,
    /// The later run is significantly worse.
    Worse,
    /// The change is not significant: its interval contains 0.
    Noise,
    /// A run has too few values for a result.
    TooFew,
}

/// A compared quantity: its values and the statistic that is computed from them.
struct ComparedQuantity {
    name: &'static str,
    unit: &'static str,
    /// Reads the values of a run from its report.
    read_values: fn(&BenchReport) -> Vec<f64>,
    statistic: Statistic,
    /// Whether a larger value is better.
    is_higher_better: bool,
    /// Minimum number of values that each run must have for a verdict.
    min_values: usize,
}

/// The statistic of a list of values that is compared between runs.
#[derive(Clone, Copy)]
enum Statistic {
    /// A quantile, by its level from 0 to 1.
    Quantile(f64),
    Mean,
    /// The mean of values that are 0 or 1. Its change is a difference and not a ratio.
    Share,
}

/// Number of bootstrap resamples.
const BOOTSTRAP_ROUNDS: usize = 400;
/// Seed of the bootstrap. It is fixed, so that the same two runs always give the same result.
const BOOTSTRAP_SEED: u64 = 1;
/// Minimum number of values that each run must have before its median or mean is compared.
const MIN_VALUES_FOR_MEAN: usize = 20;
/// Minimum number of values that each run must have before its 99th percentile is compared. Two of
/// 200 values are above it.
const MIN_VALUES_FOR_P99: usize = 200;

const QUANTITIES: [ComparedQuantity; 8] = [
    latency("TTFT p50", |report| sample_values(report, |sample| sample.ttft), 0.5),
    latency("TTFT p99", |report| sample_values(report, |sample| sample.ttft), 0.99),
    latency("TPOT p50", |report| sample_values(report, |sample| sample.tpot), 0.5),
    latency("TPOT p99", |report| sample_values(report, |sample| sample.tpot), 0.99),
    latency("E2E p50", |report| sample_values(report, |sample| sample.e2e), 0.5),
    latency("E2E p99", |report| sample_values(report, |sample| sample.e2e), 0.99),
    ComparedQuantity {
        name: "goodput",
        unit: "share",
        read_values: |report| {
            sample_values(report, |sample| Some(f64::from(u8::from(sample.is_good))))
        },
        statistic: Statistic::Share,
        is_higher_better: true,
        min_values: MIN_VALUES_FOR_MEAN,
    },
    ComparedQuantity {
        name: "output tokens/s",
        unit: "1/s",
        read_values: output_token_rates,
        statistic: Statistic::Mean,
        is_higher_better: true,
        min_values: MIN_VALUES_FOR_MEAN,
    },
];

/// A latency that is compared by its quantile `q`.
const fn latency(
    name: &'static str,
    read_values: fn(&BenchReport) -> Vec<f64>,
    q: f64,
) -> ComparedQuantity {
    ComparedQuantity {
        name,
        unit: "s",
        read_values,
        statistic: Statistic::Quantile(q),
        is_higher_better: false,
        min_values: if q > 0.5 { MIN_VALUES_FOR_P99 } else { MIN_VALUES_FOR_MEAN },
    }
}

fn sample_values(report: &BenchReport, read_values: fn(&RequestSample) -> Option<f64>) -> Vec<f64> {
    report.samples.requests.iter().filter_map(read_values).collect()
}

/// The output tokens per second of each time slot of a run. The last slot is excluded, because the
/// run ended within it.
fn output_token_rates(report: &BenchReport) -> Vec<f64> {
    let slots = report.timeline.slots.split_last().map_or(&[][..], |(_, slots)| slots);
    slots.iter().map(|slot| slot.tokens / report.timeline.width).collect()
}

// === impl Comparison ===

impl Comparison {
    /// Compares an earlier run with a later one. A quantity that got significantly worse by more
    /// than `limit` (a share) is a regression.
    pub fn new(before: &BenchReport, after: &BenchReport, limit: f64) -> Self {
        let rows: Vec<ComparisonRow> =
            QUANTITIES.iter().map(|quantity| quantity.row(before, after)).collect();
        let is_regression =
            |row: &&ComparisonRow| row.verdict == ChangeVerdict::Worse && row.change.abs() > limit;
        let regressions = rows.iter().filter(is_regression).map(|row| row.quantity).collect();
        Self { differences: differences(before, after), regressions, rows }
    }

    /// Renders the comparison as text for a terminal.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, to: &mut String) -> std::fmt::Result {
        for difference in &self.differences {
            writeln!(to, "differs: {difference}")?;
        }
        writeln!(
            to,
            "{:<16}{:>12}{:>12}{:>10}   {:<20}",
            "", "before", "after", "change", "95 % interval"
        )?;
        for row in &self.rows {
            let format_value = |value: f64| match row.unit {
                "s" => format!("{} ms", millis(value)),
                "share" => format!("{:.1} %", value * 1e2),
                _ => format!("{value:.1}"),
            };
            let interval = row.interval.map_or("-".to_owned(), |[low, high]| {
                format!("{:+.1} to {:+.1} %", low * 1e2, high * 1e2)
            });
            let verdict = match row.verdict {
                ChangeVerdict::Better => "better",
                ChangeVerdict::Worse => "WORSE",
                ChangeVerdict::Noise => "noise",
                ChangeVerdict::TooFew => "too few values",
            };
            writeln!(
                to,
                "{:<16}{:>12}{:>12}{:>+8.1} %   {interval:<20} {verdict}",
                row.quantity,
                format_value(row.before),
                format_value(row.after),
                row.change * 1e2,
            )?;
        }
        if !self.regressions.is_empty() {
            writeln!(to, "regressions: {}", self.regressions.join(", "))?;
        }
        Ok(())
    }
}

/// Lists the differences of the setups, and the reasons why a run is not valid.
fn differences(before: &BenchReport, after: &BenchReport) -> Vec<String> {
    let (a, b) = (&before.run, &after.run);
    let mut setup_differences = Vec::new();
    if a.model != b.model {
        setup_differences.push(format!("the models: {} and {}", a.model, b.model));
    }
    if a.scenario != b.scenario {
        setup_differences
            .push(format!("the scenarios: {} and {}", a.scenario.arrivals, b.scenario.arrivals));
    }
    if a.seed != b.seed {
        setup_differences.push(format!("the seeds: {} and {}", a.seed, b.seed));
    }
    if a.objectives != b.objectives {
        setup_differences
            .push("the objectives, so the goodput values are not comparable".to_owned());
    }
    for (position, report) in [("earlier", before), ("later", after)] {
        let problems = report.generator.problems.iter();
        setup_differences
            .extend(problems.map(|problem| format!("the {position} run is not valid: {problem}")));
    }
    setup_differences
}

// === impl ComparedQuantity ===

impl ComparedQuantity {
    fn row(&self, before: &BenchReport, after: &BenchReport) -> ComparisonRow {
        let (a, b) = ((self.read_values)(before), (self.read_values)(after));
        let [old, new] = [&a, &b].map(|values| self.statistic.compute(&mut values.clone()));
        let is_enough = a.len() >= self.min_values && b.len() >= self.min_values;
        let interval = is_enough.then(|| self.interval(&a, &b));
        let verdict = match interval {
            None => ChangeVerdict::TooFew,
            Some([low, high]) if low <= 0.0 && high >= 0.0 => ChangeVerdict::Noise,
            Some([low, _]) if (low > 0.0) == self.is_higher_better => ChangeVerdict::Better,
            Some(_) => ChangeVerdict::Worse,
        };
        let change = self.change(old, new);
        ComparisonRow {
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
        let mut random = fastrand::Rng::with_seed(BOOTSTRAP_SEED);
        let mut changes: Vec<f64> = (0..BOOTSTRAP_ROUNDS)
            .map(|_| {
                let [old, new] = [a, b].map(|values| {
                    self.statistic.compute(&mut resample_blocks(values, &mut random))
                });
                self.change(old, new)
            })
            .collect();
        [0.025, 0.975].map(|q| sample_quantile(&mut changes, q).unwrap_or(0.0))
    }
}

/// Draws a bootstrap resample of the same size, in blocks of consecutive values.
fn resample_blocks(values: &[f64], random: &mut fastrand::Rng) -> Vec<f64> {
    let count = values.len();
    let block_length = (count as f64).cbrt().ceil() as usize;
    let mut resample = Vec::with_capacity(count + block_length);
    while resample.len() < count {
        let begin = random.usize(..=count - block_length);
        resample.extend_from_slice(&values[begin..begin + block_length]);
    }
    resample.truncate(count);
    resample
}

impl Statistic {
    /// Computes the statistic. Without values it is 0. The order of `values` can change.
    fn compute(self, values: &mut [f64]) -> f64 {
        match self {
            Self::Mean | Self::Share => values.iter().sum::<f64>() / values.len().max(1) as f64,
            Self::Quantile(q) => sample_quantile(values, q).unwrap_or(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::{RunDescription, RunEnd, RunTermination};
    use super::super::scenario::ScenarioPreset;
    use super::super::statistics::RunStatistics;
    use super::*;
    use tokenweir_lab::results::LatencyObjectives;

    fn report(seed: u64, requests: u64, factor: f64) -> BenchReport {
        let objectives = LatencyObjectives::new(1.0, 1.0);
        let run = RunDescription {
            target: "http://a".to_owned(),
            model: "m".to_owned(),
            api: "completions".to_owned(),
            started: String::new(),
            scenario: ScenarioPreset::LowLoad.scenario(),
            seed: 1,
            salt: 1,
            objectives,
            lag_limit: 0.01,
        };
        let end = RunEnd { seconds: 10.0, ending: RunTermination::Complete };
        let mut report = BenchReport::new(run, &end, RunStatistics::new(objectives), None);
        let mut random = fastrand::Rng::with_seed(seed);
        let sample = |number: u64| {
            let ttft = factor * (0.05 + random.f64() * 0.05);
            let [ttft, tpot, e2e] = [Some(ttft), Some(ttft / 9.0), Some(ttft * 4.0)];
            RequestSample { number, at: number as f64, ttft, tpot, e2e, is_good: true }
        };
        report.samples.requests = (0..requests).map(sample).collect();
        report
    }

    fn row(comparison: &Comparison, quantity: &str) -> ComparisonRow {
        *comparison.rows.iter().find(|row| row.quantity == quantity).unwrap()
    }

    #[test]
    fn two_runs_of_the_same_distribution_differ_by_noise() {
        let comparison = Comparison::new(&report(1, 500, 1.0), &report(2, 500, 1.0), 0.0);
        assert_eq!(
            row(&comparison, "TTFT p50").verdict,
            ChangeVerdict::Noise,
            "{}",
            comparison.text()
        );
        assert_eq!(comparison.differences, Vec::<String>::new());
    }

    #[test]
    fn a_slower_run_is_worse_and_a_regression_only_above_the_limit() {
        let (before, after) = (report(1, 500, 1.0), report(2, 500, 1.2));
        let comparison = Comparison::new(&before, &after, 0.1);
        assert_eq!(row(&comparison, "TTFT p50").verdict, ChangeVerdict::Worse);
        assert!(comparison.regressions.contains(&"TTFT p50"), "{comparison:?}");
        assert!(Comparison::new(&before, &after, 0.5).regressions.is_empty());
        let back = Comparison::new(&after, &before, 0.1);
        assert_eq!(row(&back, "TTFT p50").verdict, ChangeVerdict::Better);
        assert!(back.regressions.is_empty());
    }

    #[test]
    fn few_requests_give_no_result_for_a_99th_percentile() {
        let comparison = Comparison::new(&report(1, 50, 1.0), &report(2, 50, 5.0), 0.1);
        assert_eq!(row(&comparison, "TTFT p99").verdict, ChangeVerdict::TooFew);
        assert_eq!(row(&comparison, "TTFT p50").verdict, ChangeVerdict::Worse);
        assert_eq!(row(&comparison, "output tokens/s").verdict, ChangeVerdict::TooFew);
    }

    #[test]
    fn differences_of_the_setups_are_listed() {
        let mut other = report(1, 50, 1.0);
        other.run.scenario = ScenarioPreset::Burst.scenario();
        other.generator.problems = vec!["late".to_owned()];
        let comparison = Comparison::new(&report(1, 50, 1.0), &other, 0.1);
        assert_eq!(comparison.differences.len(), 2, "{:?}", comparison.differences);
        assert!(comparison.text().contains("bursts of 32"));
    }
}
