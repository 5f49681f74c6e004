//! Response schema of the Responses API.
//!
//! Events have types. The first events arrive before the engine runs, and `*.done` events repeat the content of
//! `*.delta` events. The `status` field, not the event type, shows how the response ended: vLLM 0.32 names the
//! last event `response.completed` even if the response is incomplete.

use super::common_response::{CHUNK_ROLE, ERROR_DETAILS, ERROR_FIELDS, FOREIGN_CHUNK_FIELDS};
use super::schema::{EventOutput, ResponseField, ResponseSchema, TEXT};
use crate::openai::OutputKind;
use std::sync::LazyLock;

pub(super) static SHAPE: LazyLock<ResponseSchema> = LazyLock::new(|| ResponseSchema {
    event_output,
    has_typed_text: true,
    terminal_types: &[
        "response.completed",
        "response.incomplete",
        "response.failed",
        "response.cancelled",
        "error",
    ],
    ..ResponseSchema::new(
        &[
            ("", FIELDS),
            ("", RESPONSE_FIELDS),
            ("", ERROR_FIELDS),
            ("response", RESPONSE_FIELDS),
            ("response", ERROR_FIELDS),
            ("", FOREIGN_CHUNK_FIELDS),
        ],
        &[METADATA, DOCUMENT_METADATA, ERROR_DETAILS, &[CHUNK_ROLE]],
    )
});

/// Types of the events that carry answer text.
pub(crate) const TEXT_EVENT_TYPES: [&str; 2] = ["response.output_text.delta", REFUSAL_EVENT_TYPE];

/// Type of the events that carry text of a model refusal.
pub(crate) const REFUSAL_EVENT_TYPE: &str = "response.refusal.delta";

fn event_output(event: &str) -> EventOutput {
    let Some(item) = event.strip_prefix("response.") else {
        let other = EventOutput::Kind(OutputKind::Unknown);
        return if event.is_empty() {
            EventOutput::Fields
        } else {
            other
        };
    };
    let kind = match item {
        "created"
        | "queued"
        | "in_progress"
        | "output_item.added"
        | "content_part.added"
        | "reasoning_part.added"
        | "reasoning_summary_part.added" => return EventOutput::Nothing,
        _ if item.strip_suffix(".done").is_some() || TERMINAL_ITEMS.contains(&item) => {
            return EventOutput::Repetition;
        }
        _ if item.contains("reasoning") => OutputKind::Reasoning,
        // An event about a tool call, such as `response.web_search_call.searching`, follows tokens that the
        // engine generated.
        _ if item.contains("_call") => OutputKind::ToolCall,
        "output_text.delta" | "refusal.delta" => OutputKind::Text,
        _ => OutputKind::Unknown,
    };
    EventOutput::Kind(kind)
}

/// The types of the terminal events without their prefix `response.`.
const TERMINAL_ITEMS: [&str; 4] = ["completed", "incomplete", "failed", "cancelled"];

/// Fields that describe the response, an item or a part and are not output.
const METADATA: &[&str] = &[
    "sequence_number",
    "output_index",
    "content_index",
    "summary_index",
    "item_id",
    "obfuscation",
    "response",
    "item.id",
    "item.type",
    "item.status",
    "item.role",
    "item.phase",
    "item.name",
    "item.namespace",
    "item.call_id",
    "item.server_label",
    "part.type",
    "part.id",
];

/// Fields of a complete response that describe it or repeat the request and are not output.
const DOCUMENT_METADATA: &[&str] = &[
    "created",
    "created_at",
    "completed_at",
    "background",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "reasoning",
    "service_tier",
    "temperature",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
];

const FIELDS: &[(&str, ResponseField)] = &[
    ("type", ResponseField::EventType),
    ("object", ResponseField::ObjectType),
    // Fields of complete responses.
    ("output", ResponseField::Answer),
    ("output[].content[]", ResponseField::ContentPart),
    ("output[].content[].type", ResponseField::ContentPartType),
    ("output[].content[].text", TEXT),
    ("output[].content[].refusal", ResponseField::Refusal),
    ("output[].arguments", ResponseField::Arguments),
    // A field of the `error` event.
    ("code", ResponseField::FlatErrorCode),
    ("message", ResponseField::ErrorMessage),
    // Fields of events with further output.
    ("delta", ResponseField::Text),
    ("*", ResponseField::Unknown),
    // Fields of events that begin an item or a part.
    ("item", ResponseField::Delta),
    ("item.*", ResponseField::UnknownOutput),
    ("part", ResponseField::Delta),
    ("part.*", ResponseField::UnknownOutput),
    // A field of the events that contain the whole response so far.
    (
        "response.output[]",
        ResponseField::Output(OutputKind::Unknown),
    ),
];

/// The fields of a response besides its output. Both a complete response and the response inside an event have
/// them.
const RESPONSE_FIELDS: &[(&str, ResponseField)] = &[
    ("id", ResponseField::Id),
    ("model", ResponseField::Model),
    ("status", ResponseField::Status),
    ("incomplete_details.reason", ResponseField::IncompleteReason),
    ("usage.input_tokens", ResponseField::InputTokens),
    ("usage.output_tokens", ResponseField::OutputTokens),
    (
        "usage.input_tokens_details.cached_tokens",
        ResponseField::CachedTokens,
    ),
    (
        "usage.output_tokens_details.reasoning_tokens",
        ResponseField::ReasoningTokens,
    ),
];
