//! TensorRT-LLM's `trtllm-serve`, whose page is at `/prometheus/metrics`.

use super::Server;
use super::table::{Dialect, Fold, Row, Source};

pub(super) static DIALECT: Dialect = Dialect::new(Some(Server::TensorRtLlm), "trtllm", ROWS);

const KV_USAGE: &[&str] = &["kv_cache_utilization"];
const RUNNING: &[&str] = &["num_requests_running"];

const ROWS: &[Row] = &[
    Row::number(KV_USAGE, Fold::Greatest, Source::Value, |load| &mut load.kv_usage),
    Row::number(KV_USAGE, Fold::Least, Source::Value, |load| &mut load.kv_usage_least),
    Row::sum(RUNNING, |load| &mut load.running),
    Row::number(RUNNING, Fold::Count, Source::Value, |load| &mut load.engines),
    Row::sum(&["num_requests_waiting"], |load| &mut load.waiting),
    Row::sum(&["prompt_tokens_total"], |load| &mut load.prompt_tokens),
    Row::sum(&["generation_tokens_total"], |load| &mut load.generation_tokens),
    Row::number(&["kv_cache_tokens_per_block"], Fold::Greatest, Source::Value, |load| {
        &mut load.block_size
    }),
    Row::sum(&["kv_cache_max_blocks"], |load| &mut load.blocks),
    Row::sum(&["request_queue_time_seconds_sum"], |load| &mut load.queue_seconds),
    Row::sum(&["request_queue_time_seconds_count"], |load| &mut load.queued),
];
