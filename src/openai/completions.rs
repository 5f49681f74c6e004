//! Text completions, streamed and whole. There is no role event; several prompts in one request
//! are several choices.

use super::{Channel, Shape, Signal};
use crate::json::Paths;
use std::sync::LazyLock;

pub(super) static SHAPE: LazyLock<Shape> = LazyLock::new(|| Shape {
    paths: Paths::new(TABLE),
    output_type: None,
    terminal_types: &[],
    input_leaves_out_cache: false,
});

const TABLE: &[(&str, Signal)] = &[
    ("id", Signal::Id),
    ("model", Signal::Model),
    ("choices[]", Signal::Choice),
    ("choices[].index", Signal::Index),
    ("choices[].text", Signal::Output(Channel::Answer)),
    ("choices[].finish_reason", Signal::Finish),
    ("choices[].token_ids", Signal::Tokens),
    ("choices[].token_ids[]", Signal::Token),
    ("choices[].logprobs.tokens", Signal::Tokens),
    ("choices[].logprobs.tokens[]", Signal::Token),
    ("usage.prompt_tokens", Signal::Input),
    ("usage.completion_tokens", Signal::OutputTokens),
    ("usage.prompt_tokens_details.cached_tokens", Signal::Cached),
    ("usage.prompt_tokens_details.created_cache_tokens", Signal::CacheCreated),
    ("usage.completion_tokens_details.reasoning_tokens", Signal::Reasoning),
    ("error", Signal::Error),
    ("error.code", Signal::ErrorCode),
    ("error.type", Signal::ErrorKind),
];
