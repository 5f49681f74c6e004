//! Constants and functions that several estimates share.

use tokenweir_protocol::atomic::AtomicF64;

/// Weight of one observation in a moving average.
pub(super) const EMA_WEIGHT: f64 = 0.05;
/// Maximum plausible number of tokens or requests from a metrics page, from KV events or from another gateway.
pub(super) const MAX_COUNT: f64 = 1e9;
/// Factor by which the predicted time of a single request is often wrong.
pub(super) const PREDICTION_ERROR: f64 = 2.0;

/// The value, or 0 if it is negative or NaN. [`f64::max`] returns the same, but takes five instructions.
#[inline]
pub(super) fn at_least_0(value: f64) -> f64 {
    if value > 0.0 { value } else { 0.0 }
}

/// The lesser of two numbers, of which `other` must not be NaN. Takes fewer instructions than [`f64::min`].
#[inline]
pub(super) fn at_most(value: f64, other: f64) -> f64 {
    if value < other { value } else { other }
}

/// A number with relaxed atomic access, or no number.
#[derive(Debug)]
pub(super) struct OptionalF64(AtomicF64);

impl Default for OptionalF64 {
    fn default() -> Self {
        Self(AtomicF64::new(f64::NAN))
    }
}

impl OptionalF64 {
    #[inline]
    pub(super) fn get(&self) -> Option<f64> {
        Some(self.0.get()).filter(|number| !number.is_nan())
    }

    pub(super) fn set(&self, number: Option<f64>) {
        self.0.set(number.unwrap_or(f64::NAN));
    }

    /// Updates a moving average. If there is no number yet, the observation becomes the average.
    pub(super) fn average_in(&self, observation: f64) {
        self.0.average_in(observation, EMA_WEIGHT);
    }
}
