//! The background task of the diagnosis, and the log lines about its results.

mod cpu_supply;
mod reload_changes;
pub(super) mod rows;
mod settings;
mod stall_log;
mod task;
mod timeline;
mod verdict_log;

pub(super) use task::DiagnosisTask;
