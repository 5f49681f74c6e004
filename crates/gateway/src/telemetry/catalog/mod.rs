//! The catalogue of the core's metrics: name, help text, kind and labels of each metric, and how its values are
//! read. The rows of an option are in the option's folder.
//!
//! `tokenweir generate metrics` prints the catalogue, of which the metrics reference is made. A counter whose
//! label values are all known at the start has series with the value 0 from the start. The exception is a
//! counter with the label `backend` and a further label.

mod backends;
mod connections;
mod engines;
mod exporters;
mod lifecycle;
mod objectives;
mod requests;
mod resilience;
mod routing;
mod streams;
mod tenants;

use crate::metric::MetricDescriptor;

/// Returns the rows of the core's metrics, in the order of the metrics reference. The metrics page sorts
/// metrics by name instead.
pub fn rows() -> impl Iterator<Item = &'static MetricDescriptor> {
    [
        streams::ROWS,
        requests::ROWS,
        tenants::ROWS,
        objectives::ROWS,
        backends::ROWS,
        engines::ROWS,
        exporters::ROWS,
        resilience::ROWS,
        routing::ROWS,
        connections::ROWS,
        lifecycle::ROWS,
    ]
    .into_iter()
    .flatten()
}
