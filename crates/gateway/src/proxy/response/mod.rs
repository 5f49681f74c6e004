//! The response to a client: its body, and the beginning that can be sent before its backend is decided.

mod early_response;
mod followed_body;
mod forwarded;
mod response_body;
mod response_headers;
pub(super) mod routing_headers;

pub use early_response::EarlyResponse;
pub(super) use followed_body::{FollowedBody, Following, RunHead};
pub use forwarded::BodySource;
pub(super) use forwarded::{Forwarded, PrefetchedResponse};
pub(super) use response_body::Handling;
pub use response_body::{ProxyResponseBody, Responding, ResponseGuard};
pub(super) use response_headers::ResponseHeaders;
