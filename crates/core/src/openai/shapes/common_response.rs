//! Response fields that several APIs share, and the schema of APIs without output to measure:
//! embeddings, scores, reranking, pooling. The gateway reads only ids, usage, times and errors of
//! these responses.

use super::schema::{ResponseField, ResponseSchema};
use std::sync::LazyLock;

pub(super) static SHAPE: LazyLock<ResponseSchema> =
    LazyLock::new(|| ResponseSchema::new(&[COMMON_FIELDS]));

/// The fields that the responses of chat completions, completions and audio have besides their
/// output.
pub(super) const COMMON_FIELDS: &[(&str, ResponseField)] = &[
    ("id", ResponseField::Id),
    ("model", ResponseField::Model),
    ("usage", ResponseField::Usage),
    ("usage.prompt_tokens", ResponseField::Input),
    ("usage.completion_tokens", ResponseField::OutputTokens),
    ("usage.total_tokens", ResponseField::TotalTokens),
    ("usage.prompt_tokens_details.cached_tokens", ResponseField::Cached),
    // vLLM's extension.
    ("usage.prompt_tokens_details.created_cache_tokens", ResponseField::CacheCreated),
    ("usage.completion_tokens_details.reasoning_tokens", ResponseField::Reasoning),
    // SGLang's extension.
    ("usage.reasoning_tokens", ResponseField::Reasoning),
    // Cohere's embeddings format.
    ("meta.billed_units.input_tokens", ResponseField::Input),
    // Times in the engine: `metrics` is vLLM's name, `timings` is llama.cpp's.
    ("metrics.queue_time_ms", ResponseField::QueueMillis),
    ("metrics.time_to_first_token_ms", ResponseField::PrefillMillis),
    ("metrics.generation_time_ms", ResponseField::DecodeMillis),
    ("timings.prompt_ms", ResponseField::PrefillMillis),
    ("timings.predicted_ms", ResponseField::DecodeMillis),
    ("error", ResponseField::Error),
    ("error.code", ResponseField::ErrorCode),
    ("error.type", ResponseField::ErrorKind),
];
