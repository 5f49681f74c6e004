//! Options of a request that sinks report.

use tokenweir_protocol::openai::GenerationParameters;
use tokenweir_protocol::openai::prompt::PromptBytes;

/// The options of an inference request that records report.
#[derive(Debug, Clone, Default)]
pub struct RequestOptions {
    /// The field `stream` of the body.
    pub stream: bool,
    /// The client's limit of generated tokens. `None`: no limit.
    pub max_tokens: Option<u64>,
    /// Number of choices that the client requests. `None`: not stated.
    pub n: Option<u64>,
    /// Sampling and other generation parameters.
    pub parameters: GenerationParameters,
    /// Whether the request offers tools to the model.
    pub has_tools: bool,
    /// Length of the list `messages`. `None`: the request has none.
    pub messages: Option<u64>,
    /// The user, the session and the conversation of the request.
    pub identity: RequestIdentity,
    /// The sizes of the parts of the body that can become the prompt. Zeros: not counted.
    pub prompt_bytes: PromptBytes,
    /// Whether the prompt has media, or URLs of media.
    pub has_media: bool,
    /// The name of the model in the response. `None`: the name that the backend writes.
    pub response_model: Option<Box<str>>,
    /// Whether the client forbids the backend to store the response.
    pub forbids_store: bool,
    /// Whether the client requested the usage event but not continuous usage.
    pub usage_requested: bool,
    /// Whether the gateway added a request for usage to the body.
    pub usage_injected: bool,
    /// Whether the gateway added a request for continuous usage to the body.
    pub continuous_usage_injected: bool,
}

/// The user, the session and the conversation that the client names, as pseudonyms or as the client sent them.
/// `None`: the client names none, or the value is not reported. They are never label values of metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestIdentity {
    /// The end user, such as the value of `safety_identifier` or `user`.
    pub user: Option<Box<str>>,
    /// The session, such as one run of an agent.
    pub session: Option<Box<str>>,
    /// The conversation. Several requests are turns of one conversation.
    pub conversation: Option<Box<str>>,
}
