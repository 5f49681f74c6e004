//! Generates the rule files of Prometheus: recording rules and alert rules.

use super::alerts::{self, Alert};
use super::recording_rules;
use super::yaml;
use serde::Serialize;
use std::fmt::Write;

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
    expr: String,
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
    let mut groups = recording_rules::groups();
    for rule in groups.iter_mut().flat_map(|group| &mut group.rules) {
        rule.expr = for_each_cluster(&rule.expr);
    }
    yaml::print("recording-rules", &RuleFile { groups })
}

/// Generates the file of alert rules, with one group for each area of alerts. `runbooks`: the URL of the page
/// of runbooks.
pub(super) fn render_alert_rules(runbooks: &str) -> yaml::RenderResult {
    let areas = alerts::by_area();
    let groups = areas.iter().map(|(area, alerts)| AlertRuleGroup {
        name: format!("tokenweir-{area}"),
        interval: "15s",
        rules: alerts.iter().map(|alert| alert_rule(alert, area, runbooks)).collect(),
    });
    yaml::print("alert-rules", &RuleFile { groups: groups.collect() })
}

fn alert_rule<'a>(alert: &'a Alert, area: &'a str, runbooks: &str) -> AlertRule<'a> {
    AlertRule {
        alert: alert.name,
        expr: for_each_cluster(&alert.expr),
        r#for: alert.holds_for,
        keep_firing_for: alert.stays_for,
        labels: AlertLabels { severity: alert.severity.as_str(), area },
        annotations: AlertAnnotations {
            summary: alert.summary,
            description: alert.description,
            runbook_url: format!("{runbooks}#{}", alert.anchor()),
        },
    }
}

/// The label with the name of the cluster. It matters if one Prometheus has the series of several clusters.
const CLUSTER: &str = "cluster";
/// The aggregation operators that some queries use without a list of labels. In these places, the list `by
/// (cluster)` is added.
const AGGREGATIONS: [&str; 4] = ["sum", "min", "max", "avg"];

/// Changes a query so that it aggregates and matches series only within each cluster: `cluster` is added to
/// each `by` and `on`. So the series of two clusters are not added up. All series without this label count as
/// one cluster.
fn for_each_cluster(query: &str) -> String {
    let mut text = String::with_capacity(2 * query.len());
    let mut word = String::new();
    for (index, letter) in query.char_indices() {
        if letter.is_alphanumeric() || letter == '_' || letter == ':' {
            word.push(letter);
            text.push(letter);
            continue;
        }
        let list = query[index..].trim_start().strip_prefix('(');
        let is_empty = list.is_some_and(|list| list.trim_start().starts_with(')'));
        if letter == '(' && AGGREGATIONS.contains(&word.as_str()) {
            // Writing to a string cannot fail.
            let _ = write!(text, " by ({CLUSTER}) (");
        } else if letter == ' ' && list.is_some() && (word == "by" || word == "on") {
            let separator = if is_empty { "" } else { ", " };
            let _ = write!(text, " ({CLUSTER}{separator}");
            "list".clone_into(&mut word);
            continue;
        } else if letter == '(' && word == "list" {
            word.clear();
            continue;
        } else {
            text.push(letter);
        }
        word.clear();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::for_each_cluster;

    #[test]
    fn a_query_aggregates_and_matches_by_cluster() {
        for (query, expected) in [
            ("sum(rate(a[5m]))", "sum by (cluster) (rate(a[5m]))"),
            ("max by (backend) (a) > 0", "max by (cluster, backend) (a) > 0"),
            ("a and on (slo) b", "a and on (cluster, slo) b"),
            ("a unless on () b", "a unless on (cluster) b"),
            ("max_over_time(a[5m]) or absent(b)", "max_over_time(a[5m]) or absent(b)"),
            ("sum without (state) (a)", "sum without (state) (a)"),
            ("sum by (x)\n    (increase(a[2m]))", "sum by (cluster, x)\n    (increase(a[2m]))"),
        ] {
            assert_eq!(for_each_cluster(query), expected);
        }
    }
}
