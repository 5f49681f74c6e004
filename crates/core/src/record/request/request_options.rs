//! Options of a request that are reported.

use crate::openai::GenerationParameters;

/// The options of an inference request.
#[derive(Debug, Clone, Default)]
pub struct RequestOptions {
    /// The request has `"stream": true`.
    pub stream: bool,
    /// The client's limit of generated tokens. `None`: the request has no limit.
    pub max_tokens: Option<u64>,
    /// Number of choices that the client requests. `None`: the request does not state it.
    pub n: Option<u64>,
    /// Sampling and other generation parameters.
    pub parameters: GenerationParameters,
    /// The gateway added a request for usage to the body, because the client did not request usage.
    pub usage_injected: bool,
    /// The gateway also requested continuous usage.
    pub continuous_usage_injected: bool,
}
