//! The table of alerts: conditions, texts, runbooks and inhibitions. Alert rules, runbooks and the
//! configuration of Alertmanager are generated from it.
//!
//! An alert requires harm to clients: a full cache alone is a cache that is well used. Each alert
//! has a minimum amount of traffic, so that a few requests never cause a page.

mod alert;

mod backends;
mod capacity;
mod gateway;
mod latency;
mod quality;
mod slo;

pub use alert::{Alert, AlertInhibition, AlertSeverity};

/// All alerts, the most urgent areas first.
pub fn all() -> Vec<Alert> {
    [
        slo::alerts(),
        backends::alerts(),
        capacity::alerts(),
        latency::alerts(),
        quality::alerts(),
        gateway::alerts(),
    ]
    .concat()
}
