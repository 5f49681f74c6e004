//! Generates the rule files of Prometheus: recording rules and alert rules.

use super::alerts::{self, Alert};
use super::recording_rules;
use super::yaml;
use serde::Serialize;

#[derive(Serialize)]
struct RuleFile<T> {
    groups: Vec<T>,
}

#[derive(Serialize)]
struct AlertRuleGroup<'a> {
    name: String,
    interval: &'a str,
    rules: Vec<AlertRule<'a>>,
}

#[derive(Serialize)]
struct AlertRule<'a> {
    alert: &'a str,
    expr: &'a str,
    r#for: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_firing_for: Option<&'a str>,
    labels: AlertLabels<'a>,
    annotations: AlertAnnotations<'a>,
}

#[derive(Serialize)]
struct AlertLabels<'a> {
    severity: &'a str,
    area: &'a str,
}

#[derive(Serialize)]
struct AlertAnnotations<'a> {
    summary: &'a str,
    description: &'a str,
    runbook_url: String,
}

/// Generates the file of recording rules.
pub(super) fn render_recording_rules() -> yaml::RenderResult {
    yaml::print("recording-rules", &RuleFile { groups: recording_rules::groups() })
}

/// Generates the file of alert rules, with one group for each area. `runbooks` is the URL of the
/// page of runbooks.
pub(super) fn render_alert_rules(runbooks: &str) -> yaml::RenderResult {
    let alerts = alerts::all();
    let groups =
        alerts.chunk_by(|alert, next| alert.area == next.area).map(|alerts| AlertRuleGroup {
            name: format!("tokenweir-{}", alerts.first().map_or("", |alert| alert.area)),
            interval: "15s",
            rules: alerts.iter().map(|alert| alert_rule(alert, runbooks)).collect(),
        });
    yaml::print("alert-rules", &RuleFile { groups: groups.collect() })
}

fn alert_rule<'a>(alert: &'a Alert, runbooks: &str) -> AlertRule<'a> {
    AlertRule {
        alert: alert.name,
        expr: &alert.expr,
        r#for: alert.holds_for,
        keep_firing_for: alert.stays_for,
        labels: AlertLabels { severity: alert.severity.as_str(), area: alert.area },
        annotations: AlertAnnotations {
            summary: alert.summary,
            description: alert.description,
            runbook_url: format!("{runbooks}#{}", alert.anchor()),
        },
    }
}
