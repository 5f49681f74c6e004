//! The metrics of a tokenweir gateway, for a gateway in front of another gateway. The values are sums over the
//! backends of the other gateway.

use crate::dialect::table::MetricRow;

const TOKENS: &[&str] = &["_engine_tokens_total"];

/// The prefix `tokenweir` is one letter longer than the compared head, so the names in the rows begin with `_`.
pub(super) const ROWS: &[MetricRow] = &[
    MetricRow::kv_usage(&["_backend_kv_usage_ratio"]),
    MetricRow::min_kv_usage(&["_backend_kv_usage_ratio"]),
    MetricRow::running(&["_backend_running_requests"]),
    MetricRow::sum(&["_backend_waiting_requests"], |load| &mut load.waiting),
    // Requests in the admission queue of the other gateway wait too. Their number is added to `waiting` at the
    // end of the page.
    MetricRow::sum(&["_queue_requests"], |load| &mut load.waiting_deferred),
    MetricRow::sum(&["_backend_preemptions_total"], |load| {
        &mut load.preemptions
    }),
    MetricRow::sum_with(TOKENS, "type", "input", |load| &mut load.prompt_tokens),
    MetricRow::sum_with(TOKENS, "type", "output", |load| &mut load.generation_tokens),
];
