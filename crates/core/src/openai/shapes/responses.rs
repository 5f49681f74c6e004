//! Response schema of the Responses API.
//!
//! Events have types. The first events arrive before the engine runs, so only `*.delta` events are
//! output. The `status` field decides how the response ended, not the event type: vLLM names the
//! last event `response.completed` even if the response is incomplete.

use super::schema::{ResponseField, ResponseSchema};
use crate::openai::OutputKind;
use std::sync::LazyLock;

pub(super) static SHAPE: LazyLock<ResponseSchema> = LazyLock::new(|| ResponseSchema {
    output_type: Some(output_type),
    terminal_types: &[
        "response.completed",
        "response.incomplete",
        "response.failed",
        "response.cancelled",
        "error",
    ],
    ..ResponseSchema::new(&[FIELDS])
});

/// Types of the events that carry answer text.
pub(in crate::openai) const TEXT_EVENT_TYPES: [&str; 2] =
    ["response.output_text.delta", REFUSAL_EVENT_TYPE];

/// Type of the events that carry text of a model refusal.
pub(in crate::openai) const REFUSAL_EVENT_TYPE: &str = "response.refusal.delta";

fn output_type(event: &str) -> Option<OutputKind> {
    let item = event.strip_prefix("response.")?.strip_suffix(".delta")?;
    Some(match item {
        _ if item.contains("reasoning") => OutputKind::Reasoning,
        _ if item.contains("_call") => OutputKind::ToolCall,
        _ => OutputKind::Text,
    })
}

const FIELDS: &[(&str, ResponseField)] = &[
    ("type", ResponseField::EventType),
    // Complete responses.
    ("id", ResponseField::Id),
    ("model", ResponseField::Model),
    ("status", ResponseField::Status),
    ("incomplete_details.reason", ResponseField::IncompleteReason),
    ("output[].content[]", ResponseField::ContentPart),
    ("output[].content[].type", ResponseField::ContentPartType),
    ("output[].content[].text", ResponseField::Output(OutputKind::Text)),
    ("output[].content[].refusal", ResponseField::Refusal),
    ("output[].arguments", ResponseField::Arguments),
    ("usage.input_tokens", ResponseField::Input),
    ("usage.output_tokens", ResponseField::OutputTokens),
    ("usage.input_tokens_details.cached_tokens", ResponseField::Cached),
    ("usage.output_tokens_details.reasoning_tokens", ResponseField::Reasoning),
    ("error", ResponseField::Error),
    ("error.code", ResponseField::ErrorCode),
    ("error.type", ResponseField::ErrorKind),
    // The `error` event.
    ("code", ResponseField::ErrorCode),
    // Events with further output.
    ("delta", ResponseField::Text),
    // Events that contain the response so far.
    ("response.id", ResponseField::Id),
    ("response.model", ResponseField::Model),
    ("response.status", ResponseField::Status),
    ("response.incomplete_details.reason", ResponseField::IncompleteReason),
    ("response.usage.input_tokens", ResponseField::Input),
    ("response.usage.output_tokens", ResponseField::OutputTokens),
    ("response.usage.input_tokens_details.cached_tokens", ResponseField::Cached),
    ("response.usage.output_tokens_details.reasoning_tokens", ResponseField::Reasoning),
    ("response.error", ResponseField::Error),
    ("response.error.code", ResponseField::ErrorCode),
    ("response.error.type", ResponseField::ErrorKind),
];
