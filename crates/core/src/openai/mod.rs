//! What must be known of the OpenAI wire format, and no more: which paths are inference, what a
//! request asks for, and what one event of an answer says. An event that cannot be read says
//! nothing; it never stops one.

mod answer;
mod audio;
mod broken;
mod chat;
mod completions;
pub mod control;
mod event;
mod excerpt;
pub mod form;
mod likeness;
mod messages;
mod parameters;
mod peek_error;
mod phrases;
pub mod prompt;
mod reader;
pub mod request;
mod responses;
pub mod route;
mod splice;
mod whole;

use crate::json::Paths;
pub use excerpt::Excerpt;
pub use parameters::Parameters;
pub use phrases::Phrases;
pub use reader::Reader;
pub use splice::{Slot, Splice};
use std::time::Duration;

/// The shapes of request and answer that are understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Api {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/completions`
    Completions,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/messages`, the Anthropic shape
    Messages,
    /// `POST /v1/embeddings`
    Embeddings,
    /// `POST /v1/audio/transcriptions` and `/v1/audio/translations`
    Audio,
    /// Any other inference: the HTTP exchange is measured, and usage where the answer has one.
    Other,
}

/// What one event of a stream says, or a whole answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Delta {
    /// Generated output passed, of this kind.
    pub output: Option<Channel>,
    /// Exactly how many tokens it was, where the event tells.
    pub tokens: Option<u32>,
    /// The index of the choice that it belongs to; the last one's if there are several.
    pub choice: usize,
    /// A choice ended with it.
    pub finish: Option<Finish>,
    /// Token counts of the whole request so far.
    pub usage: Option<Usage>,
    /// The event is the one that `stream_options.include_usage` asks for: usage and no choice.
    pub is_usage_event: bool,
    /// How long the engine says that it took.
    pub engine: Option<EngineTimes>,
    /// The server reports a failure inside its answer.
    pub error: Option<InBandError>,
    /// The shape's own last event: nothing that matters follows.
    pub terminal: bool,
    /// The data was not what this shape sends.
    pub malformed: bool,
}

/// What kind of output an event carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Channel {
    /// Tokens passed, but no text tells what they are.
    Unspecified,
    /// What the model thinks before it answers.
    Reasoning,
    /// Answer text or a tool call.
    Answer,
}

/// Token counts, as the engine reports them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, those from the cache included.
    pub input: Option<u64>,
    /// Generated tokens, reasoning included.
    pub output: Option<u64>,
    /// Prompt tokens that came from the prefix cache.
    pub cached: Option<u64>,
    /// Prompt tokens that this request added to the prefix cache.
    pub cache_created: Option<u64>,
    /// Generated tokens that were reasoning.
    pub reasoning: Option<u64>,
}

/// Times that the engine itself reports of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineTimes {
    /// From its arrival to its being scheduled.
    pub queue: Option<Duration>,
    /// From its being scheduled to its first token.
    pub prefill: Option<Duration>,
    /// From its first token to its last.
    pub decode: Option<Duration>,
}

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finish {
    /// The model ended, or a stop string or token was met.
    Stop,
    /// The token limit of the request or of the model.
    Length,
    /// The model calls a tool.
    ToolCalls,
    /// A filter ended it, or the model refused.
    ContentFilter,
    /// The engine gave it up, for example on shutdown.
    Abort,
    /// The engine failed.
    Error,
    /// The engine found the output to repeat itself.
    Repetition,
    /// A reason that is not known here.
    Other,
}

/// A failure that the server reports inside a 200, or in the body of an error status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InBandError {
    /// `error.code`, whether it was a number or a text.
    pub code: Option<Box<str>>,
    /// `error.type`
    pub kind: Option<Box<str>>,
}

/// How to read the answers of one [`Api`].
struct Shape {
    /// The values that matter, streamed or whole.
    paths: Paths<Signal>,
    /// Whether this event type carries output. `None`: the shape's events have no types.
    output_type: Option<fn(&str) -> Option<Channel>>,
    /// The types of the event that ends a stream. Shapes without types end with `[DONE]`.
    terminal_types: &'static [&'static str],
    /// Anthropic counts as input only what did not come from the cache.
    input_leaves_out_cache: bool,
}

/// The meaning of a value, whatever its name in a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signal {
    Id,
    Model,
    EventType,
    /// The array of choices, and each of them.
    Choices,
    Choice,
    Index,
    Role,
    /// Text, or an object that stands for some.
    Output(Channel),
    /// Text in which the model says that it will not.
    Refusal,
    /// What a tool is called with.
    Arguments,
    /// Text of an event whose type tells what it is of.
    Text,
    /// A part of a whole answer that has text, and what kind of part it is.
    Block,
    BlockType,
    /// The array of token ids or logprobs, and each of its elements.
    Tokens,
    Token,
    /// A finish reason in any shape's words.
    Finish,
    /// The state of a Responses answer.
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
    /// All of them, for tables and tests.
    pub const ALL: [Self; 7] = [
        Self::Chat,
        Self::Completions,
        Self::Responses,
        Self::Messages,
        Self::Embeddings,
        Self::Audio,
        Self::Other,
    ];

    /// The name in metrics and logs.
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

    /// Whether the answer is text that a model generates token by token.
    pub const fn generates(self) -> bool {
        matches!(self, Self::Chat | Self::Completions | Self::Responses | Self::Messages)
    }

    /// `gen_ai.operation.name`: OpenTelemetry GenAI conventions v1.41.
    pub const fn operation(self) -> &'static str {
        match self {
            Self::Chat | Self::Responses | Self::Messages => "chat",
            Self::Completions => "text_completion",
            Self::Embeddings => "embeddings",
            Self::Audio | Self::Other => "generate_content",
        }
    }

    fn shape(self) -> &'static Shape {
        match self {
            Self::Chat => &chat::SHAPE,
            Self::Completions => &completions::SHAPE,
            Self::Responses => &responses::SHAPE,
            Self::Messages => &messages::SHAPE,
            Self::Audio => &audio::SHAPE,
            Self::Embeddings | Self::Other => &whole::SHAPE,
        }
    }
}

// === impl Signal ===

impl Signal {
    /// Whether its value is a text that a model generated.
    const fn is_text(self) -> bool {
        matches!(self, Self::Output(_) | Self::Refusal | Self::Arguments | Self::Text)
    }
}

// === impl Usage ===

impl Usage {
    /// Takes over what a later report says.
    pub fn absorb(&mut self, later: &Usage) {
        self.input = later.input.or(self.input);
        self.output = later.output.or(self.output);
        self.cached = later.cached.or(self.cached);
        self.cache_created = later.cache_created.or(self.cache_created);
        self.reasoning = later.reasoning.or(self.reasoning);
    }
}

// === impl Finish ===

impl Finish {
    /// All of them, for tables and tests.
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

    /// Reads the reason in the words of any shape.
    pub fn of(raw: &str) -> Self {
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

    /// The name in metrics, logs and spans: OpenAI's where it has one.
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
