//! The sections about responses: streams, stalls, slow requests and model refusals.

pub(in crate::config) mod refusal_detection;
pub(in crate::config) mod slow;
pub(in crate::config) mod stalls;
pub(in crate::config) mod streams;
