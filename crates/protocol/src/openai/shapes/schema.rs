//! The schema of the responses of one API: the meaning of each field that the gateway reads, and the fields and
//! events that carry no output.
//!
//! Servers add fields and events that the gateway does not know. An unknown field or event counts as output,
//! because the gateway could otherwise hold back an event that has output. So a schema must list the fields and
//! events without output.

use crate::json::PathTable;
use crate::openai::OutputKind;

/// How to parse the responses of one [`Api`].
#[derive(Debug)]
pub(crate) struct ResponseSchema {
    /// The fields to read, of events and of complete responses.
    pub paths: PathTable<ResponseField>,
    /// Maps the type of an event to the output that the type implies. The type is empty if the event has none.
    /// If the format is known, the function is not called for heartbeats.
    pub(super) event_output: fn(&str) -> EventOutput,
    /// The types of the events that end a stream. Streams of APIs without event types end with
    /// `[DONE]`.
    pub terminal_types: &'static [&'static str],
    /// Whether the format of the responses is known. `false`: each event is output, no data is malformed, and a
    /// response is complete when its body ends regularly.
    pub is_known: bool,
    /// Whether the type of an event, not the name of a field, shows which text is the answer.
    pub has_typed_text: bool,
    /// Whether a text without JSON can be an answer: a transcription can be plain text.
    pub has_plain_text: bool,
    /// Whether the input token count of the API excludes cached tokens. Only Anthropic's API counts in this
    /// way.
    pub input_leaves_out_cache: bool,
}

/// The path of an object, and its fields with their paths relative to the object. The path is empty for the
/// event or the response itself.
pub(super) type ObjectFields = (&'static str, &'static [(&'static str, ResponseField)]);

/// The output that the type of an event implies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventOutput {
    /// The type does not show whether the event has output: the fields of the event show it.
    Fields,
    /// The event begins or ends a part of the response, or is a heartbeat. It has no output, unless a
    /// field shows output. Unknown fields outside a delta do not count as output.
    Nothing,
    Kind(OutputKind),
    Error,
    /// The event repeats the output of earlier events. It counts as output only if no earlier event had
    /// output.
    Repetition,
}

/// The meaning of a field, independent of its name in an API.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ResponseField {
    Id,
    Model,
    EventType,
    Choices,
    /// One element of the array of choices.
    Choice,
    Index,
    Role,
    /// Output text, or an object that represents output, such as a tool call.
    Output(OutputKind),
    /// The object that contains the output of a choice. A value of another type counts as output.
    Delta,
    /// A field without a path of its own in a delta or a content block, where output is expected.
    UnknownOutput,
    /// A field without a path of its own outside deltas and content blocks.
    Unknown,
    /// Text of a model refusal.
    Refusal,
    Arguments,
    /// Text whose kind of output depends on the type of the event, not on the name of the field.
    Text,
    ContentPart,
    /// The type of a content part, such as `output_text`.
    ContentPartType,
    /// The array of token ids or logprobs.
    Tokens,
    /// One element of the array of token ids or logprobs.
    Token,
    /// A finish reason with the name that the API gives it.
    FinishReason,
    /// The `status` of a Responses response. Any status of a complete response is an answer.
    Status,
    /// A value that is not output, but shows that a complete response has an answer.
    Answer,
    /// The text of a transcription. An empty text is an answer too.
    Transcript,
    IncompleteReason,
    Usage,
    /// Prompt tokens, including those from the prefix cache.
    InputTokens,
    OutputTokens,
    /// Prompt tokens that came from the prefix cache.
    CachedTokens,
    /// Prompt tokens that the request added to the prefix cache.
    CacheCreatedTokens,
    ReasoningTokens,
    TotalTokens,
    /// Time in the queue of the engine, in milliseconds.
    QueueMillis,
    PrefillMillis,
    DecodeMillis,
    Error,
    /// The type of the object, which is `error` if the object describes an error.
    ObjectType,
    /// The code of an error that has no enclosing `error` object.
    FlatErrorCode,
    ErrorCode,
    ErrorType,
    ErrorMessage,
}

impl ResponseSchema {
    /// A schema with these fields. `skipped` are fields without output that are not read. The events have no
    /// types, and streams end with `[DONE]`.
    pub(super) fn new(fields: &[ObjectFields], skipped: &[&[&'static str]]) -> Self {
        Self {
            paths: PathTable::new(fields).with_skipped(&skipped.concat()),
            event_output: |_| EventOutput::Fields,
            terminal_types: &[],
            has_typed_text: false,
            is_known: true,
            has_plain_text: false,
            input_leaves_out_cache: false,
        }
    }

    /// Returns what the type of an event says about its output. In a known format, heartbeats and events that
    /// begin a part have no output.
    pub(crate) fn output_of(&self, event: &str) -> EventOutput {
        match event {
            ERROR_EVENT_TYPE => EventOutput::Error,
            _ if self.is_known && (HEARTBEATS.contains(&event) || BEGINNINGS.contains(&event)) => {
                EventOutput::Nothing
            }
            _ => (self.event_output)(event),
        }
    }
}

/// Type of the events that report an error, in every API.
pub(crate) const ERROR_EVENT_TYPE: &str = "error";

/// Types of events that only keep the connection open.
pub(crate) const HEARTBEATS: [&str; 3] = ["ping", "keepalive", "heartbeat"];

/// Types of events that begin a response or a part of it, in all APIs: a proxy can forward a request to the
/// path of another API.
const BEGINNINGS: [&str; 5] = [
    "message_start",
    "content_block_start",
    "response.created",
    "response.queued",
    "response.in_progress",
];

pub(super) const TEXT: ResponseField = ResponseField::Output(OutputKind::Text);
pub(super) const REASONING: ResponseField = ResponseField::Output(OutputKind::Reasoning);

impl ResponseField {
    /// Whether the value is text that a model generated.
    pub(crate) const fn is_text(self) -> bool {
        matches!(
            self,
            Self::Output(_) | Self::Refusal | Self::Arguments | Self::Text | Self::Transcript
        )
    }
}
