//! The sections about responses: streams, stalls, slow requests and model refusals.

pub(crate) mod refusal_detection;
pub(crate) mod slow;
pub(crate) mod stalls;
pub(crate) mod streams;
