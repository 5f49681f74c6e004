//! The schema of the responses of one API: the meaning of each field that is read.

use crate::json::PathTable;
use crate::openai::OutputKind;

/// How to parse the responses of one [`Api`].
pub(in crate::openai) struct ResponseSchema {
    /// The fields to read, of events and of complete responses.
    pub(in crate::openai) paths: PathTable<ResponseField>,
    /// The kind of output that an event of this type carries. `None`: the kind follows from the
    /// fields of the event, not from its type.
    pub(in crate::openai) output_type: Option<fn(&str) -> Option<OutputKind>>,
    /// The types of the events that end a stream. Streams of APIs without event types end with
    /// `[DONE]`.
    pub(in crate::openai) terminal_types: &'static [&'static str],
    /// The input token count that the API reports excludes cached tokens. Only Anthropic's API
    /// counts in this way.
    pub(in crate::openai) input_leaves_out_cache: bool,
}

/// The meaning of a field, independent of its name in an API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::openai) enum ResponseField {
    Id,
    Model,
    EventType,
    /// The array of choices.
    Choices,
    /// One element of the array of choices.
    Choice,
    Index,
    Role,
    /// Output text, or an object that represents output, such as a tool call.
    Output(OutputKind),
    /// Text of a model refusal.
    Refusal,
    /// Arguments of a tool call.
    Arguments,
    /// Text in an event whose type, not whose field, determines the kind of output.
    Text,
    /// A content part of a complete Responses response.
    ContentPart,
    /// The type of a content part, such as `output_text`.
    ContentPartType,
    /// The array of token ids or logprobs.
    Tokens,
    /// One element of the array of token ids or logprobs.
    Token,
    /// A finish reason with the name that the API gives it.
    FinishReason,
    /// The `status` of a Responses response.
    Status,
    IncompleteReason,
    Usage,
    Input,
    OutputTokens,
    TotalTokens,
    Cached,
    CacheCreated,
    Reasoning,
    QueueMillis,
    PrefillMillis,
    DecodeMillis,
    Error,
    ErrorCode,
    ErrorKind,
}

impl std::fmt::Debug for ResponseSchema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseSchema").finish_non_exhaustive()
    }
}

impl ResponseSchema {
    /// A schema with these fields. Its events have no types, and its streams end with `[DONE]`.
    pub(super) fn new(fields: &[&[(&'static str, ResponseField)]]) -> Self {
        Self {
            paths: PathTable::new(fields),
            output_type: None,
            terminal_types: &[],
            input_leaves_out_cache: false,
        }
    }
}

impl ResponseField {
    /// Whether the value is text that a model generated.
    pub(in crate::openai) const fn is_text(self) -> bool {
        matches!(self, Self::Output(_) | Self::Refusal | Self::Arguments | Self::Text)
    }
}
