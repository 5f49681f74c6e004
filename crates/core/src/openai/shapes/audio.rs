//! Response schema of the audio APIs: transcriptions and translations of speech.
//!
//! vLLM streams events like those of chat completions, with a finish reason for each segment of a
//! long recording. OpenAI streams typed events. A complete response has one `text`, and its usage
//! may count seconds instead of tokens.

use super::common_response;
use super::schema::{ResponseField, ResponseSchema};
use crate::openai::OutputKind;
use std::sync::LazyLock;

pub(super) static SHAPE: LazyLock<ResponseSchema> = LazyLock::new(|| ResponseSchema {
    terminal_types: &["transcript.text.done"],
    ..ResponseSchema::new(&[FIELDS, common_response::COMMON_FIELDS])
});

const FIELDS: &[(&str, ResponseField)] = &[
    ("type", ResponseField::EventType),
    ("choices", ResponseField::Choices),
    ("choices[]", ResponseField::Choice),
    ("choices[].index", ResponseField::Index),
    ("choices[].delta.content", ResponseField::Output(OutputKind::Text)),
    ("choices[].finish_reason", ResponseField::FinishReason),
    ("delta", ResponseField::Output(OutputKind::Text)),
    ("text", ResponseField::Output(OutputKind::Text)),
    // Names in OpenAI's events.
    ("usage.input_tokens", ResponseField::Input),
    ("usage.output_tokens", ResponseField::OutputTokens),
];
