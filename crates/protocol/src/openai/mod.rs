//! Parses the parts of the OpenAI and Anthropic wire formats that the gateway needs: which paths
//! are inference, which fields a request has, and what one event of a response contains.
//!
//! The parser returns an empty [`Delta`] with [`Delta::malformed`] set for an event that it cannot
//! parse. Such an event never stops the response.

mod api;
mod engine_error;

mod delta;
mod text_excerpt;

mod request;
pub mod route;

mod shapes;

mod response;

pub use api::Api;
pub use delta::{Delta, EngineTimes, FinishReason, InBandError, OutputKind, OutputKinds, Usage};
pub use engine_error::EngineError;
pub use request::{
    FieldEdit, GenerationParameters, IdentityFields, ModelSpan, Permission, Permissions,
    PromptBytes, PromptSpans, RequestBodyError, RequestFields, Splice, TOKENS_PER_BYTE,
    TOKENS_PER_MEDIA_BYTE, UsedControl, engine_control, form, has_url_member, left_out, media_urls,
    prompt, request_fields, visit_media_urls,
};
pub use response::{MAX_TOKEN_COUNT, PhraseMatcher, ResponseReader, TextSample, read_usage};
pub use route::{ApiRoute, RouteError};
pub use text_excerpt::TextExcerpt;
