//! The reference of what can be configured and of what is measured, as pages: printed from the
//! types and from the catalogue, so that they are true.

mod configuration;
mod metrics;

pub(super) use configuration::print as configuration;
pub(super) use metrics::print as metrics;

/// A text as a cell of a Markdown table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
