//! The values from which a response is rendered.

use crate::text::{SimulatedFinishReason, SimulatedOutput};

/// The APIs that generate output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenerationApi {
    /// `/v1/chat/completions`
    Chat,
    /// The API `/v1/completions`.
    Completions,
    /// The API `/v1/responses`.
    Responses,
    /// The API `/v1/messages`.
    Messages,
}

impl GenerationApi {
    /// The prefix of a response id. The request id, or a random id, follows it.
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
    /// The response id, with the prefix of its API.
    pub id: String,
    /// The id of the message item in the Responses format.
    pub item_id: String,
    /// The creation time, as Unix time in seconds.
    pub created: u64,
    /// The served model name.
    pub model: String,
    /// Number of prompt tokens of all prompts.
    pub prompt_tokens: u32,
    /// One output per choice.
    pub outputs: Vec<SimulatedOutput>,
    /// Whether a usage chunk is written at the end of a stream.
    pub include_usage: bool,
    /// Whether usage is written in every chunk.
    pub continuous_usage: bool,
    /// The requested temperature, which a Responses body repeats.
    pub temperature: f64,
    /// The requested `top_p`, which a Responses body repeats.
    pub top_p: f64,
    /// The maximum number of output tokens, which a Responses body repeats.
    pub max_output_tokens: u32,
}

impl SimulatedResponse {
    /// Number of output tokens of all choices.
    pub(super) fn completion_tokens(&self) -> u32 {
        self.outputs.iter().map(|output| output.tokens).sum()
    }

    /// The output of the first choice, for the APIs that have only one choice.
    pub(super) fn first_output(&self) -> SimulatedOutput {
        self.outputs.first().copied().unwrap_or(SimulatedOutput {
            seed: 0,
            tokens: 0,
            finish: SimulatedFinishReason::Stop,
        })
    }
}
