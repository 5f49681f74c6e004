//! The table of alerts: conditions, texts, runbooks and inhibitions. Alert rules, runbooks and the
//! configuration of Alertmanager are generated from it.
//!
//! If a fault has a verdict, its alert reads the metric of the verdict, and no second threshold is defined
//! here. The other alerts are about objectives, models, the gateway process, and changes over hours, which
//! only Prometheus sees. Alerts about shares and quantiles of requests require a minimum number of requests,
//! so that a few requests cause no alert.

mod alert;

mod backends;
mod capacity;
mod diagnosis;
mod gateway;
mod inhibitions;
mod latency;
mod quality;
mod slo;

pub use alert::{Alert, AlertSeverity, Runbook};
pub use inhibitions::{AlertInhibition, INHIBITIONS};

/// The subject areas and their alerts, the most urgent area first. Alertmanager groups the alerts of one
/// area into one notification.
pub(crate) fn by_area() -> [(&'static str, Vec<Alert>); 7] {
    [
        ("slo", slo::alerts()),
        ("diagnosis", diagnosis::alerts()),
        ("latency", latency::alerts()),
        ("capacity", capacity::alerts()),
        ("gateway", gateway::alerts()),
        ("backends", backends::alerts()),
        ("quality", quality::alerts()),
    ]
}

/// All alerts. The most urgent areas come first.
pub fn all() -> Vec<Alert> {
    by_area().map(|(_, alerts)| alerts).concat()
}
