//! The prefill cost of an engine as a linear function, learned by least squares with exponential
//! forgetting.
//!
//! ```text
//! seconds to first output = base + tokens to compute × seconds per token
//! ```
//!
//! The tokens are the uncached prompt tokens of the request plus the backlog before it. Everything
//! else that slows the backend down, such as concurrent decoding or a full KV cache, raises the
//! learned seconds per token. So a backend that reports no load although it is busy has a high cost.

use serde::Serialize;

/// Cost of prefill: a line that maps a number of tokens to compute to seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PrefillCost {
    /// Seconds to a first output without tokens to compute.
    pub base: f64,
    /// Seconds per token to compute.
    pub per_token: f64,
}

/// Weighted sums of a least-squares fit of the seconds to first output (y) over the tokens to compute (x), and
/// the last fitted line.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinearFit {
    line: PrefillCost,
    weight: f64,
    x: f64,
    y: f64,
    x_squared: f64,
    x_y: f64,
    /// Idle seconds after which the fitted line is old. If an observation confirms an old line, the time
    /// doubles. If an observation contradicts the line, the time returns to the minimum.
    pub(super) patience: f64,
}

impl Default for PrefillCost {
    /// The cost that is assumed before the first output: 50 ms, plus the time at 10,000 tokens per second.
    fn default() -> Self {
        Self {
            base: 0.05,
            per_token: 1e-4,
        }
    }
}

impl PrefillCost {
    /// Predicted seconds to a first output with `tokens` tokens to compute.
    pub fn seconds(&self, tokens: f64) -> f64 {
        self.base + tokens * self.per_token
    }

    /// The cost of a backend that is slower by `factor`.
    pub(crate) fn scaled(&self, factor: f64) -> Self {
        Self {
            base: self.base * factor,
            per_token: self.per_token * factor,
        }
    }

    /// The weighted mean of this cost, with the weight `own`, and `other`, with the weight 1 − `own`.
    pub(crate) fn between(&self, other: &Self, own: f64) -> Self {
        let mean = |value: f64, other: f64| other + own * (value - other);
        Self {
            base: mean(self.base, other.base),
            per_token: mean(self.per_token, other.per_token),
        }
    }

    /// This line, scaled so that it passes through the point (`tokens`, `seconds`).
    fn scaled_through(&self, tokens: f64, seconds: f64) -> Self {
        let scaled = self.scaled(seconds / self.seconds(tokens));
        Self {
            per_token: limit_slope(scaled.per_token),
            ..scaled
        }
    }

    /// This line, lowered so that it passes through the point (`tokens`, `seconds`) below the line. The base is
    /// lowered first. It contains waits that were mistaken for prefill, because waits do not grow with the
    /// tokens.
    fn lowered_through(&self, tokens: f64, seconds: f64) -> Self {
        let per_token = limit_slope(self.per_token.min(seconds / tokens));
        Self {
            base: (seconds - per_token * tokens).max(0.0),
            per_token,
        }
    }
}

/// Factor by which each new observation reduces the weight of earlier ones. About the last 50 observations
/// count.
const DECAY_FACTOR: f64 = 0.98;
/// Maximum of an observation, as a multiple of its prediction, so that one outlier does not exclude a backend
/// from traffic. A sustained slowdown is still learned, because the next observations are limited relative to
/// the new prediction.
const MAX_OUTLIER_FACTOR: f64 = 4.0;
/// Maximum number of tokens of an observation, so that its square is finite.
const MAX_OBSERVED_TOKENS: f64 = 1e12;
/// An observation contradicts the line if it differs from its prediction by more than this factor. Predictions
/// of single requests are often wrong by a factor of two.
const CONTRADICTION_FACTOR: f64 = 2.0;
/// Freshness below which a line is old. An observation below an old line replaces the line. A fresh line learns
/// alike from observations above and below it. If it followed the lower ones only, it would become too low, and
/// requests would seem overdue.
const OLD: f64 = 0.5;
/// Bounds of [`LinearFit::patience`] in seconds.
const PATIENCE_RANGE: (f64, f64) = (10.0, 80.0);
/// Each fit includes two points of the previous line: at 0 tokens and at this number of tokens. They define the
/// slope even if all observations have equally many tokens.
const ANCHOR_TOKENS: f64 = 20_000.0;
/// Bounds of the learned seconds per token.
const SECONDS_PER_TOKEN_RANGE: (f64, f64) = (1e-8, 1.0);

impl Default for LinearFit {
    /// A fit without observations.
    fn default() -> Self {
        let [weight, x, y, x_squared, x_y] = [0.0; 5];
        let line = PrefillCost::default();
        let patience = PATIENCE_RANGE.0;
        Self {
            line,
            weight,
            x,
            y,
            x_squared,
            x_y,
            patience,
        }
    }
}

fn limit_slope(seconds_per_token: f64) -> f64 {
    seconds_per_token.clamp(SECONDS_PER_TOKEN_RANGE.0, SECONDS_PER_TOKEN_RANGE.1)
}

impl LinearFit {
    /// Mean `x` of the observations. 0: no observations.
    pub(super) fn mean_x(&self) -> f64 {
        if self.weight > 0.0 {
            self.x / self.weight
        } else {
            0.0
        }
    }

