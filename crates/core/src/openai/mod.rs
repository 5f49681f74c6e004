//! Parses the parts of the OpenAI and Anthropic wire formats that the gateway needs: which paths
//! are inference, which fields a request has, and what one event of a response contains.
//!
//! An event that cannot be parsed gives an empty [`Delta`] with [`Delta::malformed`] set. It never
//! stops the response.

mod audio;
mod chat;
mod common_response;
mod completions;
mod delta_builder;
pub mod engine_control;
mod error_event;
mod event_template;
pub mod form;
mod generation_parameters;
mod messages;
mod phrase_matcher;
pub mod prompt;
mod request_body_error;
pub mod request_fields;
#[cfg(test)]
mod request_fields_tests;
mod response_reader;
mod response_summary;
mod responses;
pub mod route;
mod splice;
mod text_excerpt;

use crate::json::PathTable;
pub use generation_parameters::GenerationParameters;
pub use phrase_matcher::PhraseMatcher;
pub use response_reader::ResponseReader;
pub use splice::{ModelSpan, Splice};
use std::time::Duration;
pub use text_excerpt::TextExcerpt;

/// The APIs whose requests and responses the gateway parses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Api {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/completions`
    Completions,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/messages`, in the Anthropic format
    Messages,
    /// `POST /v1/embeddings`
    Embeddings,
    /// `POST /v1/audio/transcriptions` and `/v1/audio/translations`
    Audio,
    /// Any other inference API. The gateway measures the HTTP exchange, and reads the usage if the
    /// response has one.
    Other,
}

/// The content of one event of a stream, or of a complete response.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Delta {
    /// The kind of output that the event carries. `None`: no output.
    pub output: Option<OutputKind>,
    /// Exact number of output tokens of the event, if the event reports it.
    pub tokens: Option<u32>,
    /// Index of the choice that the event belongs to. With several choices, that of the last one.
    pub choice: usize,
    /// Finish reason of a choice that ends with this event.
    pub finish: Option<FinishReason>,
    /// Token counts of the whole request so far.
    pub usage: Option<Usage>,
    /// The event is the one that `stream_options.include_usage` requests: it has usage and no
    /// choice.
    pub is_usage_event: bool,
    /// Times that the engine reports for the request.
    pub engine: Option<EngineTimes>,
    /// An error that the backend reports inside the response.
    pub error: Option<InBandError>,
    /// The event is the last one that the API defines. Later data is not output.
    pub terminal: bool,
    /// The data is not a valid event of this API.
    pub malformed: bool,
}

/// The kind of output that an event carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OutputKind {
    /// Tokens without text: reasoning or answer, the event does not show which.
    Unspecified,
    /// Reasoning text.
    Reasoning,
    /// Answer text or a tool call.
    Answer,
}

/// Token counts of a request, as the engine reports them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, including those from the prefix cache.
    pub input: Option<u64>,
    /// Generated tokens, including reasoning.
    pub output: Option<u64>,
    /// Prompt tokens that came from the prefix cache.
    pub cached: Option<u64>,
    /// Prompt tokens that this request added to the prefix cache.
    pub cache_created: Option<u64>,
    /// Generated tokens that were reasoning.
    pub reasoning: Option<u64>,
}

/// Times of a request, as the engine reports them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineTimes {
    /// From the arrival of the request in the engine to its scheduling.
    pub queue: Option<Duration>,
    /// From the scheduling to the first token.
    pub prefill: Option<Duration>,
    /// From the first token to the last one.
    pub decode: Option<Duration>,
}

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// The model generated its end token, or a stop string or stop token.
    Stop,
    /// The token limit of the request or of the model was reached.
    Length,
    /// The model calls a tool.
    ToolCalls,
    /// A content filter ended the choice, or the model declined.
    ContentFilter,
    /// The engine aborted the request, for example because it shuts down.
    Abort,
    /// The engine failed.
    Error,
    /// The engine detected repetitive output.
    Repetition,
    /// A finish reason that the gateway does not know.
    Other,
}

/// An error that the backend reports inside a 200 response, or in the body of an error response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InBandError {
    /// `error.code`, a number or a string in the response.
    pub code: Option<Box<str>>,
    /// `error.type`
    pub kind: Option<Box<str>>,
}

/// How to parse the responses of one [`Api`].
struct ResponseSchema {
    /// The fields to read, of events and of complete responses.
    paths: PathTable<ResponseField>,
    /// The kind of output that an event of this type carries. `None`: the kind follows from the
    /// fields of the event, not from its type.
    output_type: Option<fn(&str) -> Option<OutputKind>>,
    /// The types of the events that end a stream. Streams of APIs without event types end with
    /// `[DONE]`.
    terminal_types: &'static [&'static str],
    /// The reported input tokens exclude cached tokens. Only Anthropic's API counts in this way.
    input_leaves_out_cache: bool,
}

/// The meaning of a field, independent of its name in an API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseField {
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
    /// Text of an event whose type determines the kind of output.
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

// === impl Api ===

impl Api {
    /// All APIs, for tables and tests.
    pub const ALL: [Self; 7] = [
        Self::Chat,
        Self::Completions,
        Self::Responses,
        Self::Messages,
        Self::Embeddings,
        Self::Audio,
        Self::Other,
    ];

    /// Name in metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Embeddings => "embeddings",
            Self::Audio => "audio",
            Self::Other => "other",
        }
    }

    /// Whether the response is text that a model generates token by token.
    pub const fn generates(self) -> bool {
        matches!(self, Self::Chat | Self::Completions | Self::Responses | Self::Messages)
    }

    /// `gen_ai.operation.name` of the OpenTelemetry GenAI semantic conventions v1.41.
    pub const fn operation(self) -> &'static str {
        match self {
            Self::Chat | Self::Responses | Self::Messages => "chat",
            Self::Completions => "text_completion",
            Self::Embeddings => "embeddings",
            Self::Audio | Self::Other => "generate_content",
        }
    }

    fn shape(self) -> &'static ResponseSchema {
        match self {
            Self::Chat => &chat::SHAPE,
            Self::Completions => &completions::SHAPE,
            Self::Responses => &responses::SHAPE,
            Self::Messages => &messages::SHAPE,
            Self::Audio => &audio::SHAPE,
            Self::Embeddings | Self::Other => &common_response::SHAPE,
        }
    }
}

// === impl ResponseField ===

impl ResponseField {
    /// Whether the value is text that a model generated.
    const fn is_text(self) -> bool {
        matches!(self, Self::Output(_) | Self::Refusal | Self::Arguments | Self::Text)
    }
}

// === impl Usage ===

impl Usage {
    /// Merges a later report of the same request: its counts replace earlier ones, absent counts
    /// keep the earlier value.
    pub fn absorb(&mut self, later: &Usage) {
        self.input = later.input.or(self.input);
        self.output = later.output.or(self.output);
        self.cached = later.cached.or(self.cached);
        self.cache_created = later.cache_created.or(self.cache_created);
        self.reasoning = later.reasoning.or(self.reasoning);
    }
}

// === impl FinishReason ===

impl FinishReason {
    /// All finish reasons, for tables and tests.
    pub const ALL: [Self; 8] = [
        Self::Stop,
        Self::Length,
        Self::ToolCalls,
        Self::ContentFilter,
        Self::Abort,
        Self::Error,
        Self::Repetition,
        Self::Other,
    ];

    /// Parses the finish reason, stop reason or incomplete reason of any API.
    pub fn parse(raw: &str) -> Self {
        match raw {
            "stop" | "end_turn" | "stop_sequence" => Self::Stop,
            "length" | "max_tokens" | "max_output_tokens" => Self::Length,
            "tool_calls" | "tool_use" | "function_call" => Self::ToolCalls,
            "content_filter" | "refusal" => Self::ContentFilter,
            "abort" => Self::Abort,
            "error" => Self::Error,
            "repetition" => Self::Repetition,
            _ => Self::Other,
        }
    }

    /// Name in metrics, logs and spans: OpenAI's name where OpenAI defines one.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::ContentFilter => "content_filter",
            Self::Abort => "abort",
            Self::Error => "error",
            Self::Repetition => "repetition",
            Self::Other => "other",
        }
    }
}
