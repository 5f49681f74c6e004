//! Generates the configuration of Alertmanager: routes, receivers and inhibitions.

use super::alerts::{AlertInhibition, AlertSeverity, INHIBITIONS};
use super::yaml;
use serde::Serialize;

#[derive(Serialize)]
struct AlertmanagerConfig {
    route: AlertRoute,
    receivers: Vec<AlertReceiver>,
    inhibit_rules: Vec<InhibitRule>,
}

#[derive(Serialize)]
struct AlertRoute {
    receiver: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    matchers: Vec<String>,
    group_by: Vec<&'static str>,
    group_wait: &'static str,
    group_interval: &'static str,
    repeat_interval: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Self>,
}

#[derive(Serialize)]
struct AlertReceiver {
    name: &'static str,
    webhook_configs: Vec<WebhookConfig>,
}

#[derive(Serialize)]
struct WebhookConfig {
    url: String,
    send_resolved: bool,
}

#[derive(Serialize)]
struct InhibitRule {
    source_matchers: Vec<String>,
    target_matchers: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    equal: Vec<&'static str>,
}

/// Generates the configuration file. `webhook`: the URL for notifications. The severity of the alert is
/// appended to it as a path segment.
pub(super) fn print(webhook: &str) -> yaml::RenderResult {
    let receiver = |severity: AlertSeverity| AlertReceiver {
        name: severity.as_str(),
        webhook_configs: vec![WebhookConfig {
            url: format!("{webhook}/{}", severity.as_str()),
            send_resolved: true,
        }],
    };
    let page_route = AlertRoute {
        receiver: AlertSeverity::Page.as_str(),
        matchers: vec![format!("severity = {}", AlertSeverity::Page.as_str())],
        group_wait: "10s",
        group_interval: "1m",
        repeat_interval: "1h",
        ..ticket_route()
    };
    yaml::print(
        "alertmanager",
        &AlertmanagerConfig {
            route: AlertRoute { routes: vec![page_route], ..ticket_route() },
            receivers: vec![receiver(AlertSeverity::Ticket), receiver(AlertSeverity::Page)],
            inhibit_rules: inhibit_rules(),
        },
    )
}

/// The root of all routes, which alerts with severity `ticket` take.
fn ticket_route() -> AlertRoute {
    AlertRoute {
        receiver: AlertSeverity::Ticket.as_str(),
        matchers: Vec::new(),
        group_by: vec!["area"],
        group_wait: "1m",
        group_interval: "10m",
        repeat_interval: "12h",
        routes: Vec::new(),
    }
}

fn inhibit_rules() -> Vec<InhibitRule> {
    let rule = |inhibition: &AlertInhibition| {
        let verdict = inhibition.verdict.map(|verdict| format!("verdict = {verdict}"));
        let source = std::iter::once(format!("alertname = {}", inhibition.by));
        InhibitRule {
            source_matchers: source.chain(verdict).collect(),
            target_matchers: vec![format!("alertname = {}", inhibition.alert)],
            equal: [&["cluster"], inhibition.equal].concat(),
        }
    };
    INHIBITIONS.iter().map(rule).collect()
}
