//! Robust statistics of small sets of values.

use tokenweir_core::histogram::sample_quantile;

/// Factor from the median absolute deviation to the standard deviation of a normal distribution.
const MAD_TO_STANDARD_DEVIATION: f64 = 1.4826;

/// The baseline of a measure: its usual value and spread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RobustBaseline {
    /// The median.
    pub(crate) median: f64,
    /// 1.4826 times the median absolute deviation; equals the standard deviation for normal values.
    pub(crate) deviation: f64,
}

impl RobustBaseline {
    /// The baseline of these values. `None`: fewer than `least` values.
    pub(crate) fn from_values(values: impl Iterator<Item = f64>, least: usize) -> Option<Self> {
        let mut values: Vec<f64> = values.collect();
        if values.len() < least {
            return None;
        }
        let median = sample_quantile(&mut values, 0.5)?;
        for value in &mut values {
            *value = (*value - median).abs();
        }
        let deviation = MAD_TO_STANDARD_DEVIATION * sample_quantile(&mut values, 0.5)?;
        Some(Self { median, deviation })
    }

    /// The z-score: (value − median) ÷ deviation. The deviation is at least 1 % of the median,
    /// because a constant value is not known more exactly than that.
    pub(crate) fn z(&self, value: f64) -> f64 {
        let min_deviation = (self.median.abs() / 100.0).max(f64::MIN_POSITIVE);
        (value - self.median) / self.deviation.max(min_deviation)
    }
}

/// Spearman's rank correlation; ties share their mean rank. `None`: fewer than `least` pairs, or
/// one side is constant.
pub(crate) fn rank_correlation(pairs: &[(f64, f64)], least: usize) -> Option<f64> {
    if pairs.len() < least {
        return None;
    }
    let first = ranks(pairs.iter().map(|(first, _)| *first));
    let second = ranks(pairs.iter().map(|(_, second)| *second));
    let middle = (pairs.len() as f64 - 1.0) / 2.0;
    let (mut covariance, mut first_variance, mut second_variance) = (0.0, 0.0, 0.0);
    for (a, b) in first.iter().zip(&second) {
        covariance += (a - middle) * (b - middle);
        first_variance += (a - middle).powi(2);
        second_variance += (b - middle).powi(2);
    }
    let has_variance = first_variance > 0.0 && second_variance > 0.0;
    has_variance.then(|| covariance / (first_variance * second_variance).sqrt())
}

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
        let usual = RobustBaseline::from_values(calm.chain([1e6]), 5).unwrap();
        assert!((usual.median - 11.0).abs() < 1e-9 && usual.deviation < 2.0, "{usual:?}");
        assert!(usual.z(1e6) > 100.0 && usual.z(11.0).abs() < 1e-9);
        assert_eq!(RobustBaseline::from_values([1.0; 4].into_iter(), 5), None);
    }

    #[test]
    fn a_constant_value_has_a_deviation_of_one_percent() {
        let usual = RobustBaseline::from_values([2.0; 9].into_iter(), 5).unwrap();
        assert!((usual.z(2.1) - 5.0).abs() < 1e-9, "{}", usual.z(2.1));
        assert!(RobustBaseline { median: 0.0, deviation: 0.0 }.z(0.0).abs() < 1e-9);
    }

    #[test]
    fn ranks_that_go_together_correlate_whatever_the_curve() {
        let curve: Vec<(f64, f64)> = (0..20).map(f64::from).map(|x| (x, x.powi(3))).collect();
        assert!((rank_correlation(&curve, 20).unwrap() - 1.0).abs() < 1e-9);
        let falling: Vec<(f64, f64)> = curve.iter().map(|(x, y)| (*x, -y)).collect();
        assert!((rank_correlation(&falling, 20).unwrap() + 1.0).abs() < 1e-9);
        let flat: Vec<(f64, f64)> = curve.iter().map(|(x, _)| (*x, 1.0)).collect();
        assert_eq!((rank_correlation(&flat, 20), rank_correlation(&curve, 21)), (None, None));
    }
}