    /// Whether an observation of `y` at `x` is more than [`CONTRADICTION_FACTOR`] times the line's value.
    pub(super) fn is_exceeded(&self, x: f64, y: f64) -> bool {
        y > CONTRADICTION_FACTOR * self.line.seconds(x)
    }

    /// Adds an observation and returns the new line. `freshness`: weight of the present line, 0 to 1. An
    /// observation below an old line replaces it, and one above an old line confirms it.
    #[expect(clippy::manual_clamp, reason = "`clamp` returns NaN for NaN")]
    pub(super) fn observe(&mut self, x: f64, y: f64, freshness: f64) -> PrefillCost {
        let x = x.max(0.0).min(MAX_OBSERVED_TOKENS);
        let expected = self.line.seconds(x);
        if y > CONTRADICTION_FACTOR * expected || CONTRADICTION_FACTOR * y < expected {
            self.patience = PATIENCE_RANGE.0;
        } else if freshness < OLD && self.weight > 0.0 {
            self.patience = (2.0 * self.patience).min(PATIENCE_RANGE.1);
        }
        let y = y.max(0.0).min(MAX_OUTLIER_FACTOR * expected);
        let mut kept = DECAY_FACTOR;
        if self.weight == 0.0 {
            self.line = self.line.scaled_through(x, y);
        } else if freshness < OLD && y < expected {
            kept *= freshness;
            self.line = self.line.lowered_through(x, y + freshness * (expected - y));
        }
        for sum in [
            &mut self.weight,
            &mut self.x,
            &mut self.y,
            &mut self.x_squared,
            &mut self.x_y,
        ] {
            *sum *= kept;
        }
        self.add_observation(1.0, x, y);
        self.line = self.fit();
        self.line
    }

    fn add_observation(&mut self, weight: f64, x: f64, y: f64) {
        self.weight += weight;
        self.x += weight * x;
        self.y += weight * y;
        self.x_squared += weight * x * x;
        self.x_y += weight * x * y;
    }

    /// The least-squares line through the observations and through two points of the previous line.
    fn fit(&self) -> PrefillCost {
        let mut sums = *self;
        sums.add_observation(0.5, 0.0, self.line.seconds(0.0));
        sums.add_observation(0.5, ANCHOR_TOKENS, self.line.seconds(ANCHOR_TOKENS));
        let mean_x = sums.x / sums.weight;
        let mean_y = sums.y / sums.weight;
        let variance = sums.x_squared / sums.weight - mean_x * mean_x;
        let covariance = sums.x_y / sums.weight - mean_x * mean_y;
        // A steeper line through the mean would have a negative base.
        let max_slope = mean_y / mean_x;
        let per_token = limit_slope((covariance / variance).min(max_slope));
        PrefillCost {
            base: (mean_y - per_token * mean_x).max(0.0),
            per_token,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fitted_to(observations: impl IntoIterator<Item = (f64, f64)>) -> PrefillCost {
        let mut fit = LinearFit::default();
        observations
            .into_iter()
            .fold(PrefillCost::default(), |_, (tokens, seconds)| {
                fit.observe(tokens, seconds, 1.0)
            })
    }

    #[test]
    fn base_and_seconds_per_token_are_learned() {
        let mut random = fastrand::Rng::with_seed(1);
        let line = fitted_to((0..200).map(|_| {
            let tokens = random.f64() * 30_000.0;
            (
                tokens,
                (0.2 + tokens / 40_000.0) * (0.9 + 0.2 * random.f64()),
            )
        }));
        assert!((line.base - 0.2).abs() < 0.05, "{line:?}");
        assert!((line.per_token * 40_000.0 - 1.0).abs() < 0.1, "{line:?}");
    }

    #[test]
    fn outliers_are_bounded_and_slowdowns_are_learned() {
        let steady = (0..100).map(|n| (f64::from(n) * 100.0, 0.05 + f64::from(n) * 0.01));
        let before = fitted_to(steady.clone());
        let after = fitted_to(steady.clone().chain([(5_000.0, 600.0)]));
        assert!(
            after.seconds(5_000.0) < 1.5 * before.seconds(5_000.0),
            "{before:?} {after:?}"
        );
        let slow = (0..100).map(|n| (f64::from(n) * 100.0, 0.5 + f64::from(n) * 0.1));
        let slowed = fitted_to(steady.chain(slow));
        assert!(slowed.seconds(5_000.0) > 4.0, "{slowed:?}");
    }

    #[test]
    fn the_time_of_equal_prompts_is_predicted() {
        let line = fitted_to((0..100).map(|_| (1_000.0, 0.3)));
        assert!((line.seconds(1_000.0) - 0.3).abs() < 0.03, "{line:?}");
    }

    #[test]
    fn one_observation_predicts_as_many_equal_ones() {
        for seconds in [0.005, 0.06, 0.2] {
            let [once, often] = [1, 100].map(|count| fitted_to(vec![(100.0, seconds); count]));
            let [once, often] = [once, often].map(|line| line.seconds(100.0));
            assert!((once / often - 1.0).abs() < 0.02, "{once} {often}");
        }
    }

    proptest! {
        #[test]
        fn the_cost_is_finite_and_never_falls(
            observations in proptest::collection::vec((any::<f64>(), any::<f64>()), 0..50),
        ) {
            let line = fitted_to(observations);
            prop_assert!(line.base.is_finite() && line.base >= 0.0);
            prop_assert!(line.per_token.is_finite() && line.per_token > 0.0);
        }
    }
}
