//! How long a replica takes to a first output, learned from those that it gave: a line through
//! the work that stood before each, by least squares that forget.
//!
//! ```text
//! seconds to first output = base + tokens to compute × seconds per token
//! ```
//!
//! The tokens are those of the request that are not cached and all that waited before them. What
//! else slows the replica down, such as decoding beside it or a cache that is full, comes out as
//! a higher price of a token: a replica that says it is idle and is not is found out by this.

use serde::Serialize;

/// The line.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Prefill {
    /// Seconds that it takes even without work.
    pub base: f64,
    /// Seconds for each token.
    pub per_token: f64,
}

/// The line, and the weighted sums that it is drawn from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Learner {
    line: Prefill,
    weight: f64,
    tokens: f64,
    seconds: f64,
    tokens_squared: f64,
    tokens_seconds: f64,
}

impl Default for Prefill {
    /// 10,000 tokens a second after 50 ms: a middling GPU. It only matters until the first answers.
    fn default() -> Self {
        Self { base: 0.05, per_token: 1e-4 }
    }
}

impl Prefill {
    /// Seconds to a first output behind this many tokens.
    pub fn seconds(&self, tokens: f64) -> f64 {
        self.base + tokens * self.per_token
    }

    /// A line of the same shape through this point.
    fn through(&self, tokens: f64, seconds: f64) -> Self {
        let factor = seconds / self.seconds(tokens);
        let per_token = (self.per_token * factor).clamp(*PER_TOKEN.start(), *PER_TOKEN.end());
        Self { base: self.base * factor, per_token }
    }
}

/// What an observation weighs after the next one: about the last fifty count.
const MEMORY: f64 = 0.98;
/// An observation counts as at most this many times what was expected, so that one accident does
/// not make a replica an outcast. If it was no accident, the next ones go on from there.
const MOST_SURPRISE: f64 = 4.0;
/// Tokens at which the line so far is held fast, so that equal prompts do not let it turn.
const ANCHOR: f64 = 20_000.0;
/// Fastest and slowest that a token can be, in seconds.
const PER_TOKEN: std::ops::RangeInclusive<f64> = 1e-8..=1.0;

impl Default for Learner {
    fn default() -> Self {
        Self {
            line: Prefill::default(),
            weight: 0.0,
            tokens: 0.0,
            seconds: 0.0,
            tokens_squared: 0.0,
            tokens_seconds: 0.0,
        }
    }
}

impl Learner {
    /// A first output came `seconds` after its request, before which `tokens` had to be computed.
    pub(super) fn on_first_output(&mut self, tokens: f64, seconds: f64) -> Prefill {
        let tokens = tokens.max(0.0);
        let seconds = seconds.clamp(0.0, MOST_SURPRISE * self.line.seconds(tokens));
        if self.weight == 0.0 {
            self.line = self.line.through(tokens, seconds);
        }
        for sum in [
            &mut self.weight,
            &mut self.tokens,
            &mut self.seconds,
            &mut self.tokens_squared,
            &mut self.tokens_seconds,
        ] {
            *sum *= MEMORY;
        }
        self.add(1.0, tokens, seconds);
        self.line = self.fit();
        self.line
    }

    fn add(&mut self, weight: f64, tokens: f64, seconds: f64) {
        self.weight += weight;
        self.tokens += weight * tokens;
        self.seconds += weight * seconds;
        self.tokens_squared += weight * tokens * tokens;
        self.tokens_seconds += weight * tokens * seconds;
    }

    /// The line through what is remembered, and through two points of the line so far.
    fn fit(&self) -> Prefill {
        let mut sums = *self;
        sums.add(0.5, 0.0, self.line.seconds(0.0));
        sums.add(0.5, ANCHOR, self.line.seconds(ANCHOR));
        let mean_tokens = sums.tokens / sums.weight;
        let mean_seconds = sums.seconds / sums.weight;
        let variance = sums.tokens_squared / sums.weight - mean_tokens * mean_tokens;
        let covariance = sums.tokens_seconds / sums.weight - mean_tokens * mean_seconds;
        // Through the mean from a base of zero: no steeper line has a base that can be.
        let steepest = mean_seconds / mean_tokens;
        let per_token =
            (covariance / variance).min(steepest).clamp(*PER_TOKEN.start(), *PER_TOKEN.end());
        Prefill { base: (mean_seconds - per_token * mean_tokens).max(0.0), per_token }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn taught(observations: impl IntoIterator<Item = (f64, f64)>) -> Prefill {
        let mut learner = Learner::default();
        observations.into_iter().fold(Prefill::default(), |_, (tokens, seconds)| {
            learner.on_first_output(tokens, seconds)
        })
    }

    #[test]
    fn the_speed_and_the_base_of_a_replica_are_found() {
        let mut random = fastrand::Rng::with_seed(1);
        let line = taught((0..200).map(|_| {
            let tokens = random.f64() * 30_000.0;
            (tokens, (0.2 + tokens / 40_000.0) * (0.9 + 0.2 * random.f64()))
        }));
        assert!((line.base - 0.2).abs() < 0.05, "{line:?}");
        assert!((line.per_token * 40_000.0 - 1.0).abs() < 0.1, "{line:?}");
    }

    #[test]
    fn one_accident_does_not_make_an_outcast_but_a_replica_that_slows_down_is_found_out() {
        let steady = (0..100).map(|n| (f64::from(n) * 100.0, 0.05 + f64::from(n) * 0.01));
        let before = taught(steady.clone());
        let after = taught(steady.clone().chain([(5_000.0, 600.0)]));
        assert!(after.seconds(5_000.0) < 1.5 * before.seconds(5_000.0), "{before:?} {after:?}");
        let slow = (0..100).map(|n| (f64::from(n) * 100.0, 0.5 + f64::from(n) * 0.1));
        let slowed = taught(steady.chain(slow));
        assert!(slowed.seconds(5_000.0) > 4.0, "{slowed:?}");
    }

    #[test]
    fn equal_prompts_give_the_right_time_for_themselves() {
        let line = taught((0..100).map(|_| (1_000.0, 0.3)));
        assert!((line.seconds(1_000.0) - 0.3).abs() < 0.03, "{line:?}");
    }

    #[test]
    fn a_replica_that_has_answered_once_looks_as_fast_as_one_that_has_answered_often() {
        for seconds in [0.005, 0.06, 0.2] {
            let [once, often] = [1, 100].map(|count| taught(vec![(100.0, seconds); count]));
            let [once, often] = [once, often].map(|line| line.seconds(100.0));
            assert!((once / often - 1.0).abs() < 0.02, "{once} {often}");
        }
    }

    proptest! {
        #[test]
        fn a_line_is_always_finite_and_never_falls(
            observations in proptest::collection::vec((-1e9..1e12_f64, -1e3..1e9_f64), 0..50),
        ) {
            let line = taught(observations);
            prop_assert!(line.base.is_finite() && line.base >= 0.0);
            prop_assert!(line.per_token.is_finite() && line.per_token > 0.0);
        }
    }
}
