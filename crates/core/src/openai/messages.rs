//! Anthropic messages. Typed events without `[DONE]`; a failure is an `error` event and a clean
//! end. The `output_tokens` of `message_start` is a placeholder, so it is not read.

use super::{Channel, Shape, Signal};
use crate::json::Paths;
use std::sync::LazyLock;

pub(super) static SHAPE: LazyLock<Shape> = LazyLock::new(|| Shape {
    paths: Paths::new(&[TABLE]),
    output_type: None,
    terminal_types: &["message_stop", "error"],
    input_leaves_out_cache: true,
});

const TABLE: &[(&str, Signal)] = &[
    ("type", Signal::EventType),
    ("id", Signal::Id),
    ("model", Signal::Model),
    ("stop_reason", Signal::Finish),
    ("usage.input_tokens", Signal::Input),
    ("usage.output_tokens", Signal::OutputTokens),
    ("usage.cache_read_input_tokens", Signal::Cached),
    ("usage.cache_creation_input_tokens", Signal::CacheCreated),
    ("message.id", Signal::Id),
    ("message.model", Signal::Model),
    ("message.stop_reason", Signal::Finish),
    ("message.usage.input_tokens", Signal::Input),
    ("message.usage.cache_read_input_tokens", Signal::Cached),
    ("message.usage.cache_creation_input_tokens", Signal::CacheCreated),
    ("content[].text", Signal::Output(Channel::Answer)),
    ("content[].input", Signal::Arguments),
    ("content[].thinking", Signal::Output(Channel::Reasoning)),
    ("delta.stop_reason", Signal::Finish),
    ("delta.text", Signal::Output(Channel::Answer)),
    ("delta.partial_json", Signal::Arguments),
    ("delta.thinking", Signal::Output(Channel::Reasoning)),
    ("error", Signal::Error),
    ("error.code", Signal::ErrorCode),
    ("error.type", Signal::ErrorKind),
];
