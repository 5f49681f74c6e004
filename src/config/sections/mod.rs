//! The sections of the core, one file for each: values, rules, reload class and conversion.

pub(super) mod clients;
pub(super) mod process;
pub(super) mod responses;
pub(super) mod telemetry;
pub(super) mod upstream;
