//! Response schema of chat completions, for events (`delta`) and complete responses (`message`) of
//! vLLM, SGLang, llama.cpp and OpenAI.
//!
//! Reasoning has two names: `reasoning` in vLLM, and the older `reasoning_content`.

use super::common_response;
use super::schema::{ObjectFields, REASONING, ResponseField, ResponseSchema, TEXT};
use crate::openai::OutputKind;
use std::sync::LazyLock;

pub(super) static SHAPE: LazyLock<ResponseSchema> =
    LazyLock::new(|| common_response::chunk_schema(FIELDS, &[]));

const FIELDS: &[ObjectFields] = &[
    ("choices[].delta", MESSAGE_FIELDS),
    ("choices[].message", MESSAGE_FIELDS),
    ("", CHOICE_FIELDS),
];

/// The fields of a message, and of the part of a message that a chunk has.
const MESSAGE_FIELDS: &[(&str, ResponseField)] = &[
    ("role", ResponseField::Role),
    ("content", TEXT),
    // `content` can be a list of parts.
    ("content[]", ResponseField::Output(OutputKind::Unknown)),
    ("content[].text", TEXT),
    ("refusal", ResponseField::Refusal),
    ("tool_calls[]", ResponseField::Output(OutputKind::ToolCall)),
    ("function_call", ResponseField::Output(OutputKind::ToolCall)),
    ("reasoning", REASONING),
    ("reasoning_content", REASONING),
];

const CHOICE_FIELDS: &[(&str, ResponseField)] = &[
    (
        "choices[].delta.tool_calls",
        ResponseField::Output(OutputKind::ToolCall),
    ),
    ("choices[].message", ResponseField::Delta),
    ("choices[].message.*", ResponseField::UnknownOutput),
    ("choices[].token_ids", ResponseField::Tokens),
    ("choices[].token_ids[]", ResponseField::Token),
    ("choices[].logprobs.content", ResponseField::Tokens),
    ("choices[].logprobs.content[]", ResponseField::Token),
];
