//! The sections about reports of the gateway: objectives, metrics, logs and traces.

pub(in crate::config) mod log;
pub(in crate::config) mod metrics;
pub(in crate::config) mod slos;
pub(in crate::config) mod timeline;
pub(in crate::config) mod tracing;
