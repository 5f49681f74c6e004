//! Text completions, streamed and whole. There is no role event; several prompts in one request
//! are several choices.

use super::{Channel, Shape, Signal, whole};
use crate::json::Paths;
use std::sync::LazyLock;

pub(super) static SHAPE: LazyLock<Shape> = LazyLock::new(|| Shape {
    paths: Paths::new(&[CHOICES, whole::TABLE]),
    output_type: None,
    terminal_types: &[],
    input_leaves_out_cache: false,
});

const CHOICES: &[(&str, Signal)] = &[
    ("choices", Signal::Choices),
    ("choices[]", Signal::Choice),
    ("choices[].index", Signal::Index),
    ("choices[].text", Signal::Output(Channel::Answer)),
    ("choices[].finish_reason", Signal::Finish),
    ("choices[].token_ids", Signal::Tokens),
    ("choices[].token_ids[]", Signal::Token),
    ("choices[].logprobs.tokens", Signal::Tokens),
    ("choices[].logprobs.tokens[]", Signal::Token),
];
