//! The metrics of Hugging Face's text-generation-inference (TGI). TGI does not report KV cache
//! usage, and exports its gauges only after the first request.

use crate::dialect::table::MetricRow;

const RUNNING: &[&str] = &["batch_current_size"];

pub(super) const ROWS: &[MetricRow] = &[
    MetricRow::running(RUNNING),
    MetricRow::engines(RUNNING),
    MetricRow::sum(&["queue_size"], |load| &mut load.waiting),
    MetricRow::sum(&["request_input_length_sum"], |load| {
        &mut load.prompt_tokens
    }),
    MetricRow::sum(&["request_generated_tokens_sum"], |load| {
        &mut load.generation_tokens
    }),
    MetricRow::sum(&["request_queue_duration_sum"], |load| {
        &mut load.queue_seconds
    }),
    MetricRow::sum(&["request_queue_duration_count"], |load| &mut load.queued),
];
