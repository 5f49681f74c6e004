//! Response schema of the Anthropic Messages API.
//!
//! Events have types, and streams have no `[DONE]`. A failure is an `error` event and a clean end
//! of the stream. The `output_tokens` of `message_start` are a placeholder, so they are not read.

use super::schema::{ResponseField, ResponseSchema};
use crate::openai::OutputKind;
use std::sync::LazyLock;

pub(super) static SHAPE: LazyLock<ResponseSchema> = LazyLock::new(|| ResponseSchema {
    terminal_types: &["message_stop", "error"],
    input_leaves_out_cache: true,
    ..ResponseSchema::new(&[FIELDS])
});

const FIELDS: &[(&str, ResponseField)] = &[
    ("type", ResponseField::EventType),
    ("id", ResponseField::Id),
    ("model", ResponseField::Model),
    ("stop_reason", ResponseField::FinishReason),
    ("usage.input_tokens", ResponseField::Input),
    ("usage.output_tokens", ResponseField::OutputTokens),
    ("usage.cache_read_input_tokens", ResponseField::Cached),
    ("usage.cache_creation_input_tokens", ResponseField::CacheCreated),
    ("message.id", ResponseField::Id),
    ("message.model", ResponseField::Model),
    ("message.stop_reason", ResponseField::FinishReason),
    ("message.usage.input_tokens", ResponseField::Input),
    ("message.usage.cache_read_input_tokens", ResponseField::Cached),
    ("message.usage.cache_creation_input_tokens", ResponseField::CacheCreated),
    ("content[].text", ResponseField::Output(OutputKind::Text)),
    ("content[].input", ResponseField::Arguments),
    ("content[].thinking", ResponseField::Output(OutputKind::Reasoning)),
    ("delta.stop_reason", ResponseField::FinishReason),
    ("delta.text", ResponseField::Output(OutputKind::Text)),
    ("delta.partial_json", ResponseField::Arguments),
    ("delta.thinking", ResponseField::Output(OutputKind::Reasoning)),
    ("error", ResponseField::Error),
    ("error.code", ResponseField::ErrorCode),
    ("error.type", ResponseField::ErrorKind),
];
