//! Generates the references of the configuration and of the metrics, from the configuration types
//! and the catalogue of metrics.

mod markdown;

mod configuration;
mod metrics;

pub(super) use configuration::print as configuration;
pub(super) use metrics::print as metrics;
