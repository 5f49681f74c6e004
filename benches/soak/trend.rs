//! Detects growth: the Theil-Sen slope and the Mann-Kendall test over samples. The x-axis is the number of
//! requests.

use tokenweir_protocol::histogram::sample_quantile;

/// Samples of the gateway in the order of time: requests so far, memory in MiB, and open files.
#[derive(Debug, Default)]
pub(crate) struct Trend {
    requests: Vec<f64>,
    mib: Vec<f64>,
    files: Vec<f64>,
}

/// The share of the samples that is excluded as warm-up, counted from the first sample.
const WARM_UP_SHARE: f64 = 0.2;
/// Maximum number of samples that are compared pairwise.
const MAX_COMPARED: usize = 1_000;
/// A trend counts if its p-value is below this significance level.
const SIGNIFICANCE_LEVEL: f64 = 0.01;

impl Trend {
    pub(crate) fn add(&mut self, requests: usize, mib: f64, files: f64) {
        self.requests.push(requests as f64);
        self.mib.push(mib);
        self.files.push(files);
    }

    /// Memory in MiB at the end of the warm-up. Infinite if there is no sample.
    pub(crate) fn warm_mib(&self) -> f64 {
        self.mib.get(self.first()).copied().unwrap_or(f64::INFINITY)
    }

    fn first(&self) -> usize {
        (self.mib.len() as f64 * WARM_UP_SHARE) as usize
    }

    /// Prints the growth of memory and of open files. If `counts` is true, adds a violation for each of them
    /// that grows significantly, and by more than `most` (a share of its mean) per million requests.
    pub(crate) fn print(&self, counts: bool, most: f64, limit_violations: &mut Vec<String>) {
        for (name, values) in [("memory in MiB", &self.mib), ("open files", &self.files)] {
            let (x, y) = thinned(&self.requests[self.first()..], &values[self.first()..]);
            let mean = y.iter().sum::<f64>() / y.len() as f64;
            let slope = slope(&x, &y) * 1e6;
            let chance = chance(&y);
            println!(
                "{name}: mean {mean:.1}, {slope:+.2} in a million requests ({:+.2} %), by chance \
                 p = {chance:.3}",
                100.0 * slope / mean
            );
            if counts && slope > most * mean && chance < SIGNIFICANCE_LEVEL {
                limit_violations.push(format!("{name} grows by {slope:.2} per million requests"));
            }
        }
    }
}

fn thinned(x: &[f64], y: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let step = x.len().div_ceil(MAX_COMPARED).max(1);
    let every = |values: &[f64]| values.iter().copied().step_by(step).collect();
    (every(x), every(y))
}

/// The Theil-Sen slope: the median of the slopes between all pairs of points.
fn slope(x: &[f64], y: &[f64]) -> f64 {
    let mut slopes = Vec::new();
    for (at, (first_x, first_y)) in x.iter().zip(y).enumerate() {
        for (second_x, second_y) in x.iter().zip(y).skip(at + 1) {
            if second_x > first_x {
                slopes.push((second_y - first_y) / (second_x - first_x));
            }
        }
    }
    sample_quantile(&mut slopes, 0.5).unwrap_or(0.0)
}

/// Returns the p-value of the Mann-Kendall test: the probability that values without a trend look like these.
fn chance(y: &[f64]) -> f64 {
    let count = y.len() as f64;
    let mut sum = 0.0;
    for (at, first) in y.iter().enumerate() {
        sum += y[at + 1..]
            .iter()
            .map(|second| sign(second - first))
            .sum::<f64>();
    }
    let deviation = (count * (count - 1.0) * (2.0 * count + 5.0) / 18.0).sqrt();
    let z = (sum.abs() - 1.0).max(0.0) / deviation.max(f64::MIN_POSITIVE);
    normal_tail(z)
}

fn sign(number: f64) -> f64 {
    if number == 0.0 { 0.0 } else { number.signum() }
}

/// The probability of both tails of the normal distribution beyond `z` (Abramowitz and Stegun 7.1.26).
fn normal_tail(z: f64) -> f64 {
    let z = z / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let terms = [
        1.061_405_429,
        -1.453_152_027,
        1.421_413_741,
        -0.284_496_736,
        0.254_829_592,
    ];
    terms.iter().fold(0.0, |sum, term| (sum + term) * t) * (-z * z).exp()
}
