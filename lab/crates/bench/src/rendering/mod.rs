//! Renders a benchmark report as text and as HTML.

mod plot;
mod text_report;

mod html_report;

pub(crate) use text_report::millis;
