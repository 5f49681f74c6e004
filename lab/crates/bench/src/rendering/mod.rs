//! Renders a benchmark report as text and as HTML.

mod plot;
mod text_report;

mod html_report;

use crate::report::BenchReport;
pub(crate) use text_report::millis;

impl BenchReport {
    /// Renders the report as text for a terminal.
    pub fn text(&self) -> String {
        text_report::text(self)
    }

    /// Renders the report as an HTML page that needs no other files.
    pub fn html(&self) -> String {
        html_report::render_html(self)
    }
}
