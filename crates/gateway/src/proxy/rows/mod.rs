//! The status and the metrics that options of the request path add.

pub mod continuation;
pub mod prefill_leg;
pub mod resume;
