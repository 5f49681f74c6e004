//! The catalogue of every exported metric: name, help text, kind, labels and how to read its
//! values.
//!
//! `tokenweir generate metrics-reference` prints the metrics reference from this list. Every series
//! whose label values all come from closed sets exists from the start, with the value 0.

mod backends;
mod connections;
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

/// All metrics of the gateway, in the order of the metrics page.
pub fn rows() -> impl Iterator<Item = &'static MetricDescriptor> {
    [
        streams::ROWS,
        requests::ROWS,
        quality::ROWS,
        tenants::ROWS,
        objectives::ROWS,
        backends::ROWS,
        exporters::ROWS,
        resilience::ROWS,
        routing::ROWS,
        connections::ROWS,
        lifecycle::ROWS,
    ]
    .into_iter()
    .flatten()
}
