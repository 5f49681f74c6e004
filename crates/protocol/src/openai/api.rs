//! The APIs whose requests and responses the gateway parses.

/// The API of an inference request. It determines how the gateway parses the request and the
/// response.
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
    /// Any other inference API, such as scoring or reranking. The gateway measures the HTTP
    /// exchange and reads the usage if the response contains it.
    Other,
    /// A request without a generation of its own, such as the retrieval of a stored response. The
    /// gateway measures the HTTP exchange and does not read the response: its usage belongs to an
    /// earlier request.
    Http,
}

impl Api {
    /// All APIs, for tables and tests.
    pub const ALL: [Self; 8] = [
        Self::Chat,
        Self::Completions,
        Self::Responses,
        Self::Messages,
        Self::Embeddings,
        Self::Audio,
        Self::Other,
        Self::Http,
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
            Self::Http => "http",
        }
    }

    /// Whether the response of this API is text that a model generates token by token.
    /// Transcriptions ([`Api::Audio`]) do not count as such.
    pub const fn generates(self) -> bool {
        matches!(self, Self::Chat | Self::Completions | Self::Responses | Self::Messages)
    }

    /// `gen_ai.operation.name` of the OpenTelemetry GenAI semantic conventions v1.41.
    pub const fn operation(self) -> &'static str {
        match self {
            Self::Chat | Self::Responses | Self::Messages => "chat",
            Self::Completions => "text_completion",
            Self::Embeddings => "embeddings",
            Self::Audio | Self::Other | Self::Http => "generate_content",
        }
    }
}
