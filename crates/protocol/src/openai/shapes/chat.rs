//! Response schema of chat completions, for events (`delta`) and complete responses (`message`) of
//! vLLM, SGLang, llama.cpp and OpenAI.
//!
//! Reasoning has two names: `reasoning` in vLLM, and the older `reasoning_content`.

use super::common_response;
use super::schema::{ResponseField, ResponseSchema};
use crate::openai::OutputKind;
use std::sync::LazyLock;

pub(super) static SHAPE: LazyLock<ResponseSchema> =
    LazyLock::new(|| common_response::chunk_schema(CHOICE_FIELDS, &[]));

const CHOICE_FIELDS: &[(&str, ResponseField)] = &[
    ("choices[].delta.role", ResponseField::Role),
    ("choices[].delta.content", ResponseField::Output(OutputKind::Text)),
    // `content` can be a list of parts.
    ("choices[].delta.content[]", ResponseField::Output(OutputKind::Unknown)),
    ("choices[].delta.content[].text", ResponseField::Output(OutputKind::Text)),
    ("choices[].delta.refusal", ResponseField::Refusal),
    ("choices[].delta.tool_calls", ResponseField::Output(OutputKind::ToolCall)),
    ("choices[].delta.tool_calls[]", ResponseField::Output(OutputKind::ToolCall)),
    ("choices[].delta.function_call", ResponseField::Output(OutputKind::ToolCall)),
    ("choices[].delta.reasoning", ResponseField::Output(OutputKind::Reasoning)),
    ("choices[].delta.reasoning_content", ResponseField::Output(OutputKind::Reasoning)),
    ("choices[].message", ResponseField::Delta),
    ("choices[].message.role", ResponseField::Role),
    ("choices[].message.*", ResponseField::UnknownOutput),
    ("choices[].message.content", ResponseField::Output(OutputKind::Text)),
    ("choices[].message.content[]", ResponseField::Output(OutputKind::Unknown)),
    ("choices[].message.content[].text", ResponseField::Output(OutputKind::Text)),
    ("choices[].message.refusal", ResponseField::Refusal),
    ("choices[].message.tool_calls[]", ResponseField::Output(OutputKind::ToolCall)),
    ("choices[].message.function_call", ResponseField::Output(OutputKind::ToolCall)),
    ("choices[].message.reasoning", ResponseField::Output(OutputKind::Reasoning)),
    ("choices[].message.reasoning_content", ResponseField::Output(OutputKind::Reasoning)),
    ("choices[].token_ids", ResponseField::Tokens),
    ("choices[].token_ids[]", ResponseField::Token),
    ("choices[].logprobs.content", ResponseField::Tokens),
    ("choices[].logprobs.content[]", ResponseField::Token),
];
