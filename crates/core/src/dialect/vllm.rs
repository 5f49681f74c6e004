//! vLLM from 0.6 to 0.33, behind its Python and its Rust front end. Behind the latter, counters end
//! in `_total` as OpenMetrics wants it, which Python's have always done.

use super::Server;
use super::table::{Dialect, Fold, Row, Source};

pub(super) static DIALECT: Dialect = Dialect::new(Some(Server::Vllm), "vllm", ROWS);

/// The second name was exported until 0.10.
const KV_USAGE: &[&str] = &["kv_cache_usage_perc", "gpu_cache_usage_perc"];
const RUNNING: &[&str] = &["num_requests_running"];
/// The second name is the older one.
const GAP_SECONDS: &[&str] =
    &["inter_token_latency_seconds_sum", "time_per_output_token_seconds_sum"];
const GAPS: &[&str] = &["inter_token_latency_seconds_count", "time_per_output_token_seconds_count"];
/// Every setting of the cache is a label.
const CACHE: &[&str] = &["cache_config_info"];

const ROWS: &[Row] = &[
    Row::number(KV_USAGE, Fold::Greatest, Source::Value, |load| &mut load.kv_usage),
    Row::number(KV_USAGE, Fold::Least, Source::Value, |load| &mut load.kv_usage_least),
    Row::sum(RUNNING, |load| &mut load.running),
    Row::number(RUNNING, Fold::Count, Source::Value, |load| &mut load.engines),
    Row::sum(&["num_requests_waiting"], |load| &mut load.waiting),
    Row::number(
        &["num_requests_waiting_by_reason"],
        Fold::Sum,
        Source::ValueWhere("reason", "capacity"),
        |load| &mut load.waiting_capacity,
    ),
    Row::sum(&["num_preemptions_total"], |load| &mut load.preemptions),
    Row::sum(&["prefix_cache_queries_total", "gpu_prefix_cache_queries_total"], |load| {
        &mut load.prefix_queries
    }),
    Row::sum(&["prefix_cache_hits_total", "gpu_prefix_cache_hits_total"], |load| {
        &mut load.prefix_hits
    }),
    Row::sum(&["prompt_tokens_total"], |load| &mut load.prompt_tokens),
    Row::sum(&["generation_tokens_total"], |load| &mut load.generation_tokens),
    Row::number(CACHE, Fold::Greatest, Source::Label("block_size"), |load| &mut load.block_size),
    Row::number(CACHE, Fold::Sum, Source::Label("num_gpu_blocks"), |load| &mut load.blocks),
    Row::sum(&["request_queue_time_seconds_sum"], |load| &mut load.queue_seconds),
    Row::sum(&["request_queue_time_seconds_count"], |load| &mut load.queued),
    Row::sum(&["request_prefill_time_seconds_sum"], |load| &mut load.prefill_seconds),
    Row::sum(&["request_prefill_time_seconds_count"], |load| &mut load.prefilled),
    Row::sum(&["time_to_first_token_seconds_sum"], |load| &mut load.first_token_seconds),
    Row::sum(&["time_to_first_token_seconds_count"], |load| &mut load.first_tokens),
    Row::sum(GAP_SECONDS, |load| &mut load.gap_seconds),
    Row::sum(GAPS, |load| &mut load.gaps),
    Row::number(
        &["engine_sleep_state"],
        Fold::Least,
        Source::ValueWhere("sleep_state", "awake"),
        |load| &mut load.awake,
    ),
    Row::adapters(&["lora_requests_info"]),
];
