//! Learns the time to first output of a backend as a linear function of prefill work, by least
//! squares with exponential forgetting.
//!
//! ```text
//! seconds to first output = base + tokens to compute × seconds per token
//! ```
//!
//! The tokens are the uncached prompt tokens of the request plus the backlog before it. Everything
//! else that slows the backend down, such as concurrent decoding or a full KV cache, raises the
//! learned price of a token. A backend that reports no load although it is busy is detected by
//! this price.

use serde::Serialize;

/// Cost of prefill: a line over the number of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PrefillCost {
    /// Seconds to a first output without tokens to compute.
    pub base: f64,
    /// Seconds per token to compute.
    pub per_token: f64,
}

/// Weighted sums of a least-squares fit, and the cost that was last fitted.
#[derive(Debug, Clone, Copy)]
pub(super) struct PrefillFit {
    cost: PrefillCost,
    weight: f64,
    tokens: f64,
    seconds: f64,
    tokens_squared: f64,
    tokens_seconds: f64,
}

impl Default for PrefillCost {
    /// 10,000 tokens per second after 50 ms: an average GPU. Used until the first output.
    fn default() -> Self {
        Self { base: 0.05, per_token: 1e-4 }
    }
}

impl PrefillCost {
    /// Predicted seconds to a first output if `tokens` have to be computed.
    pub fn seconds(&self, tokens: f64) -> f64 {
        self.base + tokens * self.per_token
    }

    /// This line, scaled so that it passes through a point.
    fn scaled_through(&self, tokens: f64, seconds: f64) -> Self {
        let factor = seconds / self.seconds(tokens);
        let per_token = (self.per_token * factor)
            .clamp(*SECONDS_PER_TOKEN_RANGE.start(), *SECONDS_PER_TOKEN_RANGE.end());
        Self { base: self.base * factor, per_token }
    }
}

/// Factor by which each new observation reduces the weight of the earlier ones. About the last 50
/// observations count.
const DECAY_FACTOR: f64 = 0.98;
/// An observation counts as at most this multiple of its prediction, so that one outlier does not
/// exclude a backend from traffic. A sustained slowdown is still learned: the next observations are
/// limited relative to the new prediction.
const MAX_OUTLIER_FACTOR: f64 = 4.0;
/// Each fit includes two points of the previous line: at 0 tokens and at this number of tokens.
/// Without them, prompts of equal length would leave the slope undefined.
const ANCHOR_TOKENS: f64 = 20_000.0;
/// Bounds of the seconds per token.
const SECONDS_PER_TOKEN_RANGE: std::ops::RangeInclusive<f64> = 1e-8..=1.0;

impl Default for PrefillFit {
    fn default() -> Self {
        Self {
            cost: PrefillCost::default(),
            weight: 0.0,
            tokens: 0.0,
            seconds: 0.0,
            tokens_squared: 0.0,
            tokens_seconds: 0.0,
        }
    }
}

impl PrefillFit {
    /// Adds an observation and returns the new cost: the first output came after `seconds`, and
    /// `tokens` had to be computed for it.
    pub(super) fn on_first_output(&mut self, tokens: f64, seconds: f64) -> PrefillCost {
        let tokens = tokens.max(0.0);
        let seconds = seconds.clamp(0.0, MAX_OUTLIER_FACTOR * self.cost.seconds(tokens));
        if self.weight == 0.0 {
            self.cost = self.cost.scaled_through(tokens, seconds);
        }
        for sum in [
            &mut self.weight,
            &mut self.tokens,
            &mut self.seconds,
            &mut self.tokens_squared,
            &mut self.tokens_seconds,
        ] {
            *sum *= DECAY_FACTOR;
        }
        self.add_observation(1.0, tokens, seconds);
        self.cost = self.fit();
        self.cost
    }

