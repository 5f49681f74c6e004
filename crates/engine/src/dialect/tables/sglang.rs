//! The metrics of SGLang with `--enable-metrics`.
//!
//! By default, one rank of each data-parallel group exports metrics, so the values of the series are summed.
//! With `--enable-metrics-for-all-schedulers`, every rank exports the metrics of its whole group, so the sums
//! are too high.

use crate::dialect::table::{Aggregation, MetricRow, ValueSource};

const KV_USAGE: &[&str] = &["token_usage"];
const RUNNING: &[&str] = &["num_running_reqs"];

pub(super) const ROWS: &[MetricRow] = &[
    MetricRow::kv_usage(KV_USAGE),
    MetricRow::min_kv_usage(KV_USAGE),
    MetricRow::running(RUNNING),
    MetricRow::engines(RUNNING),
    MetricRow::sum(&["num_queue_reqs"], |load| &mut load.waiting),
    MetricRow::sum(&["num_retracted_requests_total"], |load| {
        &mut load.preemptions
    }),
    MetricRow::sum(&["prompt_tokens_total"], |load| &mut load.prompt_tokens),
    MetricRow::sum(&["generation_tokens_total"], |load| {
        &mut load.generation_tokens
    }),
    MetricRow::max(&["page_size"], |load| &mut load.block_size),
    // Until 0.5.9, SGLang shows the block size only in the label `page_size` of this metric.
    MetricRow::number(
        &["cache_config_info"],
        Aggregation::Max,
        ValueSource::Label("page_size"),
        |load| &mut load.block_size,
    ),
    MetricRow::sum(&["num_pages"], |load| &mut load.blocks),
    MetricRow::sum(&["max_total_num_tokens"], |load| &mut load.kv_tokens),
    MetricRow::sum(&["queue_time_seconds_sum"], |load| &mut load.queue_seconds),
    MetricRow::sum(&["queue_time_seconds_count"], |load| &mut load.queued),
];
