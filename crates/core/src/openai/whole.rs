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
    ("usage", Signal::Usage),
    ("usage.prompt_tokens", Signal::Input),
    ("usage.completion_tokens", Signal::OutputTokens),
    ("usage.total_tokens", Signal::TotalTokens),
    ("usage.prompt_tokens_details.cached_tokens", Signal::Cached),
    // vLLM's own.
    ("usage.prompt_tokens_details.created_cache_tokens", Signal::CacheCreated),
    ("usage.completion_tokens_details.reasoning_tokens", Signal::Reasoning),
    // SGLang's.
    ("usage.reasoning_tokens", Signal::Reasoning),
    // Cohere's, for embeddings.
    ("meta.billed_units.input_tokens", Signal::Input),
    // How long the engine took: vLLM's names, then llama.cpp's.
    ("metrics.queue_time_ms", Signal::QueueMillis),
    ("metrics.time_to_first_token_ms", Signal::PrefillMillis),
    ("metrics.generation_time_ms", Signal::DecodeMillis),
    ("timings.prompt_ms", Signal::PrefillMillis),
    ("timings.predicted_ms", Signal::DecodeMillis),
    ("error", Signal::Error),
    ("error.code", Signal::ErrorCode),
    ("error.type", Signal::ErrorKind),
];
