//! The names of the metrics in OTLP.
//!
//! A Prometheus server that receives OTLP translates the name and the unit of a metric back to the
//! name on the metrics page. The same queries therefore work for scraped and for pushed metrics.

use tokenweir_core::metric_kind::MetricKind;

/// The OTLP name and unit of a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OtlpMetricName {
    /// The name, with dots after the namespaces and without the unit.
    pub(super) name: String,
    /// The unit in UCUM. Empty for a count.
    pub(super) unit: &'static str,
}

/// Prefixes of metric names: the Prometheus form and the OTLP form.
const NAMESPACES: [(&str, &str); 10] = [
    ("gen_ai_client_inference_usage_cache_read_", "gen_ai.client.inference.usage.cache_read."),
    ("gen_ai_client_inference_usage_cache_write_", "gen_ai.client.inference.usage.cache_write."),
    ("gen_ai_client_inference_usage_reasoning_", "gen_ai.client.inference.usage.reasoning."),
    ("gen_ai_client_inference_usage_", "gen_ai.client.inference.usage."),
    ("gen_ai_client_inference_operation_", "gen_ai.client.inference.operation."),
    ("gen_ai_client_token_", "gen_ai.client.token."),
    ("gen_ai_server_request_", "gen_ai.server.request."),
    ("gen_ai_server_", "gen_ai.server."),
    ("tokenweir_", "tokenweir."),
    ("process_", "process."),
];
/// Suffixes of Prometheus names, and the UCUM unit that each of them stands for.
const UNIT_SUFFIXES: [(&str, &str); 3] = [("_seconds", "s"), ("_bytes", "By"), ("_ratio", "1")];
/// Prefix of the metrics of the OpenTelemetry conventions that count tokens, and their unit. Prometheus
/// drops a unit in braces, so their names there have no suffix.
const TOKEN_METRICS: (&str, &str) = ("gen_ai_client_", "{token}");

/// The OTLP name and unit of the metric with this Prometheus name.
pub(super) fn otlp_name(metric: &str, kind: MetricKind) -> OtlpMetricName {
    let base_name =
        metric.strip_suffix("_total").filter(|_| kind == MetricKind::Counter).unwrap_or(metric);
    let suffix = UNIT_SUFFIXES.iter().find(|(suffix, _)| base_name.ends_with(suffix));
    let braced_unit = if metric.starts_with(TOKEN_METRICS.0) { TOKEN_METRICS.1 } else { "" };
    let unit = suffix.map_or(braced_unit, |(_, unit)| unit);
    // Prometheus appends `_ratio` to gauges only.
    let should_keep_suffix = unit == "1" && kind != MetricKind::Gauge;
    let base_name = suffix
        .filter(|_| !should_keep_suffix)
        .and_then(|(suffix, _)| base_name.strip_suffix(suffix))
        .unwrap_or(base_name);
    let replace_namespace =
        |(prefix, otlp): &(&str, &str)| Some(format!("{otlp}{}", base_name.strip_prefix(prefix)?));
    let name =
        NAMESPACES.iter().find_map(replace_namespace).unwrap_or_else(|| base_name.to_owned());
    OtlpMetricName { name, unit }
}

/// The OTLP attribute name of a label.
pub(super) fn attribute_name(label: &'static str) -> &'static str {
    match label {
        "gen_ai_request_model" => "gen_ai.request.model",
        "gen_ai_operation_name" => "gen_ai.operation.name",
        "gen_ai_token_type" => "gen_ai.token.type",
        "http_response_status_code" => "http.response.status_code",
        "error_type" => "error.type",
        other => other,
    }
}
