//! The metrics of TensorRT-LLM's `trtllm-serve`. Their path is `/prometheus/metrics`.

use crate::dialect::EngineKind;
use crate::dialect::table::{Aggregation, MetricRow, MetricsDialect, ValueSource};

pub(super) static DIALECT: MetricsDialect =
    MetricsDialect::new(Some(EngineKind::TensorRtLlm), "trtllm", ROWS);

const KV_USAGE: &[&str] = &["kv_cache_utilization"];
const RUNNING: &[&str] = &["num_requests_running"];

const ROWS: &[MetricRow] = &[
    MetricRow::number(KV_USAGE, Aggregation::Max, ValueSource::Value, |load| &mut load.kv_usage),
    MetricRow::number(KV_USAGE, Aggregation::Min, ValueSource::Value, |load| {
        &mut load.min_kv_usage
    }),
    MetricRow::sum(RUNNING, |load| &mut load.running),
    MetricRow::number(RUNNING, Aggregation::Count, ValueSource::Value, |load| &mut load.engines),
    MetricRow::sum(&["num_requests_waiting"], |load| &mut load.waiting),
    MetricRow::sum(&["prompt_tokens_total"], |load| &mut load.prompt_tokens),
    MetricRow::sum(&["generation_tokens_total"], |load| &mut load.generation_tokens),
    MetricRow::number(
        &["kv_cache_tokens_per_block"],
        Aggregation::Max,
        ValueSource::Value,
        |load| &mut load.block_size,
    ),
    MetricRow::sum(&["kv_cache_max_blocks"], |load| &mut load.blocks),
    MetricRow::sum(&["request_queue_time_seconds_sum"], |load| &mut load.queue_seconds),
    MetricRow::sum(&["request_queue_time_seconds_count"], |load| &mut load.queued),
];
