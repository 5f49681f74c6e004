//! The response to a client: its body, and the beginning that can be sent before its backend is decided.

mod early_response;
mod followed_body;

mod response_body;

pub use early_response::EarlyResponse;
pub(super) use followed_body::{FollowedBody, Following, RunHead};
pub(super) use response_body::Handling;
pub use response_body::{ProxyResponseBody, Responding};
