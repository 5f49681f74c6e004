//! The APIs whose requests and responses the gateway parses.

use crate::named_enum;

named_enum! {
    /// The API of an inference request. It determines how the gateway parses the request and the
    /// response.
    #[derive(Hash)]
    pub enum Api {
        /// `POST /v1/chat/completions`
        Chat = "chat",
        /// `POST /v1/completions`
        Completions = "completions",
        /// `POST /v1/responses`
        Responses = "responses",
        /// `POST /v1/messages`, in the Anthropic format
        Messages = "messages",
        /// `POST /v1/embeddings`
        Embeddings = "embeddings",
        /// `POST /v1/audio/transcriptions` and `/v1/audio/translations`
        Audio = "audio",
        /// Any other inference API, such as scoring or reranking. The gateway measures the HTTP
        /// exchange and reads the usage if the response contains it.
        Other = "other",
        /// A request that generates nothing itself, such as the retrieval of a stored response. The gateway
        /// measures the HTTP exchange and does not read the response, because its usage belongs to an earlier
        /// request.
        Http = "http",
    }
}

impl Api {
    /// Whether a model generates the response of this API as text, token by token. Transcriptions
    /// ([`Api::Audio`]) do not count.
    pub const fn generates(self) -> bool {
        matches!(
            self,
            Self::Chat | Self::Completions | Self::Responses | Self::Messages
        )
    }

    /// The value of `gen_ai.operation.name` (OpenTelemetry GenAI semantic conventions v1.41) for this API.
    pub const fn operation(self) -> &'static str {
        match self {
            Self::Chat | Self::Responses | Self::Messages => "chat",
            Self::Completions => "text_completion",
            Self::Embeddings => "embeddings",
            Self::Audio | Self::Other | Self::Http => "generate_content",
        }
    }
}
