//! The metrics of vLLM from 0.6 to 0.33, with its Python or its Rust front end. Both front ends export counters
//! with the suffix `_total`.

use crate::dialect::engine_load::{CACHE_SOURCES, EngineLoad};
use crate::dialect::table::{Aggregation, MetricRow, ValueSource};

/// Names of the metric for KV cache usage. vLLM until 0.10 exported the second name.
const KV_USAGE: &[&str] = &["kv_cache_usage_perc", "gpu_cache_usage_perc"];
const RUNNING: &[&str] = &["num_requests_running"];
/// Name of the metric of waiting requests that has the reason of the wait as a label.
const WAITING: &[&str] = &["num_requests_waiting_by_reason"];
/// Names of the metric for the sum of inter-token latencies. Older versions of vLLM export the second name.
const INTER_TOKEN_SECONDS: &[&str] = &[
    "inter_token_latency_seconds_sum",
    "time_per_output_token_seconds_sum",
];
const INTER_TOKEN_SECONDS_COUNT: &[&str] = &[
    "inter_token_latency_seconds_count",
    "time_per_output_token_seconds_count",
];
/// Name of the metric whose labels are the settings of the KV cache.
const CACHE_CONFIG: &[&str] = &["cache_config_info"];

pub(super) const ROWS: &[MetricRow] = &[
    MetricRow::kv_usage(KV_USAGE),
    MetricRow::min_kv_usage(KV_USAGE),
    MetricRow::running(RUNNING),
    MetricRow::engines(RUNNING),
    MetricRow::sum(&["num_requests_waiting"], |load| &mut load.waiting),
    MetricRow::sum_with(WAITING, "reason", "capacity", |load| {
        &mut load.waiting_capacity
    }),
    MetricRow::sum_with(WAITING, "reason", "deferred", |load| {
        &mut load.waiting_deferred
    }),
    // Only the engine V0 of vLLM until 0.10 moves KV blocks to CPU memory (swapping).
    MetricRow::sum(&["num_requests_swapped"], |load| &mut load.swapped),
    MetricRow::max(&["cpu_cache_usage_perc"], |load| &mut load.cpu_cache_usage),
    MetricRow::sum(&["num_preemptions_total"], |load| &mut load.preemptions),
    MetricRow::sum(
        &[
            "prefix_cache_queries_total",
            "gpu_prefix_cache_queries_total",
        ],
        |load| &mut load.prefix_queries,
    ),
    MetricRow::sum(
        &["prefix_cache_hits_total", "gpu_prefix_cache_hits_total"],
        |load| &mut load.prefix_hits,
    ),
    cached_from(|load| &mut load.cached_by_source[0], CACHE_SOURCES[0]),
    cached_from(|load| &mut load.cached_by_source[1], CACHE_SOURCES[1]),
    cached_from(|load| &mut load.cached_by_source[2], CACHE_SOURCES[2]),
    cached_from(|load| &mut load.cached_by_source[3], CACHE_SOURCES[3]),
    cached_from(|load| &mut load.cached_by_source[4], CACHE_SOURCES[4]),
    MetricRow::sum(&["admission_rejections_total"], |load| {
        &mut load.admission_rejections
    }),
    MetricRow::sum(&["corrupted_requests_total"], |load| &mut load.corrupted),
    MetricRow::sum(&["spec_decode_num_drafts_total"], |load| &mut load.drafts),
    MetricRow::sum(&["spec_decode_num_draft_tokens_total"], |load| {
        &mut load.draft_tokens
    }),
    MetricRow::sum(&["spec_decode_num_accepted_tokens_total"], |load| {
        &mut load.accepted_tokens
    }),
    MetricRow::sum(&["prompt_tokens_total"], |load| &mut load.prompt_tokens),
    MetricRow::sum(&["generation_tokens_total"], |load| {
        &mut load.generation_tokens
    }),
    MetricRow::number(
        CACHE_CONFIG,
        Aggregation::Max,
        ValueSource::Label("block_size"),
        |load| &mut load.block_size,
    ),
    MetricRow::number(
        CACHE_CONFIG,
        Aggregation::Sum,
        ValueSource::Label("num_gpu_blocks"),
        |load| &mut load.blocks,
    ),
    MetricRow::sum(&["request_queue_time_seconds_sum"], |load| {
        &mut load.queue_seconds
    }),
    MetricRow::sum(&["request_queue_time_seconds_count"], |load| {
        &mut load.queued
    }),
    MetricRow::sum(&["request_prefill_time_seconds_sum"], |load| {
        &mut load.prefill_seconds
    }),
    MetricRow::sum(&["request_prefill_time_seconds_count"], |load| {
        &mut load.prefilled
    }),
    MetricRow::sum(&["time_to_first_token_seconds_sum"], |load| {
        &mut load.first_token_seconds
    }),
    MetricRow::sum(&["time_to_first_token_seconds_count"], |load| {
        &mut load.first_tokens
    }),
    MetricRow::sum(INTER_TOKEN_SECONDS, |load| &mut load.gap_seconds),
    MetricRow::sum(INTER_TOKEN_SECONDS_COUNT, |load| &mut load.gaps),
    // vLLM exports these metrics only with --kv-cache-metrics, and measures only a sample of the blocks.
    MetricRow::sum(&["kv_block_lifetime_seconds_sum"], |load| {
        &mut load.kv_blocks.lifetime_seconds
    }),
    MetricRow::sum(&["kv_block_lifetime_seconds_count"], |load| {
        &mut load.kv_blocks.lifetimes
    }),
    MetricRow::sum(&["kv_block_idle_before_evict_seconds_sum"], |load| {
        &mut load.kv_blocks.idle_seconds
    }),
    MetricRow::sum(&["kv_block_idle_before_evict_seconds_count"], |load| {
        &mut load.kv_blocks.idle_times
    }),
    MetricRow::sum(&["kv_block_reuse_gap_seconds_sum"], |load| {
        &mut load.kv_blocks.reuse_gap_seconds
    }),
    MetricRow::sum(&["kv_block_reuse_gap_seconds_count"], |load| {
        &mut load.kv_blocks.reuse_gaps
    }),
    MetricRow::number(
        &["engine_sleep_state"],
        Aggregation::Min,
        ValueSource::ValueWithLabel("sleep_state", "awake"),
        |load| &mut load.awake,
    ),
    MetricRow::adapters(&["lora_requests_info"]),
];

/// The row of the prompt tokens that the cache `source` supplied.
const fn cached_from(
    field: fn(&mut EngineLoad) -> &mut Option<f64>,
    source: &'static str,
) -> MetricRow {
    MetricRow::sum_with(
        &["prompt_tokens_cached_by_source_total"],
        "source",
        source,
        field,
    )
}
