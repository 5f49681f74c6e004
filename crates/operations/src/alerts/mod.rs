//! The table of alerts: conditions, texts, runbooks and inhibitions. Alert rules, runbooks and the
//! configuration of Alertmanager are generated from it.
//!
//! The condition of an alert about load requires an effect on requests. For example, a full KV
//! cache alone is no reason for an alert, because a full cache is well used. Alerts about shares
//! and quantiles of requests require a minimum number of requests, so that a few requests cause no
//! alert.

mod alert;

mod backends;
mod capacity;
mod diagnosis;
mod gateway;
mod gpus;
mod latency;
mod quality;
mod slo;

pub use alert::{Alert, AlertInhibition, AlertSeverity};

/// All alerts. The most urgent areas come first.
pub fn all() -> Vec<Alert> {
    [
        slo::alerts(),
        backends::alerts(),
        capacity::alerts(),
        gpus::alerts(),
        diagnosis::alerts(),
        latency::alerts(),
        quality::alerts(),
        gateway::alerts(),
    ]
    .concat()
}
