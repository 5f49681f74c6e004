//! Hugging Face's text-generation-inference. It does not tell how full its KV cache is, and its
//! gauges appear with the first request.

use super::Server;
use super::table::{Dialect, Fold, Row, Source};

pub(super) static DIALECT: Dialect = Dialect::new(Some(Server::Tgi), "tgi", ROWS);

const RUNNING: &[&str] = &["batch_current_size"];

const ROWS: &[Row] = &[
    Row::sum(RUNNING, |load| &mut load.running),
    Row::number(RUNNING, Fold::Count, Source::Value, |load| &mut load.engines),
    Row::sum(&["queue_size"], |load| &mut load.waiting),
    Row::sum(&["request_input_length_sum"], |load| &mut load.prompt_tokens),
    Row::sum(&["request_generated_tokens_sum"], |load| &mut load.generation_tokens),
    Row::sum(&["request_queue_duration_sum"], |load| &mut load.queue_seconds),
    Row::sum(&["request_queue_duration_count"], |load| &mut load.queued),
];
