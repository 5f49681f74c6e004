//! The metrics of the llama.cpp server with `--metrics`. Builds since the unified KV cache do not
//! report its usage.

use crate::dialect::EngineKind;
use crate::dialect::table::{Aggregation, MetricRow, MetricsDialect, ValueSource};

pub(super) static DIALECT: MetricsDialect =
    MetricsDialect::new(Some(EngineKind::LlamaCpp), "llamacpp", ROWS);

const KV_USAGE: &[&str] = &["kv_cache_usage_ratio"];
const RUNNING: &[&str] = &["requests_processing"];

const ROWS: &[MetricRow] = &[
    MetricRow::number(KV_USAGE, Aggregation::Max, ValueSource::Value, |load| &mut load.kv_usage),
    MetricRow::number(KV_USAGE, Aggregation::Min, ValueSource::Value, |load| {
        &mut load.min_kv_usage
    }),
    MetricRow::sum(RUNNING, |load| &mut load.running),
    MetricRow::number(RUNNING, Aggregation::Count, ValueSource::Value, |load| &mut load.engines),
    MetricRow::sum(&["requests_deferred"], |load| &mut load.waiting),
    MetricRow::sum(&["prompt_tokens_total"], |load| &mut load.prompt_tokens),
    MetricRow::sum(&["tokens_predicted_total"], |load| &mut load.generation_tokens),
];
