//! Compares two benchmark runs. A difference is significant if it is larger than the random variation within
//! the runs. The moving block bootstrap (Künsch 1989) estimates this variation: it draws the sampled requests
//! again, in blocks of consecutive requests, because the latencies of consecutive requests depend on each
//! other. The difference of the runs is computed for each such resample. The compared values themselves are
//! those of all requests.

use super::rendering::millis;
use super::report::{BenchReport, LatencySummaries};
use super::samples::RequestSample;
use serde::Serialize;
use std::fmt;
use tokenweir_protocol::histogram::sample_quantile;

/// The comparison of an earlier and a later benchmark run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// One row for each compared quantity.
    pub rows: Vec<ComparisonRow>,
    /// Differences between the setups of the runs (server, load, seeds and objectives), and reasons why a run
    /// is not valid. Each entry makes the results hard to compare.
    pub differences: Vec<String>,
    /// Whether the runs had the same load. If not, no quantity has a verdict.
    pub is_comparable: bool,
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
    /// Relative change, `after / before - 1`. For the unit `share`, the absolute change, `after - before`.
    pub change: f64,
    /// Lower and upper end of the 95 % bootstrap interval of the change. `None`: a run has too few values, or
    /// the runs are not comparable.
    pub interval: Option<[f64; 2]>,
    /// Whether the change is significant, and its direction.
    pub verdict: ChangeVerdict,
}

/// Whether a change is significant, and its direction.
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
    /// The runs had different loads, or the quantity is the goodput and the runs had different
    /// objectives.
    NotComparable,
}

/// A kind of compared quantity. It has one value for the whole run. Its values for single requests or time
/// slots show the random variation within the run.
#[derive(Clone, Copy)]
enum Measure {
    /// A quantile of a latency, by its level from 0 to 1.
    Latency {
        quantile: f64,
        total: fn(&LatencySummaries) -> f64,
        sample: fn(&RequestSample) -> Option<f64>,
    },
    /// The share of good requests. Its change is a difference and not a ratio.
    Goodput,
    /// The mean number of output tokens per second.
    OutputTokens,
}

const BOOTSTRAP_ROUNDS: usize = 400;
/// Seed of the bootstrap. It is fixed, so that the same two runs always give the same result.
const BOOTSTRAP_SEED: u64 = 1;
/// Minimum number of values that each run must have before its median or mean is compared.
const MIN_VALUES_FOR_MEAN: usize = 20;
/// Minimum number of values in each run for a comparison of the 99th percentile. Of 200 values, two are above
/// the 99th percentile.
const MIN_VALUES_FOR_P99: usize = 200;

const QUANTITIES: [(&str, Measure); 8] = [
    (
        "TTFT p50",
        latency(0.5, |all| all.ttft.p50, |sample| sample.ttft),
    ),
    (
        "TTFT p99",
        latency(0.99, |all| all.ttft.p99, |sample| sample.ttft),
    ),
    (
        "TPOT p50",
        latency(0.5, |all| all.tpot.p50, |sample| sample.tpot),
    ),
    (
        "TPOT p99",
        latency(0.99, |all| all.tpot.p99, |sample| sample.tpot),
    ),
    (
        "E2E p50",
        latency(0.5, |all| all.e2e.p50, |sample| sample.e2e),
    ),
    (
        "E2E p99",
        latency(0.99, |all| all.e2e.p99, |sample| sample.e2e),
    ),
    ("goodput", Measure::Goodput),
    ("output tokens/s", Measure::OutputTokens),
];

const fn latency(
    quantile: f64,
    total: fn(&LatencySummaries) -> f64,
    sample: fn(&RequestSample) -> Option<f64>,
) -> Measure {
    Measure::Latency {
        quantile,
        total,
        sample,
    }
}

/// The output tokens per second of each time slot of a run. The last slot is left out, because the run ended
/// within it.
fn output_token_rates(report: &BenchReport) -> Vec<f64> {
    let slots = report
        .timeline
        .slots
        .split_last()
        .map_or(&[][..], |(_, slots)| slots);
    slots
        .iter()
        .map(|slot| slot.tokens / report.timeline.width)
        .collect()
}

