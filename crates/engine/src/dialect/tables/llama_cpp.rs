//! The metrics of the llama.cpp server with `--metrics`. Since its KV cache is unified, the server does not
//! report KV usage.

use crate::dialect::table::MetricRow;

const KV_USAGE: &[&str] = &["kv_cache_usage_ratio"];
const RUNNING: &[&str] = &["requests_processing"];

pub(super) const ROWS: &[MetricRow] = &[
    MetricRow::kv_usage(KV_USAGE),
    MetricRow::min_kv_usage(KV_USAGE),
    MetricRow::running(RUNNING),
    MetricRow::engines(RUNNING),
    MetricRow::sum(&["requests_deferred"], |load| &mut load.waiting),
    MetricRow::sum(&["prompt_tokens_total"], |load| &mut load.prompt_tokens),
    MetricRow::sum(&["tokens_predicted_total"], |load| {
        &mut load.generation_tokens
    }),
];
