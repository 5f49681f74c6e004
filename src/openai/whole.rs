//! Every other inference answer: embeddings, scores, ranks, pooled states, transcriptions. Only
//! usage and errors are read.

use super::{Shape, Signal};
use crate::json::Paths;
use std::sync::LazyLock;

pub(super) static SHAPE: LazyLock<Shape> = LazyLock::new(|| Shape {
    paths: Paths::new(&[TABLE]),
    output_type: None,
    terminal_types: &[],
    input_leaves_out_cache: false,
});

/// What chat and completions have besides their choices, too.
pub(super) const TABLE: &[(&str, Signal)] = &[
    ("id", Signal::Id),
    ("model", Signal::Model),
    ("usage.prompt_tokens", Signal::Input),
    ("usage.completion_tokens", Signal::OutputTokens),
    ("usage.prompt_tokens_details.cached_tokens", Signal::Cached),
    // vLLM's own.
    ("usage.prompt_tokens_details.created_cache_tokens", Signal::CacheCreated),
    ("usage.completion_tokens_details.reasoning_tokens", Signal::Reasoning),
    ("error", Signal::Error),
    ("error.code", Signal::ErrorCode),
    ("error.type", Signal::ErrorKind),
];
