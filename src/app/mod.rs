//! The composition root: builds the gateway from the configuration, runs it and reloads it.
//!
//! `application` assembles the parts in order. `config` converts itself into settings, `listeners` binds the
//! listeners, `telemetry_pipeline` starts the sinks, and `options` starts the options.

pub(crate) mod application;
pub(crate) mod banner;
pub mod check;
mod diagnosis;
pub(crate) mod discovery_sources;
mod exposure;
mod keys_file;
mod listeners;
pub mod metrics;
pub mod options;
pub(crate) mod process;
mod reload;
mod secret_files;
mod telemetry_pipeline;
