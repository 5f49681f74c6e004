//! Response schema of text completions, for events and complete responses.
//!
//! Streams have no role event. Each prompt of a request with several prompts has its own choices.

use super::common_response;
use super::schema::{ResponseField, ResponseSchema, TEXT};
use crate::openai::OutputKind;
use std::sync::LazyLock;

pub(super) static SHAPE: LazyLock<ResponseSchema> = LazyLock::new(|| {
    common_response::chunk_schema(&[("", CHOICE_FIELDS)], &[common_response::CHUNK_ROLE])
});

const CHOICE_FIELDS: &[(&str, ResponseField)] = &[
    ("choices[].text", TEXT),
    (
        "choices[].text[]",
        ResponseField::Output(OutputKind::Unknown),
    ),
    ("choices[].token_ids", ResponseField::Tokens),
    ("choices[].token_ids[]", ResponseField::Token),
    ("choices[].logprobs.tokens", ResponseField::Tokens),
    ("choices[].logprobs.tokens[]", ResponseField::Token),
];
