//! The sections of options, one file for each: values, rules, reload class, secrets, files and conversion. A
//! part whose key is inside a section of the core has its section called from there.

pub(super) mod discovery;
pub(super) mod sessions;
pub(super) mod telemetry;
pub(super) mod webhooks;
