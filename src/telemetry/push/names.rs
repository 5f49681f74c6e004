//! What OpenTelemetry calls a metric of the page. Prometheus' translation of it, units and all,
//! gives back the name on the page, so that queries hold for both.

use crate::telemetry::metric::Kind;

/// A name and its unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    /// With dots between namespaces.
    pub(super) name: String,
    /// In UCUM's words; empty for a count.
    pub(super) unit: &'static str,
}

/// Namespaces, as the page writes them and as OpenTelemetry does.
const NAMESPACES: [(&str, &str); 4] = [
    ("gen_ai_server_request_", "gen_ai.server.request."),
    ("gen_ai_server_", "gen_ai.server."),
    ("tokenweir_", "tokenweir."),
    ("process_", "process."),
];
/// Suffixes that stand for a unit.
const UNITS: [(&str, &str); 3] = [("_seconds", "s"), ("_bytes", "By"), ("_ratio", "1")];

/// The name of a metric.
pub(super) fn name(metric: &str, kind: Kind) -> Name {
    let bare = metric.strip_suffix("_total").filter(|_| kind == Kind::Counter).unwrap_or(metric);
    let suffix = UNITS.iter().find(|(suffix, _)| bare.ends_with(suffix));
    let unit = suffix.map_or("", |(_, unit)| unit);
    // Prometheus puts `_ratio` after gauges only.
    let is_kept = unit == "1" && kind != Kind::Gauge;
    let bare = suffix
        .filter(|_| !is_kept)
        .and_then(|(suffix, _)| bare.strip_suffix(suffix))
        .unwrap_or(bare);
    let in_namespace =
        |(page, dotted): &(&str, &str)| Some(format!("{dotted}{}", bare.strip_prefix(page)?));
    let name = NAMESPACES.iter().find_map(in_namespace).unwrap_or_else(|| bare.to_owned());
    Name { name, unit }
}

/// The attribute for a label.
pub(super) fn attribute(label: &'static str) -> &'static str {
    match label {
        "gen_ai_request_model" => "gen_ai.request.model",
        "gen_ai_operation_name" => "gen_ai.operation.name",
        "error_type" => "error.type",
        other => other,
    }
}
