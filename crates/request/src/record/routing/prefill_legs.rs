//! The prefill legs of a request.

use super::attempt::Attempt;
use std::time::Duration;
use tokenweir_engine::prefill_leg::PrefillSkip;

/// The prefill legs of a request to backends that serve decode legs.
#[derive(Debug, Clone, Default)]
pub struct PrefillLegs {
    /// The legs, in order.
    pub sent: Vec<Attempt>,
    /// Predicted seconds to the first output with the last leg that was considered, and without it.
    pub predicted: Option<[f64; 2]>,
    /// Why the last attempt had no prefill leg. `None`: the last attempt had a prefill leg.
    pub skipped: Option<PrefillSkip>,
    /// Whether the backend of the last attempt got the parameters of a leg.
    pub is_used: bool,
}

impl PrefillLegs {
    /// Time of all legs that ended.
    pub fn took(&self) -> Duration {
        let took = |leg: &Attempt| leg.ended?.checked_duration_since(leg.started);
        self.sent.iter().filter_map(took).sum()
    }
}
