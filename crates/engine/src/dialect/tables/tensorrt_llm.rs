//! The metrics of TensorRT-LLM's `trtllm-serve`. The path of the page is `/prometheus/metrics`.

use crate::dialect::table::MetricRow;

const KV_USAGE: &[&str] = &["kv_cache_utilization"];
const RUNNING: &[&str] = &["num_requests_running"];

pub(super) const ROWS: &[MetricRow] = &[
    MetricRow::kv_usage(KV_USAGE),
    MetricRow::min_kv_usage(KV_USAGE),
    MetricRow::running(RUNNING),
    MetricRow::engines(RUNNING),
    MetricRow::sum(&["num_requests_waiting"], |load| &mut load.waiting),
    MetricRow::sum(&["prompt_tokens_total"], |load| &mut load.prompt_tokens),
    MetricRow::sum(&["generation_tokens_total"], |load| {
        &mut load.generation_tokens
    }),
    MetricRow::max(&["kv_cache_tokens_per_block"], |load| &mut load.block_size),
    MetricRow::sum(&["kv_cache_max_blocks"], |load| &mut load.blocks),
    MetricRow::sum(&["request_queue_time_seconds_sum"], |load| {
        &mut load.queue_seconds
    }),
    MetricRow::sum(&["request_queue_time_seconds_count"], |load| {
        &mut load.queued
    }),
];
