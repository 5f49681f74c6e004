//! Robust statistics of small sets of values.

use tokenweir_protocol::histogram::sample_quantile;

/// Factor from the median absolute deviation to the standard deviation of a normal distribution.
const MAD_TO_STANDARD_DEVIATION: f64 = 1.4826;

/// The baseline of a measure: its usual value and its deviation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RobustBaseline {
    pub(crate) median: f64,
    /// 1.4826 times the median absolute deviation. For a normal distribution, this is the standard deviation.
    /// It is at least 1 % of the median and at least the smallest relevant deviation of the measure. Otherwise
    /// any change of a constant value would be significant.
    pub(crate) deviation: f64,
}

impl RobustBaseline {
    /// The baseline of these values. `min_deviation` is the smallest relevant deviation, which must be above 0.
    /// `None`: there are fewer than `min_count` values.
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
        Some(Self {
            median,
            deviation: deviation.max(floor),
        })
    }

    /// The z-score of a value: (value − median) ÷ deviation.
    pub(crate) fn z_score(&self, value: f64) -> f64 {
        (value - self.median) / self.deviation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_outlier_does_not_change_the_baseline() {
        let calm = (0..20).map(|n| 10.0 + f64::from(n % 3));
        let baseline = RobustBaseline::from_values(calm.chain([1e6]), 5, 1e-3).unwrap();
        assert!(
            (baseline.median - 11.0).abs() < 1e-9 && baseline.deviation < 2.0,
            "{baseline:?}"
        );
        assert!(baseline.z_score(1e6) > 100.0 && baseline.z_score(11.0).abs() < 1e-9);
        assert_eq!(
            RobustBaseline::from_values([1.0; 4].into_iter(), 5, 1e-3),
            None
        );
    }

    #[test]
    fn a_constant_value_deviates_by_one_percent() {
        let constant = |value, min_deviation| {
            RobustBaseline::from_values([value; 9].into_iter(), 5, min_deviation).unwrap()
        };
        assert!((constant(2.0, 1e-3).z_score(2.1) - 5.0).abs() < 1e-9);
        assert!(
            (constant(0.0, 0.01).z_score(0.1) - 10.0).abs() < 1e-9,
            "no number of 300 digits"
        );
    }
}
