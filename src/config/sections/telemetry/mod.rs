//! The sections about reports of the gateway: objectives, metrics, logs and traces.

pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod slos;
pub(crate) mod timeline;
pub(crate) mod tracing;
