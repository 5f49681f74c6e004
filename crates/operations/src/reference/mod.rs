//! Generates the references of the configuration and of the metrics, from the configuration types
//! and the catalogue of metrics.

pub(super) mod configuration;
pub(super) mod metrics;

/// A text on one line, as an entry of a Markdown list needs it.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
