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

/// The aggregation operators that some queries use without a list of labels.
const AGGREGATIONS: [&str; 4] = ["sum", "min", "max", "avg"];

/// Changes a query so that it aggregates and matches series only within each cluster: the label `cluster` is
/// added to each `by` and `on`, and `by (cluster)` to each aggregation without a list. So the series of two
/// clusters are not added up. All series without this label count as one cluster.
fn for_each_cluster(query: &str) -> String {
    let query = query.replace(" by (", " by (cluster, ").replace(" on (", " on (cluster, ");
    let query = query.replace("(cluster, )", "(cluster)");
    AGGREGATIONS.iter().fold(query, |query, operator| {
        query.replace(&format!("{operator}("), &format!("{operator} by (cluster) ("))
    })
}

#[cfg(test)]
mod tests {
    use super::for_each_cluster;

    #[test]
    fn queries_match_series_within_each_cluster() {
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
