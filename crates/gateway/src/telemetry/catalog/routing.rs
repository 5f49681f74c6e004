//! Metrics of routing: accuracy of the predictions, and estimates of backends.

use crate::metric::prelude::*;
use tokenweir_routing::PolicyKind;

/// Bucket bounds of the absolute error of a predicted time to first output, in seconds.
const PREDICTION_ERROR_BOUNDS: &[f64] = &[
    0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];
/// Bucket bounds of the actual time to first output divided by the predicted time.
const PREDICTION_RATIO_BOUNDS: &[f64] = &[0.1, 0.25, 0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 2.0, 4.0, 10.0];

const POLICY: MetricLabel = fixed("policy", PolicyKind::NAMES);

pub(super) const ROWS: &[MetricDescriptor] = &[
    histogram(
        "tokenweir_routing_prediction_error_seconds",
        "Streams: absolute difference between actual and predicted time from sending to the first output.",
        PREDICTION_ERROR_BOUNDS,
        &[BACKEND],
        FirstOutput(|record| {
            let (actual, predicted) = record.actual_and_predicted_ttft()?;
            Some((actual - predicted).abs())
        }),
    ),
    histogram(
        "tokenweir_routing_prediction_ratio",
        "Streams: actual / predicted time from sending to the first output.",
        PREDICTION_RATIO_BOUNDS,
        &[BACKEND],
        FirstOutput(|record| {
            let (actual, predicted) = record.actual_and_predicted_ttft()?;
            (predicted > 0.0).then_some(actual / predicted)
        }),
    ),
    row(
        "tokenweir_cached_tokens_predicted_total",
        "Prompt tokens predicted to be cached, for responses that report their cached tokens.",
        &[BACKEND],
        RecordValue(|record| {
            let (_, predicted) = record.reported_and_predicted_cached_tokens()?;
            Some(predicted.max(0.0))
        }),
    ),
    row(
        "tokenweir_cached_tokens_reported_total",
        "Prompt tokens that the engine reported as cached, for responses with a predicted number.",
        &[BACKEND],
        RecordValue(|record| {
            let (reported, _) = record.reported_and_predicted_cached_tokens()?;
            Some(reported as f64)
        }),
    ),
    row(
        "tokenweir_prefix_cache_regret_tokens_total",
        "Prompt tokens that the pick of the policy had to compute although another candidate probably had them cached.",
        &[POLICY],
        Record(|record, emit| {
            if let Some(decision) = &record.decision {
                emit(&[decision.policy()], decision.cache_regret());
            }
        }),
    ),
    of_backend(
        "tokenweir_backend_load_freshness_ratio",
        "Weight of the last scraped load in predictions, 0 to 1.",
        |backend| Some(backend.learned.freshness),
    ),
    of_backend(
        "tokenweir_backend_prefill_tokens_per_second",
        "Prompt tokens that the backend computes per second, learned from its times to first output.",
        |backend| Some(backend.learned.prefill_tokens_per_second),
    ),
    of_backend(
        "tokenweir_backend_prefill_backlog_tokens",
        "Predicted prompt tokens that the backend must compute before those of a new request.",
        |backend| Some(backend.learned.prefill_backlog_tokens),
    ),
    of_backend(
        "tokenweir_backend_prefix_retention_ratio",
        "Share of the backend's KV cache assumed to hold prefixes of past requests.",
        |backend| Some(backend.learned.prefix_retention),
    ),
    value(
        "tokenweir_prefix_index_bytes",
        "Memory of the prefix indexes of all backends.",
        |status| {
            let bytes = status
                .backends
                .iter()
                .map(|backend| backend.learned.prefix_index_bytes);
            Some((bytes.sum::<usize>() + status.short_list_bytes) as f64)
        },
    ),
];
