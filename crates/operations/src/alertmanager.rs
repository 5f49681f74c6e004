//! Alertmanager's configuration: who is told how fast, and which alerts say nothing new.

use super::alerts::{self, Severity};
use super::yaml;
use serde::Serialize;

#[derive(Serialize)]
struct File {
    route: Route,
    receivers: Vec<Receiver>,
    inhibit_rules: Vec<Inhibition>,
}

#[derive(Serialize)]
struct Route {
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
struct Receiver {
    name: &'static str,
    webhook_configs: Vec<Webhook>,
}

#[derive(Serialize)]
struct Webhook {
    url: String,
    send_resolved: bool,
}

#[derive(Serialize)]
struct Inhibition {
    source_matchers: Vec<String>,
    target_matchers: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    equal: Vec<&'static str>,
}

/// The file. Notifications go to `webhook`, with the severity appended.
pub(super) fn print(webhook: &str) -> yaml::Result {
    let receiver = |severity: Severity| Receiver {
        name: severity.as_str(),
        webhook_configs: vec![Webhook {
            url: format!("{webhook}/{}", severity.as_str()),
            send_resolved: true,
        }],
    };
    let page = Route {
        receiver: Severity::Page.as_str(),
        matchers: vec![format!("severity = {}", Severity::Page.as_str())],
        group_wait: "10s",
        group_interval: "1m",
        repeat_interval: "1h",
        ..tickets()
    };
    yaml::print(
        "alertmanager",
        &File {
            route: Route { routes: vec![page], ..tickets() },
            receivers: vec![receiver(Severity::Ticket), receiver(Severity::Page)],
            inhibit_rules: inhibitions(),
        },
    )
}

/// What is not urgent, and the root of the routes.
fn tickets() -> Route {
    Route {
        receiver: Severity::Ticket.as_str(),
        matchers: Vec::new(),
        group_by: vec!["area"],
        group_wait: "1m",
        group_interval: "10m",
        repeat_interval: "12h",
        routes: Vec::new(),
    }
}

fn inhibitions() -> Vec<Inhibition> {
    let mut inhibitions = Vec::new();
    for alert in alerts::all() {
        for silence in &alert.silences {
            inhibitions.push(Inhibition {
                source_matchers: vec![format!("alertname = {}", alert.name)],
                target_matchers: vec![format!("alertname = {}", silence.alert)],
                equal: silence.equal.to_vec(),
            });
        }
    }
    inhibitions
}
