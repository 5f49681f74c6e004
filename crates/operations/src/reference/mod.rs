//! Generates the reference pages of the configuration and of the metrics, from the JSON Schema of the
//! configuration and from the catalogue of metrics.

pub(super) mod configuration;
pub(super) mod metrics;

/// Joins the lines of a text into one line, for an entry of a Markdown list.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
