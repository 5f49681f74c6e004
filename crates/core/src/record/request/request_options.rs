//! Options of a request that are reported.

use crate::openai::GenerationParameters;

/// The options of an inference request.
#[derive(Debug, Clone, Default)]
pub struct RequestOptions {
    /// The request has `"stream": true`.
    pub stream: bool,
    /// The client's limit of generated tokens.
    pub max_tokens: Option<u64>,
    /// Number of choices.
    pub n: Option<u64>,
    /// Sampling and other generation parameters.
    pub parameters: GenerationParameters,
    /// The gateway requested usage, the client did not.
    pub usage_injected: bool,
    /// The gateway also requested usage in every event.
    pub continuous_usage_injected: bool,
}
