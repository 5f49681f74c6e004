//! The composition root: builds the gateway from the configuration, runs it and reloads it.
//!
//! `application` builds each part once, in order. Every part is built beside its type: settings by
//! `config`, the listeners by `server`, the sinks by `telemetry_pipeline`.

mod access;
pub(crate) mod application;
pub(crate) mod banner;
mod diagnosis_task;
pub(crate) mod discovery_sources;
pub(crate) mod error;
mod keys_file;
pub(crate) mod process;
mod reload;
mod telemetry_pipeline;
