//! The response to a client: its body, and its beginning before a backend is decided.

mod early_response;

mod response_body;

pub use early_response::EarlyResponse;
pub use response_body::{ProxyResponseBody, Responding};
