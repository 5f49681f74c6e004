//! The response to a client: its body, and its beginning before a backend is decided.

mod early_response;

mod response_body;

mod responding;

pub use early_response::EarlyResponse;
pub use responding::Responding;
pub use response_body::ProxyResponseBody;
