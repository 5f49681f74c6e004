//! The content of one event of a response, independent of the API.

use super::engine_error::EngineError;
use crate::json::JsonValue;
use crate::named_enum;
use std::time::Duration;

/// The content of one event of a stream, or of a complete response.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Delta {
    /// The kinds of output in the event. Empty: the event has no output.
    pub output: OutputKinds,
    /// Whether the only output of the event is empty texts. An engine sends empty texts while it holds text
    /// back, and also if it generates nothing.
    pub is_empty_text: bool,
    /// Exact number of output tokens in the event. `None`: the event does not state it.
    pub tokens: Option<u32>,
    /// Index of the choice in the event, or of the last one if there are several. 0 for APIs without choices.
    pub choice: usize,
    /// Finish reason of a choice that ends with this event. `None`: no choice ends.
    pub finish: Option<FinishReason>,
    /// Token counts of the request up to this event. `None`: the event reports no usage.
    pub usage: Option<Usage>,
    /// Whether the event has a `usage` member that is `null`.
    pub has_null_usage: bool,
    /// Whether the event is the usage event, which `stream_options.include_usage` requests: an event with usage
    /// and without a choice. Its `choices` are an empty array; at some servers they are `null` or absent.
    pub is_usage_event: bool,
    /// Times of the request that the engine reports in the event. `None`: the event has no such times.
    pub engine: Option<EngineTimes>,
    /// An error that the backend reports in the event. `None`: the event has no error.
    pub error: Option<InBandError>,
    /// Whether the event is the terminal event of the API, such as `[DONE]`, or the complete
    /// response was read. Later data is not output.
    pub terminal: bool,
    /// Whether the data is not a valid event of this API, or a token count in it is not valid.
    pub malformed: bool,
    /// Whether the event only keeps the connection open: it has no data, or it is a heartbeat.
    pub is_keep_alive: bool,
}

impl Delta {
    /// Whether the event reports that output tokens were generated.
    pub fn reports_output_tokens(&self) -> bool {
        let output = self.usage.as_ref().and_then(|usage| usage.output);
        output.is_some_and(|output| output > 0)
    }
}

/// A kind of output that an event carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputKind {
    /// Tokens without text, which can be reasoning or answer.
    Unspecified,
    /// Text of the model's reasoning.
    Reasoning,
    /// Text that is neither reasoning nor a tool call.
    Text,
    /// A name or arguments of a tool call.
    ToolCall,
    /// Output in an unknown form: an unknown field or event, or data of an unknown format.
    Unknown,
}

/// A set of [`OutputKind`]s. An event with several tokens can have several kinds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputKinds(u8);

/// Token counts of a request, as the engine reports them. `None`: the engine did not report the
/// count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, including those from the prefix cache.
    pub input: Option<u64>,
    /// Generated tokens, including those of reasoning.
    pub output: Option<u64>,
    /// Prompt tokens that came from the prefix cache.
    pub cached: Option<u64>,
    /// Prompt tokens that this request added to the prefix cache.
    pub cache_created: Option<u64>,
    /// Generated tokens that were reasoning.
    pub reasoning: Option<u64>,
}

/// Times of a request, as the engine reports them. `None`: the engine did not report the time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineTimes {
    /// Time from the arrival of the request in the engine to its scheduling.
    pub queue: Option<Duration>,
    /// Time from the scheduling to the first token.
    pub prefill: Option<Duration>,
    /// Time from the first token to the last token.
    pub decode: Option<Duration>,
}

named_enum! {
    /// Why a choice ended.
    #[derive(Hash)]
    pub enum FinishReason {
        /// The model generated its end token, or a stop string or stop token.
        Stop = "stop",
        /// The token limit of the request or of the model was reached.
        Length = "length",
        /// The model asked the client to call a tool.
        ToolCalls = "tool_calls",
        /// A content filter ended the choice, or the model declined to answer.
        ContentFilter = "content_filter",
        /// The engine aborted the request, for example because it shuts down.
        Abort = "abort",
        /// The engine failed.
        Error = "error",
        /// The engine detected repetitive output.
        Repetition = "repetition",
        /// A finish reason that the gateway does not know.
        Other = "other",
    }
}

/// An error that the backend reports inside a 200 response, or in the body of an error response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InBandError {
    /// The error code as text. The response states it as a number or a string. `None`: the error has no code.
    pub code: Option<Box<str>>,
    /// The type that the backend states. `None`: the error has no type.
    pub kind: Option<Box<str>>,
    /// The topic of the error message. `None`: unknown.
    pub about: Option<EngineError>,
}

impl InBandError {
    /// The code, if it is a number, such as a status.
    pub fn status(&self) -> Option<u16> {
        self.code.as_ref()?.parse().ok()
    }

    /// Whether the code is a status from 400 to 499, which means that the client caused the error.
    pub fn is_of_client(&self) -> bool {
        matches!(self.status(), Some(400..=499))
    }
}

impl OutputKinds {
    /// Whether the event has no output.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Whether the event has output of this kind.
    pub fn has(self, kind: OutputKind) -> bool {
        self.0 & Self::from(kind).0 != 0
    }

    /// Whether the set has a kind of the answer: text or a tool call.
    pub fn has_answer(self) -> bool {
        self.has(OutputKind::Text) || self.has(OutputKind::ToolCall)
    }

    /// Adds kinds of output to the set.
    pub fn add(&mut self, kinds: impl Into<Self>) {
        self.0 |= kinds.into().0;
    }
}

impl From<OutputKind> for OutputKinds {
    fn from(kind: OutputKind) -> Self {
        Self(1 << kind as u8)
    }
}

impl Usage {
    /// Merges a later usage report of the same request. Counts of the later report replace the earlier counts.
    /// A count stays if the later report does not have it.
    pub fn absorb(&mut self, later: &Usage) {
        self.input = later.input.or(self.input);
        self.output = later.output.or(self.output);
        self.cached = later.cached.or(self.cached);
        self.cache_created = later.cache_created.or(self.cache_created);
        self.reasoning = later.reasoning.or(self.reasoning);
    }
}

impl FinishReason {
    /// The finish reason in a response. `None`: the choice has not ended. Where most servers write `null`, some
    /// write an empty text or the text `null`.
    pub fn of_value(value: JsonValue<'_>) -> Option<Self> {
        let raw = value.as_text()?;
        if matches!(&*raw, "" | "null") {
            None
        } else {
            Some(Self::parse(&raw))
        }
    }

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
}
