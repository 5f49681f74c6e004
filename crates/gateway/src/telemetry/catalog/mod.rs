//! The catalogue of all metrics of the gateway: name, help text, kind and labels of each metric,
//! and how its values are read.
//!
//! `tokenweir generate metrics-reference` prints the metrics reference from the catalogue. A counter
//! whose label values are all known at the start has series with the value 0 from the start. The exception
//! is a counter with the label `backend` and a further label.

mod backends;
mod connections;
mod engines;
mod exporters;
mod lifecycle;
mod objectives;
mod quality;
mod requests;
mod resilience;
mod routing;
mod streams;
mod tenants;

use super::metric::MetricDescriptor;

/// Returns the rows of all metrics of the gateway, in the order of the metrics reference. The
/// metrics page lists the metrics in another order: by name.
pub fn rows() -> impl Iterator<Item = &'static MetricDescriptor> {
    [
        streams::ROWS,
        requests::ROWS,
        quality::ROWS,
        tenants::ROWS,
        objectives::ROWS,
        backends::ROWS,
        engines::ROWS,
        engines::GPU_ROWS,
        exporters::ROWS,
        resilience::ROWS,
        routing::ROWS,
        connections::ROWS,
        lifecycle::ROWS,
    ]
    .into_iter()
    .flatten()
}
