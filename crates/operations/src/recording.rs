//! Series that Prometheus computes ahead: what alerts compare with an hour before, and the shares
//! of bad requests over the windows of objectives.

use serde::Serialize;

/// Rules that are evaluated together.
#[derive(Debug, Clone, Serialize)]
pub struct Group {
    /// Its name.
    pub name: &'static str,
    /// Time between two evaluations.
    pub interval: &'static str,
    /// The rules.
    pub rules: Vec<Recording>,
}

/// One series.
#[derive(Debug, Clone, Serialize)]
pub struct Recording {
    /// Its name: level, metric, operation.
    pub record: String,
    /// The query.
    pub expr: String,
}

/// Windows of objectives that move fast enough to be computed with everything else.
const SHORT_WINDOWS: [&str; 5] = ["5m", "30m", "1h", "2h", "6h"];
/// Windows that are costly and move slowly.
const LONG_WINDOWS: [&str; 3] = ["1d", "3d", "30d"];

/// All groups.
pub fn groups() -> Vec<Group> {
    vec![
        Group { name: "tokenweir-traffic-recorded", interval: "30s", rules: traffic() },
        Group { name: "tokenweir-slo-recorded", interval: "30s", rules: objectives() },
        Group {
            name: "tokenweir-slo-long-recorded",
            interval: "5m",
            rules: LONG_WINDOWS.map(bad_share).to_vec(),
        },
    ]
}

fn objectives() -> Vec<Recording> {
    let budget = Recording {
        record: "tokenweir:slo_budget:ratio".into(),
        expr: "1 - max by (slo) (tokenweir_slo_objective_ratio)".into(),
    };
    [budget].into_iter().chain(SHORT_WINDOWS.map(bad_share)).collect()
}

/// The share of bad requests. There is none without requests: no traffic misses no objective.
fn bad_share(window: &str) -> Recording {
    Recording {
        record: format!("tokenweir:slo_bad:ratio_rate{window}"),
        expr: format!(
            "sum by (slo) (rate(tokenweir_slo_requests_total{{result=\"bad\"}}[{window}]))\n\
             / (sum by (slo) (rate(tokenweir_slo_requests_total[{window}])) > 0)"
        ),
    }
}

fn traffic() -> Vec<Recording> {
    [
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
             (rate(tokenweir_inter_chunk_seconds_bucket[5m])))",
        ),
        (
            "tokenweir:chunks:increase5m",
            "sum by (gen_ai_request_model) (increase(tokenweir_inter_chunk_seconds_count[5m]))",
        ),
        (
            "tokenweir:request_duration_seconds:p95_5m",
            "histogram_quantile(0.95, sum by (le, gen_ai_request_model) \
             (rate(gen_ai_server_request_duration_seconds_bucket{\
             error_type=\"\",gen_ai_operation_name=~\"chat|text_completion\"}[5m])))",
        ),
        (
            "tokenweir:good_requests:increase5m",
            "sum by (gen_ai_request_model) \
             (increase(gen_ai_server_request_duration_seconds_count{\
             error_type=\"\",gen_ai_operation_name=~\"chat|text_completion\"}[5m]))",
        ),
        (
            "tokenweir:output_tokens:rate5m",
            "sum(rate(tokenweir_tokens_total{type=\"output\"}[5m]))\n\
             + sum(rate(tokenweir_estimated_output_tokens_total[5m]))",
        ),
        (
            "tokenweir:requests_in_flight:avg5m",
            "sum(avg_over_time(tokenweir_requests_in_flight[5m]))",
        ),
    ]
    .map(|(name, expr)| Recording { record: name.into(), expr: expr.into() })
    .to_vec()
}
