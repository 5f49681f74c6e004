//! The sections of optional parts, one file for each: values, rules, reload class, secrets, files and conversion. A
//! part whose key is inside a section of the core has its section called from there.

pub(super) mod discovery;
pub(super) mod gpu;
pub(super) mod kv_events;
pub(super) mod peer_exchange;
pub(super) mod resume;
pub(super) mod sessions;
pub(super) mod sleep;
pub(super) mod telemetry;
pub(super) mod webhooks;
