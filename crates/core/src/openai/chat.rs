//! Chat completions, streamed (`delta`) and whole (`message`), as vLLM, SGLang, llama.cpp and
//! OpenAI send them. Reasoning has two names: `reasoning` is vLLM's, `reasoning_content` the older.

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
    ("choices[].delta.role", Signal::Role),
    ("choices[].delta.content", Signal::Output(Channel::Answer)),
    ("choices[].delta.refusal", Signal::Refusal),
    ("choices[].delta.tool_calls[]", Signal::Output(Channel::Answer)),
    ("choices[].delta.function_call", Signal::Output(Channel::Answer)),
    ("choices[].delta.reasoning", Signal::Output(Channel::Reasoning)),
    ("choices[].delta.reasoning_content", Signal::Output(Channel::Reasoning)),
    ("choices[].message.content", Signal::Output(Channel::Answer)),
    ("choices[].message.refusal", Signal::Refusal),
    ("choices[].message.tool_calls[]", Signal::Output(Channel::Answer)),
    ("choices[].message.function_call", Signal::Output(Channel::Answer)),
    ("choices[].message.reasoning", Signal::Output(Channel::Reasoning)),
    ("choices[].message.reasoning_content", Signal::Output(Channel::Reasoning)),
    ("choices[].finish_reason", Signal::Finish),
    ("choices[].token_ids", Signal::Tokens),
    ("choices[].token_ids[]", Signal::Token),
    ("choices[].logprobs.content", Signal::Tokens),
    ("choices[].logprobs.content[]", Signal::Token),
];
