//! The prefill cost of an engine, learned as one ratio.
//!
//! ```text
//! seconds to first output = ratio × (50 ms + tokens to compute × 0.1 ms)
//! ```
//!
//! The tokens are the uncached prompt tokens of the request plus the backlog before it. Everything else that
//! slows the backend down, such as concurrent decoding or a full KV cache, raises the ratio. So a backend that
//! reports no load although it is busy has a high cost. A line with two learned parts follows single requests:
//! it loses 1.0 percentage points of goodput (`docs/decisions/0014-routing-cost.md`).

use super::limits::{EMA_WEIGHT, PREDICTION_ERROR};
use serde::Serialize;

/// The cost of prefill in seconds, as a linear function of the number of tokens that the engine has to compute.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PrefillCost {
    /// Seconds to a first output without tokens to compute.
    pub base: f64,
    /// Seconds per token to compute.
    pub per_token: f64,
}

/// Bounds of the learned ratio.
const RATIO_RANGE: std::ops::RangeInclusive<f64> = 1e-4..=1e4;

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
    pub(crate) fn at_ratio(ratio: f64) -> Self {
        let default = Self::default();
        Self {
            base: default.base * ratio,
            per_token: default.per_token * ratio,
        }
    }

    pub(crate) fn ratio(&self) -> f64 {
        self.per_token / Self::default().per_token
    }

    /// Predicted seconds to a first output with `tokens` tokens to compute.
    pub fn seconds(&self, tokens: f64) -> f64 {
        self.base + tokens * self.per_token
    }
}

/// The learned ratio after a first output with `tokens` tokens to compute came after `seconds`. `freshness`:
/// weight of the present ratio, from 0 to 1. 0: no output has been observed yet.
///
/// An old ratio gives way to the observation. A fresh one changes by at most 5 %, so that one outlier does not
/// exclude a backend from traffic. A sustained slowdown is still learned.
pub(super) fn learned_ratio(ratio: f64, tokens: f64, seconds: f64, freshness: f64) -> f64 {
    let mut error = seconds / PrefillCost::at_ratio(ratio).seconds(tokens);
    if freshness > 0.0 {
        error = error.min(PREDICTION_ERROR);
    }
    let weight = EMA_WEIGHT.max(1.0 - freshness);
    let ratio = ratio * (1.0 + weight * (error - 1.0));
    ratio.clamp(*RATIO_RANGE.start(), *RATIO_RANGE.end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn learned(observations: impl IntoIterator<Item = (f64, f64)>) -> PrefillCost {
        let mut ratio = 1.0;
        for (number, (tokens, seconds)) in observations.into_iter().enumerate() {
            let freshness = if number == 0 { 0.0 } else { 1.0 };
            ratio = learned_ratio(ratio, tokens, seconds, freshness);
        }
        PrefillCost::at_ratio(ratio)
    }

    #[test]
    fn the_prefill_speed_of_a_backend_is_learned() {
        let mut random = fastrand::Rng::with_seed(1);
        let cost = learned((0..200).map(|_| {
            let tokens = random.f64() * 30_000.0;
            let seconds = (0.2 + tokens / 2_500.0) * (0.9 + 0.2 * random.f64());
            (tokens, seconds)
        }));
        assert!((cost.base - 0.2).abs() < 0.02, "{cost:?}");
        assert!((cost.per_token * 2_500.0 - 1.0).abs() < 0.1, "{cost:?}");
    }

    #[test]
    fn outliers_are_bounded_and_slowdowns_are_learned() {
        let steady = (0..100).map(|n| (f64::from(n) * 100.0, 0.05 + f64::from(n) * 0.01));
        let before = learned(steady.clone());
        let after = learned(steady.clone().chain([(5_000.0, 600.0)]));
        assert!(after.seconds(5_000.0) < 1.06 * before.seconds(5_000.0));
        let slow = (0..100).map(|n| (f64::from(n) * 100.0, 0.5 + f64::from(n) * 0.1));
        let slowed = learned(steady.chain(slow));
        assert!(slowed.seconds(5_000.0) > 4.0, "{slowed:?}");
    }

    #[test]
    fn one_observation_predicts_equal_ones() {
        for seconds in [0.005, 0.06, 0.2] {
            let cost = learned(vec![(100.0, seconds); 1]);
            assert!((cost.seconds(100.0) / seconds - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn a_new_ratio_replaces_an_old_one() {
        let after = learned_ratio(8.0, 0.0, 0.05, 0.1);
        assert!((1.0..2.0).contains(&after), "{after}");
        let after = learned_ratio(1.0, 0.0, 30.0, 0.1);
        assert!((1.5..2.0).contains(&after), "not by an outlier: {after}");
    }

    proptest! {
        #[test]
        fn the_cost_is_finite_and_positive(
            observations in proptest::collection::vec((0.0..1e300_f64, 0.0..1e300_f64), 0..50),
        ) {
            let cost = learned(observations);
            prop_assert!(cost.base.is_finite() && cost.base > 0.0);
            prop_assert!(cost.per_token.is_finite() && cost.per_token > 0.0);
        }
    }
}
