//! Transcriptions and translations of speech. vLLM streams chunks like those of chat, with a finish
//! reason for each part of a long recording; `OpenAI` streams typed events. A whole answer has one
//! text, and may count seconds instead of tokens.

use super::{Channel, Shape, Signal, whole};
use crate::json::Paths;
use std::sync::LazyLock;

pub(super) static SHAPE: LazyLock<Shape> = LazyLock::new(|| Shape {
    paths: Paths::new(&[TABLE, whole::TABLE]),
    output_type: None,
    terminal_types: &["transcript.text.done"],
    input_leaves_out_cache: false,
});

const TABLE: &[(&str, Signal)] = &[
    ("type", Signal::EventType),
    ("choices", Signal::Choices),
    ("choices[]", Signal::Choice),
    ("choices[].index", Signal::Index),
    ("choices[].delta.content", Signal::Output(Channel::Answer)),
    ("choices[].finish_reason", Signal::Finish),
    ("delta", Signal::Output(Channel::Answer)),
    ("text", Signal::Output(Channel::Answer)),
    // OpenAI's names.
    ("usage.input_tokens", Signal::Input),
    ("usage.output_tokens", Signal::OutputTokens),
];
