//! Generates the references of the configuration and of the metrics, from the configuration types
//! and the catalogue of metrics.

mod configuration;
mod metrics;

pub(super) use configuration::print as configuration;
pub(super) use metrics::print as metrics;

/// A text as a cell of a Markdown table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
