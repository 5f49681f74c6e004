//! The response to a client: its body, and the beginning that can be sent before its backend is decided.

mod early_response;
mod forwarded;
mod response_body;
mod response_headers;
pub(super) mod routing_headers;
mod run_body;

pub use early_response::EarlyResponse;
pub use forwarded::BodySource;
pub(super) use forwarded::{Forwarded, PrefetchedResponse};
pub use response_body::{Handling, ProxyResponse, ProxyResponseBody, Responding, ResponseGuard};
pub use response_headers::ResponseHeaders;
pub use run_body::RunBody;
