//! How many tokens contexts grow by, learned from the turns so far.

/// How many tokens a context grows by after its first turn, as a mean of all later turns.
#[derive(Debug)]
pub(super) struct Growth {
    /// The sum of the observed growths, each with its weight. The weights of all have the sum 1 − `doubt`.
    pub(super) observed: f64,
    /// The weight of the assumption that a context doubles.
    pub(super) doubt: f64,
}

/// Weight of one turn in the mean growth.
const WEIGHT: f64 = 0.05;

impl Default for Growth {
    fn default() -> Self {
        Self {
            observed: 0.0,
            doubt: 1.0,
        }
    }
}

impl Growth {
    /// A context has grown by this number of tokens since its first turn. 0: it had no further turn.
    pub(super) fn learn(&mut self, growth: f64) {
        self.observed += WEIGHT * (growth.max(0.0) - self.observed);
        self.doubt *= 1.0 - WEIGHT;
    }

    /// The expected size of a context that had `tokens` tokens at its first turn.
    pub(super) fn grown(&self, tokens: f64) -> f64 {
        tokens + self.doubt * tokens + self.observed
    }
}
