//! OTLP names of the metrics.
//!
//! Prometheus translates an OTLP name and its unit back to the name on the metrics page, so that
//! queries work for both.

use tokenweir_core::metric_kind::MetricKind;

/// The OTLP name and unit of a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OtlpMetricName {
    /// The name, with dots between namespaces.
    pub(super) name: String,
    /// The unit in UCUM. Empty for a count.
    pub(super) unit: &'static str,
}

/// Namespaces in the Prometheus form and in the OpenTelemetry form.
const NAMESPACES: [(&str, &str); 4] = [
    ("gen_ai_server_request_", "gen_ai.server.request."),
    ("gen_ai_server_", "gen_ai.server."),
    ("tokenweir_", "tokenweir."),
    ("process_", "process."),
];
/// Suffixes of Prometheus names and their units.
const UNIT_SUFFIXES: [(&str, &str); 3] = [("_seconds", "s"), ("_bytes", "By"), ("_ratio", "1")];

/// The OTLP name of a metric.
pub(super) fn otlp_name(metric: &str, kind: MetricKind) -> OtlpMetricName {
    let bare =
        metric.strip_suffix("_total").filter(|_| kind == MetricKind::Counter).unwrap_or(metric);
    let suffix = UNIT_SUFFIXES.iter().find(|(suffix, _)| bare.ends_with(suffix));
    let unit = suffix.map_or("", |(_, unit)| unit);
    // Prometheus appends `_ratio` to gauges only.
    let keeps_suffix = unit == "1" && kind != MetricKind::Gauge;
    let bare = suffix
        .filter(|_| !keeps_suffix)
        .and_then(|(suffix, _)| bare.strip_suffix(suffix))
        .unwrap_or(bare);
    let replace_namespace =
        |(prefix, dotted): &(&str, &str)| Some(format!("{dotted}{}", bare.strip_prefix(prefix)?));
    let name = NAMESPACES.iter().find_map(replace_namespace).unwrap_or_else(|| bare.to_owned());
    OtlpMetricName { name, unit }
}

/// The attribute name of a label.
pub(super) fn attribute_name(label: &'static str) -> &'static str {
    match label {
        "gen_ai_request_model" => "gen_ai.request.model",
        "gen_ai_operation_name" => "gen_ai.operation.name",
        "error_type" => "error.type",
        other => other,
    }
}
