//! The dashboard rows about the diagnosis over time: verdicts, rules that cannot be evaluated, anomalies, and their
//! delivery to Alertmanagers.

use crate::catalogue::MetricCatalogue;
use crate::dashboards::grid::DashboardRow;
use crate::dashboards::panel::{Panel, Thresholds};
use crate::dashboards::query::{filtered_metric, gauge_by};

const DIAGNOSIS_METRIC: &str = "tokenweir_diagnosis_active";

pub(super) fn row(metrics: &MetricCatalogue) -> DashboardRow {
    DashboardRow {
        title: "Diagnosis",
        panels: [finding_panels(metrics), alert_panels(metrics)].concat(),
    }
}

/// The panels of verdicts, undetermined rules and anomalies.
fn finding_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    let verdicts = gauge_by(metrics, "backend, verdict", DIAGNOSIS_METRIC);
    vec![
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
        Panel::lines(
            "Anomalies",
            "none",
            "Number of backends at which a measure is far from its usual value of the last \
             hour. Good: 0. `tokenweir diagnose` names the backends.",
        )
        .with_gauge_by(metrics, "measure", "tokenweir_anomalies")
        .with_width(16),
    ]
}

/// The panels of alerts, and of their delivery to Alertmanagers.
fn alert_panels(metrics: &MetricCatalogue) -> Vec<Panel> {
    vec![
        Panel::lines(
            "Age of notifications",
            "s",
            "Longest time since one of the configured `alertmanagers` accepted a request. \
             Good: up to one minute. After 5 minutes, alerts of the gateway end there. Empty: \
             none is configured.",
        )
        .with_query(
            format!(
                "max by (instance) ({} >= 0)",
                filtered_metric(metrics, "tokenweir_alertmanager_age_seconds", "")
            ),
            "{{instance}}",
        )
        .with_thresholds(Thresholds::Above(120.0, 300.0)),
        Panel::states(
            "Alerts",
            "A bar for each alert of tokenweir while it is pending or fires. Good: an empty \
             panel. The runbook of an alert has its meaning and the remedy.",
        )
        .with_query(
            "ALERTS{alertname=~\"Tokenweir.+\"}",
            "{{alertname}} {{alertstate}} {{backend}} {{gen_ai_request_model}} {{slo}}",
        )
        .with_width(24)
        .with_height(6),
    ]
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