    fn add_observation(&mut self, weight: f64, tokens: f64, seconds: f64) {
        self.weight += weight;
        self.tokens += weight * tokens;
        self.seconds += weight * seconds;
        self.tokens_squared += weight * tokens * tokens;
        self.tokens_seconds += weight * tokens * seconds;
    }

    /// The least-squares line through the observations and through two points of the previous line.
    fn fit(&self) -> PrefillCost {
        let mut sums = *self;
        sums.add_observation(0.5, 0.0, self.cost.seconds(0.0));
        sums.add_observation(0.5, ANCHOR_TOKENS, self.cost.seconds(ANCHOR_TOKENS));
        let mean_tokens = sums.tokens / sums.weight;
        let mean_seconds = sums.seconds / sums.weight;
        let variance = sums.tokens_squared / sums.weight - mean_tokens * mean_tokens;
        let covariance = sums.tokens_seconds / sums.weight - mean_tokens * mean_seconds;
        // A steeper line through the mean would have a negative base.
        let max_slope = mean_seconds / mean_tokens;
        let per_token = (covariance / variance)
            .min(max_slope)
            .clamp(*SECONDS_PER_TOKEN_RANGE.start(), *SECONDS_PER_TOKEN_RANGE.end());
        PrefillCost { base: (mean_seconds - per_token * mean_tokens).max(0.0), per_token }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fitted_to(observations: impl IntoIterator<Item = (f64, f64)>) -> PrefillCost {
        let mut fit = PrefillFit::default();
        observations.into_iter().fold(PrefillCost::default(), |_, (tokens, seconds)| {
            fit.on_first_output(tokens, seconds)
        })
    }

    #[test]
    fn base_and_seconds_per_token_are_learned() {
        let mut random = fastrand::Rng::with_seed(1);
        let line = fitted_to((0..200).map(|_| {
            let tokens = random.f64() * 30_000.0;
            (tokens, (0.2 + tokens / 40_000.0) * (0.9 + 0.2 * random.f64()))
        }));
        assert!((line.base - 0.2).abs() < 0.05, "{line:?}");
        assert!((line.per_token * 40_000.0 - 1.0).abs() < 0.1, "{line:?}");
    }

    #[test]
    fn one_outlier_has_a_bounded_effect_and_a_slowdown_is_learned() {
        let steady = (0..100).map(|n| (f64::from(n) * 100.0, 0.05 + f64::from(n) * 0.01));
        let before = fitted_to(steady.clone());
        let after = fitted_to(steady.clone().chain([(5_000.0, 600.0)]));
        assert!(after.seconds(5_000.0) < 1.5 * before.seconds(5_000.0), "{before:?} {after:?}");
        let slow = (0..100).map(|n| (f64::from(n) * 100.0, 0.5 + f64::from(n) * 0.1));
        let slowed = fitted_to(steady.chain(slow));
        assert!(slowed.seconds(5_000.0) > 4.0, "{slowed:?}");
    }

    #[test]
    fn equal_prompts_are_predicted_correctly() {
        let line = fitted_to((0..100).map(|_| (1_000.0, 0.3)));
        assert!((line.seconds(1_000.0) - 0.3).abs() < 0.03, "{line:?}");
    }

    #[test]
    fn one_observation_predicts_the_same_time_as_many() {
        for seconds in [0.005, 0.06, 0.2] {
            let [once, often] = [1, 100].map(|count| fitted_to(vec![(100.0, seconds); count]));
            let [once, often] = [once, often].map(|line| line.seconds(100.0));
            assert!((once / often - 1.0).abs() < 0.02, "{once} {often}");
        }
    }

    proptest! {
        #[test]
        fn the_fitted_line_is_always_finite_and_never_falls(
            observations in proptest::collection::vec((-1e9..1e12_f64, -1e3..1e9_f64), 0..50),
        ) {
            let line = fitted_to(observations);
            prop_assert!(line.base.is_finite() && line.base >= 0.0);
            prop_assert!(line.per_token.is_finite() && line.per_token > 0.0);
        }
    }
}
