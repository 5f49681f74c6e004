//! The level of the metrics decides which metrics have series, and which of them have the label `backend`.
//!
//! A histogram with the label `backend` has up to 30 series for each backend and model, so most histograms have
//! the label only at the level `full`.

use crate::metric::{BACKEND, MetricDescriptor};
use crate::telemetry::otel::Semconv;
use schemars::JsonSchema;
use serde::Deserialize;
use tokenweir_protocol::metric_kind::MetricKind;
use tokenweir_protocol::named_enum;

named_enum! {
    /// How many series the gateway exports.
    #[derive(Default, PartialOrd, Ord, Deserialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum MetricsLevel {
        /// Rates, latencies of the fleet, objectives, load of backends.
        Minimal = "minimal",
        /// Every metric that dashboards and alerts use.
        #[default]
        Standard = "standard",
        /// Every metric with all its labels.
        Full = "full",
    }
}

/// Whether a metric has series at one level, and with which labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricDetail {
    /// The metric is not exported at this level.
    Omitted,
    /// The series have no label `backend`: the values of all backends are added up.
    WithoutBackend,
    /// Exported with all its labels.
    Complete,
}

const MINIMAL: &[&str] = &[
    "gen_ai_server_request_duration_seconds",
    "gen_ai_server_time_per_output_token_seconds",
    "gen_ai_server_time_to_first_token_seconds",
    "tokenweir_answers_total",
    "tokenweir_backend_kv_usage_ratio",
    "tokenweir_backend_requests_in_flight",
    "tokenweir_backend_running_requests",
    "tokenweir_backend_scrape_age_seconds",
    "tokenweir_backend_up",
    "tokenweir_backend_waiting_requests",
    "tokenweir_build_info",
    "tokenweir_certificate_expiry_timestamp_seconds",
    "tokenweir_config_last_reload_successful",
    "tokenweir_draining",
    "tokenweir_gateway_overhead_seconds",
    "tokenweir_http_responses_total",
    "tokenweir_oldest_request_age_seconds",
    "tokenweir_panic_mode",
    "tokenweir_queue_requests",
    "tokenweir_ready",
    "tokenweir_requests_in_flight",
    "tokenweir_requests_rejected_total",
    "tokenweir_requests_shed_total",
    "tokenweir_requests_total",
    "tokenweir_slo_objective_ratio",
    "tokenweir_slo_requests_total",
    "tokenweir_tenant_requests_total",
    "tokenweir_tenant_tokens_total",
    "tokenweir_tokens_total",
];
const FULL_ONLY: &[&str] = &[
    "tokenweir_backend_breaker_state",
    "tokenweir_backend_metric_available",
];
/// The histograms that already have the label `backend` at the level `standard`.
const WITH_BACKEND_AT_STANDARD: &[&str] = &["gen_ai_server_time_to_first_token_seconds"];

/// The name prefix of metrics that the latest GenAI conventions have but version 1.41 lacks.
const LATEST_CONVENTIONS_PREFIX: &str = "gen_ai_client_inference_";
/// The metric of version 1.41 that the latest GenAI conventions have dropped.
const REMOVED_FROM_CONVENTIONS: &str = "gen_ai_client_token_usage";

impl MetricsLevel {
    /// Returns which series a metric has at this level and with this version of the GenAI conventions.
    pub fn detail(self, row: &MetricDescriptor, semconv: Semconv) -> MetricDetail {
        let is_excluded = match semconv {
            Semconv::V1_41 => row.name.starts_with(LATEST_CONVENTIONS_PREFIX),
            Semconv::Latest => row.name == REMOVED_FROM_CONVENTIONS,
        };
        if is_excluded {
            return MetricDetail::Omitted;
        }
        let is_histogram = matches!(row.kind, MetricKind::Histogram(_));
        let can_fold = is_histogram && row.labels.iter().any(|label| label.name == BACKEND.name);
        let folded = if can_fold {
            MetricDetail::WithoutBackend
        } else {
            MetricDetail::Complete
        };
        match self {
            Self::Full => MetricDetail::Complete,
            Self::Minimal if MINIMAL.contains(&row.name) => folded,
            Self::Standard if WITH_BACKEND_AT_STANDARD.contains(&row.name) => {
                MetricDetail::Complete
            }
            Self::Standard if !FULL_ONLY.contains(&row.name) => folded,
            Self::Minimal | Self::Standard => MetricDetail::Omitted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::catalog;

    #[test]
    fn lists_name_metrics_of_the_catalogue() {
        let lists = [
            MINIMAL,
            FULL_ONLY,
            WITH_BACKEND_AT_STANDARD,
            &[REMOVED_FROM_CONVENTIONS],
        ];
        for name in lists.concat() {
            assert!(
                catalog::rows().any(|row| row.name == name),
                "no metric {name}"
            );
        }
        assert!(MINIMAL.is_sorted());
        let of_latest =
            catalog::rows().filter(|row| row.name.starts_with(LATEST_CONVENTIONS_PREFIX));
        assert_eq!(of_latest.count(), 7);
    }

    #[test]
    fn a_higher_level_has_no_fewer_series() {
        for row in catalog::rows() {
            for semconv in [Semconv::V1_41, Semconv::Latest] {
                let details = MetricsLevel::ALL.map(|level| level.detail(row, semconv) as u8);
                assert!(details.is_sorted(), "{}: {details:?}", row.name);
            }
        }
    }
}
