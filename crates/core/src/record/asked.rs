//! What a request asked for.

use crate::openai::Parameters;

/// What the client asked for, as far as it is reported.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// `stream` is true.
    pub stream: bool,
    /// The limit of generated tokens.
    pub max_tokens: Option<u64>,
    /// How many choices.
    pub n: Option<u64>,
    /// How it is to be generated.
    pub parameters: Parameters,
    /// The gateway asked for usage on its own: the client did not.
    pub usage_injected: bool,
    /// It asked for the counts of every event, too.
    pub continuous_usage_injected: bool,
}
