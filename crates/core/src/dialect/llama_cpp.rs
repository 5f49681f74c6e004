//! llama.cpp's server with `--metrics`. Builds since the unified cache do not tell how full it is.

use super::Server;
use super::table::{Dialect, Fold, Row, Source};

pub(super) static DIALECT: Dialect = Dialect::new(Some(Server::LlamaCpp), "llamacpp", ROWS);

const KV_USAGE: &[&str] = &["kv_cache_usage_ratio"];
const RUNNING: &[&str] = &["requests_processing"];

const ROWS: &[Row] = &[
    Row::number(KV_USAGE, Fold::Greatest, Source::Value, |load| &mut load.kv_usage),
    Row::number(KV_USAGE, Fold::Least, Source::Value, |load| &mut load.kv_usage_least),
    Row::sum(RUNNING, |load| &mut load.running),
    Row::number(RUNNING, Fold::Count, Source::Value, |load| &mut load.engines),
    Row::sum(&["requests_deferred"], |load| &mut load.waiting),
    Row::sum(&["prompt_tokens_total"], |load| &mut load.prompt_tokens),
    Row::sum(&["tokens_predicted_total"], |load| &mut load.generation_tokens),
];
