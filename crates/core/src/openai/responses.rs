//! The Responses API. Its events have types; the first ones come before the engine runs, so only
//! a `*.delta` is output. The status decides how it ended: vLLM names the last event
//! `response.completed` even when the answer is incomplete.

use super::{Channel, Shape, Signal};
use crate::json::Paths;
use std::sync::LazyLock;

pub(super) static SHAPE: LazyLock<Shape> = LazyLock::new(|| Shape {
    paths: Paths::new(&[TABLE]),
    output_type: Some(output_type),
    terminal_types: &[
        "response.completed",
        "response.incomplete",
        "response.failed",
        "response.cancelled",
        "error",
    ],
    input_leaves_out_cache: false,
});

/// The types of the events whose text is the answer's.
pub(super) const TEXT_TYPES: [&str; 2] = ["response.output_text.delta", REFUSAL_TYPE];

/// The type of those in which the model says that it will not.
pub(super) const REFUSAL_TYPE: &str = "response.refusal.delta";

fn output_type(event: &str) -> Option<Channel> {
    let kind = event.strip_prefix("response.")?.strip_suffix(".delta")?;
    Some(if kind.contains("reasoning") { Channel::Reasoning } else { Channel::Answer })
}

const TABLE: &[(&str, Signal)] = &[
    ("type", Signal::EventType),
    // Whole answers.
    ("id", Signal::Id),
    ("model", Signal::Model),
    ("status", Signal::Status),
    ("incomplete_details.reason", Signal::IncompleteReason),
    ("output[].content[]", Signal::Block),
    ("output[].content[].type", Signal::BlockType),
    ("output[].content[].text", Signal::Output(Channel::Answer)),
    ("output[].content[].refusal", Signal::Refusal),
    ("output[].arguments", Signal::Arguments),
    ("usage.input_tokens", Signal::Input),
    ("usage.output_tokens", Signal::OutputTokens),
    ("usage.input_tokens_details.cached_tokens", Signal::Cached),
    ("usage.output_tokens_details.reasoning_tokens", Signal::Reasoning),
    ("error", Signal::Error),
    ("error.code", Signal::ErrorCode),
    ("error.type", Signal::ErrorKind),
    // The `error` event.
    ("code", Signal::ErrorCode),
    // Events that bring more of it.
    ("delta", Signal::Text),
    // Events that hold the answer so far.
    ("response.id", Signal::Id),
    ("response.model", Signal::Model),
    ("response.status", Signal::Status),
    ("response.incomplete_details.reason", Signal::IncompleteReason),
    ("response.usage.input_tokens", Signal::Input),
    ("response.usage.output_tokens", Signal::OutputTokens),
    ("response.usage.input_tokens_details.cached_tokens", Signal::Cached),
    ("response.usage.output_tokens_details.reasoning_tokens", Signal::Reasoning),
    ("response.error", Signal::Error),
    ("response.error.code", Signal::ErrorCode),
    ("response.error.type", Signal::ErrorKind),
];
