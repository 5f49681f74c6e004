//! Robust statistics of small sets of values.

use tokenweir_protocol::histogram::sample_quantile;

/// Factor from the median absolute deviation to the standard deviation of a normal distribution.
const MAD_TO_STANDARD_DEVIATION: f64 = 1.4826;

/// The baseline of a measure: its usual value and spread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RobustBaseline {
    /// The median: the usual value.
    pub(crate) median: f64,
    /// 1.4826 times the median absolute deviation. If the values have a normal distribution, this is their
    /// standard deviation. It is at least 1 % of the median and at least the smallest relevant deviation of
    /// the measure, because otherwise any change of a constant value would be significant.
    pub(crate) deviation: f64,
}

impl RobustBaseline {
    /// The baseline of these values. `min_deviation` is the smallest relevant deviation. It must be above
    /// 0. `None`: there are fewer than `min_count` values.
    pub(crate) fn from_values(
        values: impl Iterator<Item = f64>,
        min_count: usize,
        min_deviation: f64,
    ) -> Option<Self> {
        let mut values: Vec<f64> = values.collect();
        if values.len() < min_count {
            return None;
        }
        let median = sample_quantile(&mut values, 0.5)?;
        for value in &mut values {
            *value = (*value - median).abs();
        }
        let deviation = MAD_TO_STANDARD_DEVIATION * sample_quantile(&mut values, 0.5)?;
        let floor = min_deviation.max(median.abs() / 100.0);
        Some(Self { median, deviation: deviation.max(floor) })
    }

    /// The z-score of a value: (value − median) ÷ deviation.
    pub(crate) fn z_score(&self, value: f64) -> f64 {
        (value - self.median) / self.deviation
    }
}

/// Spearman's rank correlation of pairs, from -1 to 1. Equal values get the mean of their ranks. `None`:
/// there are fewer than `min_count` pairs, or all first values or all second values are equal.
pub(crate) fn rank_correlation(pairs: &[(f64, f64)], min_count: usize) -> Option<f64> {
    if pairs.len() < min_count {
        return None;
    }
    let first = ranks(pairs.iter().map(|(first, _)| *first));
    let second = ranks(pairs.iter().map(|(_, second)| *second));
    let middle = (pairs.len() as f64 - 1.0) / 2.0;
    let mut covariance = 0.0;
    let mut first_variance = 0.0;
    let mut second_variance = 0.0;
    for (a, b) in first.iter().zip(&second) {
        covariance += (a - middle) * (b - middle);
        first_variance += (a - middle).powi(2);
        second_variance += (b - middle).powi(2);
    }
    let has_variance = first_variance > 0.0 && second_variance > 0.0;
    has_variance.then(|| covariance / (first_variance * second_variance).sqrt())
}

/// The rank of each value, from 0. Equal values get the mean of their ranks.
fn ranks(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<(usize, f64)> = values.enumerate().collect();
    sorted.sort_unstable_by(|a, b| a.1.total_cmp(&b.1));
    let mut ranks = vec![0.0; sorted.len()];
    let mut begin = 0;
    while begin < sorted.len() {
        let same = |next: &&(usize, f64)| next.1.total_cmp(&sorted[begin].1).is_eq();
        let end = begin + sorted[begin..].iter().take_while(same).count();
        for (index, _) in &sorted[begin..end] {
            ranks[*index] = (begin + end - 1) as f64 / 2.0;
        }
        begin = end;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_outlier_does_not_change_the_baseline() {
        let calm = (0..20).map(|n| 10.0 + f64::from(n % 3));
        let baseline = RobustBaseline::from_values(calm.chain([1e6]), 5, 1e-3).unwrap();
        assert!((baseline.median - 11.0).abs() < 1e-9 && baseline.deviation < 2.0, "{baseline:?}");
        assert!(baseline.z_score(1e6) > 100.0 && baseline.z_score(11.0).abs() < 1e-9);
        assert_eq!(RobustBaseline::from_values([1.0; 4].into_iter(), 5, 1e-3), None);
    }

    #[test]
    fn a_constant_value_deviates_by_one_percent() {
        let constant = |value, min_deviation| {
            RobustBaseline::from_values([value; 9].into_iter(), 5, min_deviation).unwrap()
        };
        assert!((constant(2.0, 1e-3).z_score(2.1) - 5.0).abs() < 1e-9);
        assert!((constant(0.0, 0.01).z_score(0.1) - 10.0).abs() < 1e-9, "no number of 300 digits");
    }

    #[test]
    fn a_monotonic_relation_has_correlation_one() {
        let curve: Vec<(f64, f64)> = (0..20).map(f64::from).map(|x| (x, x.powi(3))).collect();
        assert!((rank_correlation(&curve, 20).unwrap() - 1.0).abs() < 1e-9);
        let falling: Vec<(f64, f64)> = curve.iter().map(|(x, y)| (*x, -y)).collect();
        assert!((rank_correlation(&falling, 20).unwrap() + 1.0).abs() < 1e-9);
        let flat: Vec<(f64, f64)> = curve.iter().map(|(x, _)| (*x, 1.0)).collect();
        assert_eq!((rank_correlation(&flat, 20), rank_correlation(&curve, 21)), (None, None));
    }
}