impl Comparison {
    /// Compares an earlier run with a later one. A quantity is a regression if it got significantly worse by
    /// more than the share `limit`.
    pub fn new(before: &BenchReport, after: &BenchReport, limit: f64) -> Self {
        let is_comparable = before.run.scenario.is_same_load(&after.run.scenario);
        let row = |(quantity, measure): (&'static str, Measure)| {
            measure.row(quantity, before, after, is_comparable)
        };
        let rows: Vec<ComparisonRow> = QUANTITIES.into_iter().map(row).collect();
        let is_regression =
            |row: &&ComparisonRow| row.verdict == ChangeVerdict::Worse && row.change.abs() > limit;
        let regressions = rows
            .iter()
            .filter(is_regression)
            .map(|row| row.quantity)
            .collect();
        Self {
            differences: differences(before, after),
            is_comparable,
            regressions,
            rows,
        }
    }
}

impl fmt::Display for Comparison {
    /// Writes the comparison as text for a terminal.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_comparable {
            writeln!(to, "NOT COMPARABLE: the runs had different loads")?;
        }
        for difference in &self.differences {
            writeln!(to, "differs: {difference}")?;
        }
        writeln!(
            to,
            "{:<16}{:>11}{:>11}{:>10}  {:<17}",
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
                ChangeVerdict::TooFew => "too few",
                ChangeVerdict::NotComparable => "-",
            };
            writeln!(
                to,
                "{:<16}{:>11}{:>11}{:>+8.1} %  {interval:<17} {verdict}",
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

/// Lists the differences between the setups of the runs, and the reasons why a run is not valid.
fn differences(before: &BenchReport, after: &BenchReport) -> Vec<String> {
    let a = &before.run;
    let b = &after.run;
    let mut setup_differences = Vec::new();
    if a.model != b.model {
        setup_differences.push(format!("the models: {} and {}", a.model, b.model));
    }
    if !a.scenario.is_same_load(&b.scenario) {
        setup_differences.push(format!("the loads: {} and {}", a.scenario, b.scenario));
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

/// Draws a bootstrap resample of `values` in blocks of consecutive values. It has as many values as `values`.
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

impl Measure {
    /// Computes the row of this quantity in the comparison. `name` is the name of the quantity.
    fn row(
        self,
        quantity: &'static str,
        before: &BenchReport,
        after: &BenchReport,
        has_same_load: bool,
    ) -> ComparisonRow {
        let [old, new] = [before, after].map(|report| self.total(report));
        let [a, b] = [before, after].map(|report| self.values(report));
        let has_same_objectives = before.run.objectives == after.run.objectives;
        let is_comparable =
            has_same_load && (has_same_objectives || !matches!(self, Self::Goodput));
        let is_enough = a.len().min(b.len()) >= self.min_values();
        let is_higher_better = !matches!(self, Self::Latency { .. });
        let change = self.change(old, new);
        let interval = (is_comparable && is_enough).then(|| self.interval(&a, &b, change));
        let verdict = match interval {
            None if !is_comparable => ChangeVerdict::NotComparable,
            None => ChangeVerdict::TooFew,
            Some([low, high]) if low <= 0.0 && high >= 0.0 => ChangeVerdict::Noise,
            Some([low, _]) if (low > 0.0) == is_higher_better => ChangeVerdict::Better,
            Some(_) => ChangeVerdict::Worse,
        };
        ComparisonRow {
            quantity,
            unit: self.unit(),
            before: old,
            after: new,
            change,
            interval,
            verdict,
        }
    }

    /// The 95 % interval of the change between the runs. It comes from resamples of the sampled requests, and
    /// is shifted so that it surrounds the change of all requests.
    fn interval(self, a: &[f64], b: &[f64], change: f64) -> [f64; 2] {
        let mut random = fastrand::Rng::with_seed(BOOTSTRAP_SEED);
        let change_of = |[old, new]: [Vec<f64>; 2]| {
            let [old, new] = [old, new].map(|mut values| self.statistic(&mut values));
            self.change(old, new)
        };
        let offset = change - change_of([a.to_vec(), b.to_vec()]);
        let mut changes: Vec<f64> = (0..BOOTSTRAP_ROUNDS)
            .map(|_| change_of([a, b].map(|values| resample_blocks(values, &mut random))) + offset)
            .collect();
        [0.025, 0.975].map(|q| sample_quantile(&mut changes, q).unwrap_or(0.0))
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::Latency { .. } => "s",
            Self::Goodput => "share",
            Self::OutputTokens => "1/s",
        }
    }

    /// Minimum number of values in each run for a verdict.
    fn min_values(self) -> usize {
        match self {
            Self::Latency { quantile, .. } if quantile > 0.5 => MIN_VALUES_FOR_P99,
            _ => MIN_VALUES_FOR_MEAN,
        }
    }

    /// The value of the quantity over all requests of a run.
    fn total(self, report: &BenchReport) -> f64 {
        match self {
            Self::Latency { total, .. } => total(&report.latencies),
            Self::Goodput => report.rates.goodput,
            Self::OutputTokens => self.statistic(&mut output_token_rates(report)),
        }
    }

    /// The values of single sampled requests of a run, or of its time slots.
    fn values(self, report: &BenchReport) -> Vec<f64> {
        let samples = report.samples.requests.iter();
        match self {
            Self::Latency { sample, .. } => samples.filter_map(sample).collect(),
            Self::Goodput => samples
                .map(|sample| f64::from(u8::from(sample.is_good)))
                .collect(),
            Self::OutputTokens => output_token_rates(report),
        }
    }

    /// The quantile or the mean of `values`, or 0 without values. The order of `values` can change.
    fn statistic(self, values: &mut [f64]) -> f64 {
        match self {
            Self::Goodput | Self::OutputTokens => {
                values.iter().sum::<f64>() / values.len().max(1) as f64
            }
            Self::Latency { quantile, .. } => sample_quantile(values, quantile).unwrap_or(0.0),
        }
    }

    fn change(self, old: f64, new: f64) -> f64 {
        match self {
            Self::Goodput => new - old,
            _ if old > 0.0 => new / old - 1.0,
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::{RunDescription, RunEnd, RunTermination};
    use super::super::scenario::ScenarioPreset;
    use super::super::statistics::RunStatistics;
    use super::super::statistics::tests::measured;
    use super::*;
    use tokenweir_replay::results::LatencyObjectives;

    /// Builds the report of a run that sends a request every 100 ms. `ttft` returns the TTFT in seconds for
    /// the number of a request.
    fn report_of(requests: u64, mut ttft: impl FnMut(u64) -> f64) -> BenchReport {
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
        let mut statistics = RunStatistics::new(objectives);
        for number in 0..requests {
            statistics.add(&measured(number, number * 100, number * 100, ttft(number)));
        }
        let end = RunEnd {
            seconds: 10.0,
            ending: RunTermination::Complete,
        };
        BenchReport::new(run, &end, statistics, None)
    }

    fn report(seed: u64, requests: u64, factor: f64) -> BenchReport {
        let mut random = fastrand::Rng::with_seed(seed);
        report_of(requests, |_| factor * (0.05 + random.f64() * 0.05))
    }

    fn row(comparison: &Comparison, quantity: &str) -> ComparisonRow {
        *comparison
            .rows
            .iter()
            .find(|row| row.quantity == quantity)
            .unwrap()
    }

    #[test]
    fn equal_distributions_differ_only_by_noise() {
        let comparison = Comparison::new(&report(1, 500, 1.0), &report(2, 500, 1.0), 0.0);
        assert_eq!(
            row(&comparison, "TTFT p50").verdict,
            ChangeVerdict::Noise,
            "{comparison}"
        );
        assert_eq!(comparison.differences, Vec::<String>::new());
    }

    #[test]
    fn a_regression_is_worse_above_the_limit() {
        let before = report(1, 500, 1.0);
        let after = report(2, 500, 1.2);
        let comparison = Comparison::new(&before, &after, 0.1);
        assert_eq!(row(&comparison, "TTFT p50").verdict, ChangeVerdict::Worse);
        assert!(
            comparison.regressions.contains(&"TTFT p50"),
            "{comparison:?}"
        );
        assert!(Comparison::new(&before, &after, 0.5).regressions.is_empty());
        let back = Comparison::new(&after, &before, 0.1);
        assert_eq!(row(&back, "TTFT p50").verdict, ChangeVerdict::Better);
        assert!(back.regressions.is_empty());
    }

    #[test]
    fn few_requests_give_no_99th_percentile() {
        let comparison = Comparison::new(&report(1, 50, 1.0), &report(2, 50, 5.0), 0.1);
        assert_eq!(row(&comparison, "TTFT p99").verdict, ChangeVerdict::TooFew);
        assert_eq!(row(&comparison, "TTFT p50").verdict, ChangeVerdict::Worse);
        assert_eq!(
            row(&comparison, "output tokens/s").verdict,
            ChangeVerdict::TooFew
        );
    }

    #[test]
    fn a_slow_backend_shows_in_plot_and_comparison() {
        for backends in [2, 3, 4, 8] {
            let requests = 13_170;
            let fast = report_of(requests, |_| 0.08);
            let slow = report_of(requests, |number| {
                if number % backends == backends - 1 {
                    37.0
                } else {
                    0.08
                }
            });
            let samples = &slow.samples.requests;
            let slow_samples = samples
                .iter()
                .filter(|sample| sample.ttft > Some(30.0))
                .count();
            let share = slow_samples as f64 / samples.len() as f64 * backends as f64;
            assert!(
                (0.85..1.15).contains(&share),
                "{backends} backends: {share} of the expected"
            );
            // The plot shows the maximum of its axis. It is above 37 s only if the plot has slow requests.
            let html = slow.html();
            assert_eq!(html.matches("<circle").count(), samples.len());
            assert!(html.contains(">40000</text>"), "{backends} backends");
            let comparison = Comparison::new(&fast, &slow, 0.1);
            assert_eq!(row(&comparison, "TTFT p99").verdict, ChangeVerdict::Worse);
            let goodput = row(&comparison, "goodput");
            let good = (requests - requests / backends) as f64 / requests as f64;
            assert!(
                (goodput.after - good).abs() < 1e-9,
                "{backends} backends: {goodput:?}"
            );
            assert!((row(&comparison, "TTFT p99").after - slow.latencies.ttft.p99).abs() < 1e-9);
        }
    }

    #[test]
    fn other_loads_give_no_verdict() {
        let before = report(1, 500, 1.0);
        let mut after = report(2, 500, 9.0);
        after.run.scenario.name = "renamed".to_owned();
        assert!(
            Comparison::new(&before, &after, 0.1).is_comparable,
            "the name is not the load"
        );
        after.run.scenario.output = None;
        let comparison = Comparison::new(&before, &after, 0.1);
        assert!(
            !comparison.is_comparable && comparison.regressions.is_empty(),
            "{comparison:?}"
        );
        assert!(
            comparison
                .rows
                .iter()
                .all(|row| row.verdict == ChangeVerdict::NotComparable)
        );
        assert!(
            comparison.to_string().contains("NOT COMPARABLE"),
            "{comparison}"
        );
    }

    #[test]
    fn other_objectives_give_no_goodput_comparison() {
        let before = report(1, 500, 1.0);
        let mut after = report(2, 500, 1.0);
        after.run.objectives = LatencyObjectives::new(0.01, 1.0);
        let comparison = Comparison::new(&before, &after, 0.1);
        assert_eq!(
            row(&comparison, "goodput").verdict,
            ChangeVerdict::NotComparable
        );
        assert_eq!(row(&comparison, "TTFT p50").verdict, ChangeVerdict::Noise);
    }

    #[test]
    fn differences_of_the_setups_are_listed() {
        let mut other = report(1, 50, 1.0);
        other.run.scenario = ScenarioPreset::Burst.scenario();
        other.generator.problems = vec!["late".to_owned()];
        let comparison = Comparison::new(&report(1, 50, 1.0), &other, 0.1);
        assert_eq!(
            comparison.differences.len(),
            2,
            "{:?}",
            comparison.differences
        );
        assert!(comparison.to_string().contains("bursts of 32"));
    }
}
