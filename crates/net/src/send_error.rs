//! The error of a request to a backend.

use std::time::Duration;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The connection to the backend failed.
    #[error("cannot connect to the backend: {0}")]
    Connect(String),
    /// The gateway has no file descriptor, memory or port left for a connection. The backend is not
    /// at fault.
    #[error("the gateway has no resources for a connection: {0}")]
    Exhausted(String),
    /// A pooled connection closed as the request was sent, without a byte of a response. The close
    /// crossed the request on the wire, so the backend has most likely not read the request.
    #[error("the backend closed a pooled connection while the request was sent")]
    StaleConnection {
        /// Whether the whole request was written. If not, the backend cannot have executed it.
        was_request_written: bool,
    },
    /// The connection closed before the response head. The backend may have executed the request.
    #[error("the backend closed the connection before the response head: {0}")]
    Closed(String),
    /// The response is not valid HTTP/1.1.
    #[error("the backend sent an invalid HTTP response: {0}")]
    InvalidResponse(String),
    /// No response head within the timeout.
    #[error("the backend sent no response head within {0:?}")]
    Timeout(Duration),
}

impl SendError {
    /// The reason as one word of a closed set, for records and metrics.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect_error",
            Self::Exhausted(_) => "gateway_exhausted",
            Self::StaleConnection { .. } => "stale",
            Self::Closed(_) => "connection_reset",
            Self::InvalidResponse(_) => "bad_response",
            Self::Timeout(_) => "timeout",
        }
    }
}
