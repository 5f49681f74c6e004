//! The values of a response.

use crate::text::{SimulatedFinishReason, SimulatedOutput};

/// The generating APIs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenerationApi {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`
    Messages,
}

impl GenerationApi {
    /// The prefix of an id that is derived from a request id.
    pub fn id_prefix(self) -> &'static str {
        match self {
            Self::Chat | Self::Messages => "chatcmpl-",
            Self::Completions => "cmpl-",
            Self::Responses => "resp_",
        }
    }
}

/// The values of a response that are known before the first token.
#[derive(Debug, Clone)]
pub struct SimulatedResponse {
    /// The API of the request.
    pub api: GenerationApi,
    /// The id, with its prefix.
    pub id: String,
    /// The id of the message item (Responses).
    pub item_id: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The served model name.
    pub model: String,
    /// Number of prompt tokens of all prompts.
    pub prompt_tokens: u32,
    /// One output per choice.
    pub answers: Vec<SimulatedOutput>,
    /// Write a usage chunk at the end of a stream.
    pub include_usage: bool,
    /// Write usage in every chunk.
    pub continuous_usage: bool,
    /// Echoed by Responses.
    pub temperature: f64,
    /// Echoed by Responses.
    pub top_p: f64,
    /// Echoed by Responses.
    pub max_output_tokens: u32,
}

impl SimulatedResponse {
    pub(super) fn completion_tokens(&self) -> u32 {
        self.answers.iter().map(|answer| answer.tokens).sum()
    }

    /// The first output, for the APIs that have one choice.
    pub(super) fn answer(&self) -> SimulatedOutput {
        self.answers.first().copied().unwrap_or(SimulatedOutput {
            seed: 0,
            tokens: 0,
            finish: SimulatedFinishReason::Stop,
        })
    }
}
