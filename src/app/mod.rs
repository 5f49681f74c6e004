//! The composition root: builds the gateway from the configuration, runs it and reloads it.

pub mod application;
pub(crate) mod banner;
pub(crate) mod builders;
pub(crate) mod collectors;
mod descriptor_budget;
mod diagnosis_task;
pub(crate) mod discovery_sources;
mod keys_file;
pub(crate) mod listeners;
pub(crate) mod logging;
mod memory_limit;
pub(crate) mod process;
mod reload;
mod shared_state;
pub(crate) mod signals;
mod systemd;
mod telemetry_pipeline;
