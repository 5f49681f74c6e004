//! Rule files for Prometheus: recorded series, and alerts.

use super::alerts::{self, Alert};
use super::recording;
use super::yaml;
use serde::Serialize;

#[derive(Serialize)]
struct File<T> {
    groups: Vec<T>,
}

#[derive(Serialize)]
struct AlertGroup<'a> {
    name: String,
    interval: &'a str,
    rules: Vec<Rule<'a>>,
}

#[derive(Serialize)]
struct Rule<'a> {
    alert: &'a str,
    expr: &'a str,
    r#for: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_firing_for: Option<&'a str>,
    labels: Labels<'a>,
    annotations: Annotations<'a>,
}

#[derive(Serialize)]
struct Labels<'a> {
    severity: &'a str,
    area: &'a str,
}

#[derive(Serialize)]
struct Annotations<'a> {
    summary: &'a str,
    description: &'a str,
    runbook_url: String,
}

/// The recorded series.
pub(super) fn recording_rules() -> yaml::Result {
    yaml::print("recording-rules", &File { groups: recording::groups() })
}

/// The alerts, a group for each area. `runbooks` is where the page of runbooks is served.
pub(super) fn alert_rules(runbooks: &str) -> yaml::Result {
    let alerts = alerts::all();
    let groups = alerts.chunk_by(|one, next| one.area == next.area).map(|alerts| AlertGroup {
        name: format!("tokenweir-{}", alerts.first().map_or("", |alert| alert.area)),
        interval: "15s",
        rules: alerts.iter().map(|alert| rule(alert, runbooks)).collect(),
    });
    yaml::print("alert-rules", &File { groups: groups.collect() })
}

fn rule<'a>(alert: &'a Alert, runbooks: &str) -> Rule<'a> {
    Rule {
        alert: alert.name,
        expr: &alert.expr,
        r#for: alert.holds_for,
        keep_firing_for: alert.stays_for,
        labels: Labels { severity: alert.severity.as_str(), area: alert.area },
        annotations: Annotations {
            summary: alert.summary,
            description: alert.description,
            runbook_url: format!("{runbooks}#{}", alert.anchor()),
        },
    }
}
