//! Generates the references of the configuration and of the metrics, from the configuration types
//! and the catalogue of metrics.

pub(super) mod configuration;
pub(super) mod metrics;

/// Formats a text as a cell of a Markdown table: on one line, with escaped `|`.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
