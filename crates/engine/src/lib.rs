//! The knowledge of the gateway about inference engines: their addresses, metrics pages, models, GPUs and
//! roles. No module does I/O.

pub mod address;
pub mod dialect;
pub mod engine_metrics;
pub mod model;
pub mod role;
