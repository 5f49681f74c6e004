//! The dashboard rows about the diagnosis: verdicts, and rules that cannot be evaluated, over time.

use crate::catalogue::MetricCatalogue;
use crate::dashboards::grid::DashboardRow;
use crate::dashboards::panel::Panel;
use crate::dashboards::query::gauge_by;

const DIAGNOSIS_METRIC: &str = "tokenweir_diagnosis_active";

pub(super) fn row(metrics: &MetricCatalogue) -> DashboardRow {
    let verdicts = gauge_by(metrics, "backend, verdict", DIAGNOSIS_METRIC);
    DashboardRow {
        title: "Diagnosis",
        panels: vec![
            Panel::states(
                "Verdicts",
                "A bar for each verdict, from its begin to its end. Good: an empty panel, if no \
                 rule is undetermined. `tokenweir diagnose` shows the evidence and the remedy.",
            )
            .with_query(format!("{verdicts} == 1"), "{{backend}} {{verdict}}")
            .with_width(16),
            Panel::lines(
                "Undetermined rules",
                "none",
                "Number of rules per backend that cannot be determined. A few always lack data, \
                 where a backend does not report all metrics; many do in the first minutes of a \
                 gateway.",
            )
            .with_query(
                format!(
                    "count by (backend) (\n  \
                           {verdicts}\n  \
                           unless {verdicts} >= 0\n\
                           )"
                ),
                "{{backend}}",
            ),
        ],
    }
}

/// The row for the dashboard of one backend: the state of each diagnosis rule over time.
pub(in crate::dashboards) fn build_backend_row(metrics: &MetricCatalogue) -> DashboardRow {
    DashboardRow {
        title: "Diagnosis",
        panels: vec![
            Panel::states(
                "Verdicts",
                "All rules for this backend. Good: no bar shows `found`; rules without data are \
                 `undetermined`. `tokenweir diagnose` shows the evidence and the remedy.",
            )
            .with_query(gauge_by(metrics, "verdict", DIAGNOSIS_METRIC), "{{verdict}}")
            .with_width(24)
            .with_height(12),
        ],
    }
}
