//! Response schema of the audio APIs: transcriptions and translations of speech.
//!
//! vLLM streams events like those of chat completions, with a finish reason for each segment of a
//! long recording. OpenAI streams typed events. A complete response has one `text`, and its usage
//! may count seconds instead of tokens.

use super::common_response;
use super::schema::{EventOutput, ResponseField, ResponseSchema, TEXT};
use std::sync::LazyLock;

pub(super) static SHAPE: LazyLock<ResponseSchema> = LazyLock::new(|| ResponseSchema {
    terminal_types: &["transcript.text.done"],
    event_output: |event| match event {
        "transcript.text.done" => EventOutput::Repetition,
        _ => EventOutput::Fields,
    },
    has_plain_text: true,
    ..common_response::chunk_schema(&[("", FIELDS)], METADATA)
});

/// Fields of OpenAI's events that describe the text and are not output.
const METADATA: &[&str] = &["logprobs", "segment_id"];

const FIELDS: &[(&str, ResponseField)] = &[
    ("choices[].delta.content", TEXT),
    ("delta", TEXT),
    // The recording can be silent, so an empty text is an answer.
    ("text", ResponseField::Transcript),
    // The names of the token counts in OpenAI's events.
    ("usage.input_tokens", ResponseField::InputTokens),
    ("usage.output_tokens", ResponseField::OutputTokens),
];
