//! How streams are continued, why a stream needs a continuation, and why a stream is not continued.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the gateway continues a stream whose backend ends it early.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ContinuationMode {
    /// Not at all: the stream ends.
    #[default]
    Off,
    /// Another backend continues the text. It may divide the text into other tokens.
    Text,
    /// Another backend continues after the token ids of the first one. Needs vLLM 0.32 or later with
    /// its Python front end.
    Exact,
}

/// Why a stream needs another backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InterruptionCause {
    /// The backend ended the stream early or broke its connection.
    Died,
    /// The backend sent no output for longer than `stalls.abort_after`.
    Stalled,
    /// The backend aborted the response, because it shuts down.
    Aborted,
    /// The backend reported an error of its engine in the stream.
    EngineFailed,
    /// The next backend did not continue the stream: it repeated another prompt or another text.
    Diverged,
    /// An operator drains the backend and moves its streams.
    Migrated,
}

/// Why a stream that ended early was not continued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ContinuationRefusal {
    /// The API is neither chat completions nor completions.
    Api,
    /// The request asks for several choices.
    Choices,
    /// The log probabilities of two streams cannot be joined.
    Logprobs,
    /// The request has stop strings, so the engine holds text back.
    StopStrings,
    /// The request has penalties, which depend on the tokens that the engine itself generated.
    Penalties,
    /// The request samples with a seed, from which the other engine would begin anew.
    Seed,
    /// The request samples, and `streams.continuation_greedy_only` is set.
    Sampled,
    /// The output has a required structure, whose state is in the engine.
    StructuredOutput,
    /// The output so far has a part of a tool call.
    ToolCall,
    /// The request asks the backend to store the response.
    Stored,
    /// The prompt has images, audio or video, which are no token ids.
    Media,
    /// The request has another field with which the result would differ.
    Field,
    /// A header has a digest of the body, so that the body cannot be changed.
    SignedBody,
    /// The backend sent no token ids.
    NoTokenIds,
    /// The output so far has reasoning, which no text of a message can continue.
    Reasoning,
    /// The gateway cannot know which token the text so far ends with.
    Position,
    /// The stream had its finish reason, or all tokens that the request allows.
    Finished,
    /// The next backend did not continue the stream.
    Diverged,
    /// An event could not be read.
    Unreadable,
    /// The memory limit for continuations was reached.
    Memory,
    /// The request was already sent to as many backends as it may be.
    MaxAttempts,
    /// The budget of continuations is used up.
    Budget,
    /// The request may have crashed several backends.
    PoisonRequest,
    /// No other backend was available.
    NoOtherBackend,
    /// Only the usage or the end of the stream was missing, and the gateway wrote it.
    Completed,
}

impl InterruptionCause {
    /// All causes.
    pub const ALL: [Self; 6] = [
        Self::Died,
        Self::Stalled,
        Self::Aborted,
        Self::EngineFailed,
        Self::Diverged,
        Self::Migrated,
    ];

    /// The name in metrics, logs and spans.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Died => "died",
            Self::Stalled => "stalled",
            Self::Aborted => "aborted",
            Self::EngineFailed => "engine_failed",
            Self::Diverged => "diverged",
            Self::Migrated => "migrated",
        }
    }
}

impl ContinuationRefusal {
    /// All reasons.
    pub const ALL: [Self; 25] = [
        Self::Api,
        Self::Choices,
        Self::Logprobs,
        Self::StopStrings,
        Self::Penalties,
        Self::Seed,
        Self::Sampled,
        Self::StructuredOutput,
        Self::ToolCall,
        Self::Stored,
        Self::Media,
        Self::Field,
        Self::SignedBody,
        Self::NoTokenIds,
        Self::Reasoning,
        Self::Position,
        Self::Finished,
        Self::Diverged,
        Self::Unreadable,
        Self::Memory,
        Self::MaxAttempts,
        Self::Budget,
        Self::PoisonRequest,
        Self::NoOtherBackend,
        Self::Completed,
    ];

    /// The name in metrics, logs and spans.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Choices => "choices",
            Self::Logprobs => "logprobs",
            Self::StopStrings => "stop_strings",
            Self::Penalties => "penalties",
            Self::Seed => "seed",
            Self::Sampled => "sampled",
            Self::StructuredOutput => "structured_output",
            Self::ToolCall => "tool_call",
            Self::Stored => "stored",
            Self::Media => "media",
            Self::Field => "field",
            Self::SignedBody => "signed_body",
            Self::NoTokenIds => "no_token_ids",
            Self::Reasoning => "reasoning",
            Self::Position => "position",
            Self::Finished => "finished",
            Self::Diverged => "diverged",
            Self::Unreadable => "unreadable",
            Self::Memory => "memory",
            Self::MaxAttempts => "max_attempts",
            Self::Budget => "budget",
            Self::PoisonRequest => "poison",
            Self::NoOtherBackend => "no_other_backend",
            Self::Completed => "completed",
        }
    }
}
