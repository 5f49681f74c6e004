//! Generates the configuration of Alertmanager: routes, receivers and inhibitions.

use super::alerts::{AlertInhibition, INHIBITIONS};
use super::yaml;
use serde::Serialize;

/// The routes, and the receivers for the address of the webhook in `docker/compose.yml`. Each severity of an
/// alert has a receiver.
const ROUTES_AND_RECEIVERS: &str = include_str!("alertmanager.yaml");

#[derive(Serialize)]
struct Inhibitions {
    inhibit_rules: Vec<InhibitRule>,
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
    let page = format!("{webhook}/page");
    let ticket = format!("{webhook}/ticket");
    let urls = [("http://webhook:8080/page", &*page), ("http://webhook:8080/ticket", &*ticket)];
    let text = yaml::with_values(ROUTES_AND_RECEIVERS, &urls)?;
    Ok(text + &yaml::render(&Inhibitions { inhibit_rules: inhibit_rules() })?)
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
