//! The recording rules of Prometheus. They record the series that alerts compare with their values an hour
//! before, and for the SLO alerts, the share of bad requests over each window.

use serde::Serialize;

/// A group of recording rules that Prometheus evaluates together.
#[derive(Debug, Clone, Serialize)]
pub struct RecordingRuleGroup {
    /// The name of the group.
    pub name: &'static str,
    /// Time between two evaluations, as a duration of Prometheus.
    pub interval: &'static str,
    /// The rules of the group.
    pub rules: Vec<RecordingRule>,
}

/// A recording rule: a query whose result Prometheus stores as a series.
#[derive(Debug, Clone, Serialize)]
pub struct RecordingRule {
    /// The name of the recorded series, in the form `level:metric:operations`.
    pub record: String,
    /// The Prometheus query.
    pub expr: String,
}

/// Windows over which the share of bad requests is recorded every 30 s.
const SHORT_WINDOWS: [&str; 5] = ["5m", "30m", "1h", "2h", "6h"];
/// Windows over which the share of bad requests is recorded every 5 min only, because the queries
/// are costly and their results change slowly.
const LONG_WINDOWS: [&str; 3] = ["1d", "3d", "30d"];

/// The recorded series that the latency alerts use: latencies, request counts and rates. For each: its name
/// and its query.
const TRAFFIC_RULES: [(&str, &str); 7] = [
    (
        "tokenweir:ttft_seconds:p95_5m",
        "histogram_quantile(0.95, sum by (le, gen_ai_request_model) \
         (rate(gen_ai_server_time_to_first_token_seconds_bucket[5m])))",
    ),
    (
        "tokenweir:streams:increase5m",
        "sum by (gen_ai_request_model) \
         (increase(gen_ai_server_time_to_first_token_seconds_count[5m]))",
    ),
    (
        "tokenweir:inter_chunk_seconds:p95_5m",
        "histogram_quantile(0.95, sum by (le, gen_ai_request_model) \
         (rate(tokenweir_inter_chunk_latency_seconds_bucket[5m])))",
    ),
    (
        "tokenweir:chunks:increase5m",
        "sum by (gen_ai_request_model) \
         (increase(tokenweir_inter_chunk_latency_seconds_count[5m]))",
    ),
    (
        "tokenweir:request_duration_seconds:p95_5m",
        "histogram_quantile(0.95, sum by (le, gen_ai_request_model) \
         (rate(gen_ai_server_request_duration_seconds_bucket{\
         outcome=\"ok\",gen_ai_operation_name=~\"chat|text_completion\"}[5m])))",
    ),
    (
        "tokenweir:good_requests:increase5m",
        "sum by (gen_ai_request_model) \
         (increase(gen_ai_server_request_duration_seconds_count{\
         outcome=\"ok\",gen_ai_operation_name=~\"chat|text_completion\"}[5m]))",
    ),
    (
        "tokenweir:token_drift:ratio_1h",
        "sum by (backend, type) (increase(tokenweir_backend_tokens_total[1h]))\n\
         / max by (backend, type) (increase(tokenweir_engine_tokens_total[1h]))",
    ),
];

/// All groups of recording rules.
pub fn groups() -> Vec<RecordingRuleGroup> {
    vec![
        RecordingRuleGroup {
            name: "tokenweir-traffic-recorded",
            interval: "30s",
            rules: traffic_rules(),
        },
        RecordingRuleGroup { name: "tokenweir-slo-recorded", interval: "30s", rules: slo_rules() },
        RecordingRuleGroup {
            name: "tokenweir-slo-long-recorded",
            interval: "5m",
            rules: LONG_WINDOWS.map(bad_request_ratio).to_vec(),
        },
    ]
}

/// The rule of the error budget of each objective, and the rules of the share of bad requests over the
/// short windows.
fn slo_rules() -> Vec<RecordingRule> {
    let budget = RecordingRule {
        record: "tokenweir:slo_budget:ratio".into(),
        expr: "1 - max by (slo) (tokenweir_slo_objective_ratio)".into(),
    };
    [budget].into_iter().chain(SHORT_WINDOWS.map(bad_request_ratio)).collect()
}

/// The rule that records the share of bad requests of each objective over a window. If there were no
/// requests, the recorded series has no value.
fn bad_request_ratio(window: &str) -> RecordingRule {
    RecordingRule {
        record: format!("tokenweir:slo_bad:ratio_rate{window}"),
        expr: format!(
            "sum by (slo) (rate(tokenweir_slo_requests_total{{result=\"bad\"}}[{window}]))\n\
             / (sum by (slo) (rate(tokenweir_slo_requests_total[{window}])) > 0)"
        ),
    }
}

/// The recording rules for [`TRAFFIC_RULES`].
fn traffic_rules() -> Vec<RecordingRule> {
    TRAFFIC_RULES
        .map(|(name, expr)| RecordingRule { record: name.into(), expr: expr.into() })
        .to_vec()
}
