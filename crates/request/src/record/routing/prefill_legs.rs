//! The prefill legs of a request: the requests that let another backend compute its prompt.

use super::attempt::Attempt;
use tokenweir_engine::prefill_leg::PrefillSkip;

/// The prefill legs of a request. A record has them only if an attempt went to a backend that serves decode
/// legs.
#[derive(Debug, Clone, Default)]
pub struct PrefillLegs {
    /// The prefill legs that were sent, in order.
    pub sent: Vec<Attempt>,
    /// The prediction for the last prefill leg that was considered. `None`: nothing was predicted.
    pub predicted: Option<PredictedTtfts>,
    /// Why the last attempt had no prefill leg. `None`: the last attempt had a prefill leg.
    pub skipped: Option<PrefillSkip>,
    /// Whether the backend of the last attempt got the KV transfer parameters of a prefill leg, so another
    /// backend computed the prompt.
    pub is_used: bool,
}

/// Predicted seconds to the first output of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictedTtfts {
    /// With the prefill leg.
    pub with_leg: f64,
    /// Without it.
    pub alone: f64,
}
