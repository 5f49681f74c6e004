//! Response schema of the Anthropic Messages API.
//!
//! Events have types, and a stream has no `[DONE]`. After a failure, the stream has an `error` event and ends
//! regularly. The gateway does not read `output_tokens` of `message_start`, because it is a placeholder.

use super::common_response::{CHUNK_ROLE, ERROR_DETAILS, ERROR_FIELDS, FOREIGN_CHUNK_FIELDS};
use super::schema::{EventOutput, REASONING, ResponseField, ResponseSchema, TEXT};
use crate::openai::OutputKind;
use std::sync::LazyLock;

pub(super) static SHAPE: LazyLock<ResponseSchema> = LazyLock::new(|| ResponseSchema {
    terminal_types: &["message_stop", "error"],
    event_output,
    input_leaves_out_cache: true,
    ..ResponseSchema::new(
        &[
            ("", FIELDS),
            ("", ERROR_FIELDS),
            ("", MESSAGE_FIELDS),
            ("message", MESSAGE_FIELDS),
            ("", FOREIGN_CHUNK_FIELDS),
        ],
        &[METADATA, ERROR_DETAILS, &[CHUNK_ROLE]],
    )
});

/// The output that the type of an event implies. An event of an unknown type counts as output.
fn event_output(event: &str) -> EventOutput {
    match event {
        "message_start"
        | "content_block_start"
        | "content_block_stop"
        | "message_delta"
        | "message_stop" => EventOutput::Nothing,
        "" | "content_block_delta" => EventOutput::Fields,
        _ => EventOutput::Kind(OutputKind::Unknown),
    }
}

/// Fields that describe the message, a block or a delta and are not output.
const METADATA: &[&str] = &[
    "index",
    "role",
    "created",
    "container",
    "context_management",
    "stop_sequence",
    "stop_details",
    "usage",
    "content[].type",
    "content[].id",
    "content[].name",
    "message",
    "content_block.type",
    "content_block.id",
    "content_block.name",
    "content_block.caller",
    "delta.type",
    "delta.stop_sequence",
    "delta.stop_details",
    "delta.container",
];

const FIELDS: &[(&str, ResponseField)] = &[
    ("type", ResponseField::EventType),
    ("object", ResponseField::ObjectType),
    ("code", ResponseField::FlatErrorCode),
    ("usage.output_tokens", ResponseField::OutputTokens),
    ("content[].*", ResponseField::UnknownOutput),
    ("content_block", ResponseField::Delta),
    ("content_block.*", ResponseField::UnknownOutput),
    ("*", ResponseField::Unknown),
    ("delta", ResponseField::Delta),
    ("delta.*", ResponseField::UnknownOutput),
    ("content[].text", TEXT),
    ("content[].input", ResponseField::Arguments),
    ("content[].thinking", REASONING),
    ("delta.stop_reason", ResponseField::FinishReason),
    ("delta.text", TEXT),
    ("delta.partial_json", ResponseField::Arguments),
    ("delta.thinking", REASONING),
    // A signature or a citation contains no token, but it is content for the client.
    ("delta.signature", REASONING),
    ("delta.citation", TEXT),
];

/// The fields of a message besides its content. Both a complete message and the message at the start of a
/// stream have them.
const MESSAGE_FIELDS: &[(&str, ResponseField)] = &[
    ("id", ResponseField::Id),
    ("model", ResponseField::Model),
    ("stop_reason", ResponseField::FinishReason),
    ("usage.input_tokens", ResponseField::InputTokens),
    ("usage.cache_read_input_tokens", ResponseField::CachedTokens),
    (
        "usage.cache_creation_input_tokens",
        ResponseField::CacheCreatedTokens,
    ),
];
