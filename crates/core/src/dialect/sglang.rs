//! SGLang with `--enable-metrics`. One rank of each data-parallel group exports, so series are added
//! up; with `--enable-metrics-for-all-schedulers` every rank does, and counts are too high.

use super::Server;
use super::table::{Dialect, Fold, Row, Source};

pub(super) static DIALECT: Dialect = Dialect::new(Some(Server::Sglang), "sglang", ROWS);

const KV_USAGE: &[&str] = &["token_usage"];
const RUNNING: &[&str] = &["num_running_reqs"];

const ROWS: &[Row] = &[
    Row::number(KV_USAGE, Fold::Greatest, Source::Value, |load| &mut load.kv_usage),
    Row::number(KV_USAGE, Fold::Least, Source::Value, |load| &mut load.kv_usage_least),
    Row::sum(RUNNING, |load| &mut load.running),
    Row::number(RUNNING, Fold::Count, Source::Value, |load| &mut load.engines),
    Row::sum(&["num_queue_reqs"], |load| &mut load.waiting),
    Row::sum(&["num_retracted_requests_total"], |load| &mut load.preemptions),
    Row::sum(&["prompt_tokens_total"], |load| &mut load.prompt_tokens),
    Row::sum(&["generation_tokens_total"], |load| &mut load.generation_tokens),
    Row::number(&["page_size"], Fold::Greatest, Source::Value, |load| &mut load.block_size),
    // Until 0.5.9, in place of the gauge.
    Row::number(&["cache_config_info"], Fold::Greatest, Source::Label("page_size"), |load| {
        &mut load.block_size
    }),
    Row::sum(&["num_pages"], |load| &mut load.blocks),
    Row::sum(&["max_total_num_tokens"], |load| &mut load.kv_tokens),
    Row::sum(&["queue_time_seconds_sum"], |load| &mut load.queue_seconds),
    Row::sum(&["queue_time_seconds_count"], |load| &mut load.queued),
];
