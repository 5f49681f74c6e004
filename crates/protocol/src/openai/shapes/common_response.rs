//! Response fields that several APIs share, and the schema of responses of unknown format: embeddings, scores,
//! reranking, pooling, and the paths that the configuration adds. The gateway reads only ids, usage, times and
//! errors of these responses. Each event of such a stream is output, and the stream is complete when its body
//! ends regularly. In a complete response, each field that is not empty is an answer, unless it describes the
//! request.

use super::schema::{EventOutput, ObjectFields, ResponseField, ResponseSchema};
use crate::openai::OutputKind;
use std::sync::LazyLock;

pub(super) static SHAPE: LazyLock<ResponseSchema> = LazyLock::new(|| ResponseSchema {
    event_output: |_| EventOutput::Kind(OutputKind::Unknown),
    is_known: false,
    ..ResponseSchema::new(
        &[
            ("", COMMON_FIELDS),
            ("", ERROR_FIELDS),
            ("", UNKNOWN_FIELDS),
        ],
        &[REQUEST_METADATA],
    )
});

/// The fields of a response of unknown format that can be its answer: every field without a path of its own.
const UNKNOWN_FIELDS: &[(&str, ResponseField)] = &[
    ("type", ResponseField::EventType),
    ("code", ResponseField::FlatErrorCode),
    // Cohere's format: the embeddings are a list, or an object with a list for each data type.
    ("embeddings[]", ResponseField::Answer),
    ("embeddings.*", ResponseField::Answer),
    ("*", ResponseField::Answer),
];

/// Fields of a response of unknown format that describe the request and are not an answer.
const REQUEST_METADATA: &[&str] = &["created", "request_id", "meta", "texts"];

/// A schema of chunks with `choices`. `fields` and `metadata` are the fields that no other API has.
pub(super) fn chunk_schema(fields: &[ObjectFields], metadata: &[&'static str]) -> ResponseSchema {
    let fields = [
        &[("", CHUNK_FIELDS)][..],
        fields,
        &[("", COMMON_FIELDS), ("", ERROR_FIELDS)],
    ]
    .concat();
    ResponseSchema::new(&fields, &[CHUNK_METADATA, ERROR_DETAILS, metadata])
}

/// Fields of the chunks of vLLM, SGLang, OpenAI, Azure, Groq and `OpenRouter` that describe the request, the
/// server or the prompt and are not output.
const CHUNK_METADATA: &[&str] = &[
    "created",
    "system_fingerprint",
    "service_tier",
    "obfuscation",
    "kv_transfer_params",
    "ec_transfer_params",
    "prompt_token_ids",
    "prompt_text",
    "prompt_logprobs",
    "prompt_filter_results",
    "output_ids",
    "weight_versions",
    "metadata",
    "sglext",
    "nvext",
    "provider",
    "x_groq",
    "metrics",
    "timings",
    "meta",
    "choices[].logprobs",
    "choices[].stop_reason",
    "choices[].matched_stop",
    "choices[].native_finish_reason",
    "choices[].content_filter_results",
    "choices[].content_filter_offsets",
    "choices[].prompt_token_ids",
    "choices[].prompt_logprobs",
    "choices[].weight_versions",
    "choices[].routed_experts",
];

/// The field of a chat completion chunk that begins a choice.
pub(super) const CHUNK_ROLE: &str = "choices[].delta.role";

/// The output fields of chunks with `choices`, for APIs whose own responses have no `choices`: a proxy can
/// answer with them.
pub(super) const FOREIGN_CHUNK_FIELDS: &[(&str, ResponseField)] = &[
    ("choices[].text", ResponseField::UnknownOutput),
    ("choices[].delta.*", ResponseField::UnknownOutput),
    ("choices[].message", ResponseField::UnknownOutput),
];

/// Fields with which servers and proxies describe an error. They are not output.
pub(super) const ERROR_DETAILS: &[&str] = &[
    "param",
    "detail",
    "msg",
    "status",
    "statusCode",
    "status_code",
    "success",
    "title",
    "timestamp",
    "path",
];

/// The fields that all chunks have. The paths with a `*` match every field that no other path names: in a
/// chunk, in its choices and in the deltas of the choices.
const CHUNK_FIELDS: &[(&str, ResponseField)] = &[
    ("choices", ResponseField::Choices),
    ("choices[]", ResponseField::Choice),
    ("choices[].index", ResponseField::Index),
    ("choices[].delta", ResponseField::Delta),
    ("choices[].delta.*", ResponseField::UnknownOutput),
    ("choices[].finish_reason", ResponseField::FinishReason),
    ("choices[].*", ResponseField::Unknown),
    ("type", ResponseField::EventType),
    ("code", ResponseField::FlatErrorCode),
    // A text here describes an error.
    ("message", ResponseField::ErrorMessage),
    ("message.*", ResponseField::Unknown),
    ("*", ResponseField::Unknown),
];

/// The fields that the responses of chat completions, completions and audio have besides their
/// output.
const COMMON_FIELDS: &[(&str, ResponseField)] = &[
    ("id", ResponseField::Id),
    ("model", ResponseField::Model),
    ("object", ResponseField::ObjectType),
    ("usage", ResponseField::Usage),
    ("usage.prompt_tokens", ResponseField::InputTokens),
    ("usage.completion_tokens", ResponseField::OutputTokens),
    ("usage.total_tokens", ResponseField::TotalTokens),
    (
        "usage.prompt_tokens_details.cached_tokens",
        ResponseField::CachedTokens,
    ),
    // This field is an extension of vLLM.
    (
        "usage.prompt_tokens_details.created_cache_tokens",
        ResponseField::CacheCreatedTokens,
    ),
    (
        "usage.completion_tokens_details.reasoning_tokens",
        ResponseField::ReasoningTokens,
    ),
    // This field is an extension of SGLang.
    ("usage.reasoning_tokens", ResponseField::ReasoningTokens),
    // Cohere's format of embeddings and reranking.
    ("meta.billed_units.input_tokens", ResponseField::InputTokens),
    ("meta.tokens.input_tokens", ResponseField::InputTokens),
    ("meta.tokens.output_tokens", ResponseField::OutputTokens),
    // Times in the engine: `metrics` is vLLM's name, `timings` is llama.cpp's.
    ("metrics.queue_time_ms", ResponseField::QueueMillis),
    (
        "metrics.time_to_first_token_ms",
        ResponseField::PrefillMillis,
    ),
    ("metrics.generation_time_ms", ResponseField::DecodeMillis),
    ("timings.prompt_ms", ResponseField::PrefillMillis),
    ("timings.predicted_ms", ResponseField::DecodeMillis),
];

/// The description of an error, in the format of all APIs.
pub(super) const ERROR_FIELDS: &[(&str, ResponseField)] = &[
    ("error", ResponseField::Error),
    ("error.code", ResponseField::ErrorCode),
    ("error.type", ResponseField::ErrorType),
    ("error.message", ResponseField::ErrorMessage),
];
