//! Linear regression that is trained with one observation at a time: recursive least squares with
//! exponential forgetting.

/// A linear regression over a fixed number of features that learns from one observation at a time.
#[derive(Debug)]
pub(super) struct OnlineRegression {
    weights: Vec<f64>,
    /// Inverse of the weighted covariance of the features, by row.
    inverse: Vec<Vec<f64>>,
    observations: u32,
}

/// Factor on the weight of all previous observations with each new observation: about the last 1,000 count.
const FORGETTING: f64 = 0.999;
/// Initial variance of the regression weights.
const PRIOR_VARIANCE: f64 = 100.0;
/// Number of observations that are needed before the predictions are used.
const MIN_OBSERVATIONS: u32 = 20;

impl OnlineRegression {
    pub(super) fn new(features: usize) -> Self {
        let row = |index: usize| {
            (0..features)
                .map(|other| f64::from(other == index) * PRIOR_VARIANCE)
                .collect()
        };
        Self {
            weights: vec![0.0; features],
            inverse: (0..features).map(row).collect(),
            observations: 0,
        }
    }

    /// Whether there are enough observations for a prediction.
    pub(super) const fn is_trained(&self) -> bool {
        self.observations >= MIN_OBSERVATIONS
    }

    /// The predicted value for these features, at least 0.
    pub(super) fn predict(&self, features: &[f64]) -> f64 {
        dot(&self.weights, features).max(0.0)
    }

    pub(super) fn train(&mut self, features: &[f64], value: f64) {
        self.observations = self.observations.saturating_add(1);
        let projected: Vec<f64> = self.inverse.iter().map(|row| dot(row, features)).collect();
        let scale = FORGETTING + dot(&projected, features);
        let error = value - dot(&self.weights, features);
        for (weight, part) in self.weights.iter_mut().zip(&projected) {
            *weight += part / scale * error;
        }
        for (row, part) in self.inverse.iter_mut().zip(&projected) {
            for (entry, other) in row.iter_mut().zip(&projected) {
                *entry = (*entry - part * other / scale) / FORGETTING;
            }
        }
        // The variance of a feature that does not change would grow without bound, so its growth is limited.
        let trace: f64 = self
            .inverse
            .iter()
            .enumerate()
            .map(|(index, row)| row[index])
            .sum();
        let limit = PRIOR_VARIANCE * self.weights.len() as f64;
        if trace > limit {
            let factor = limit / trace;
            self.inverse
                .iter_mut()
                .flatten()
                .for_each(|entry| *entry *= factor);
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weights_of_a_linear_function_are_learned() {
        let mut model = OnlineRegression::new(3);
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..500 {
            let features = [1.0, random.f64(), random.f64()];
            model.train(&features, 0.5 + 2.0 * features[1] - 0.25 * features[2]);
        }
        assert!(model.is_trained());
        assert!((model.predict(&[1.0, 0.5, 0.5]) - 1.375).abs() < 0.01);
        assert!(model.predict(&[-10.0, 0.0, 0.0]) <= 0.0);
    }
}
