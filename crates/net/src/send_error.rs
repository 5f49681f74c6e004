//! The error of a request that the gateway sent to a backend.

use std::io;
use std::time::Duration;

/// Why the gateway got no response head for a request that it sent to a backend.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The TCP connection or the TLS handshake failed.
    #[error("cannot connect to the backend: {0}")]
    Connect(String),
    /// The gateway has no file descriptor, memory or port left for a connection. The backend is not
    /// at fault.
    #[error("the gateway has no resources for a connection: {0}")]
    Exhausted(String),
    /// The backend closed a reused connection before any byte of the response. Either it closed the idle
    /// connection before the request arrived, or it had read the request. The next attempt, on a new
    /// connection, shows which is true.
    #[error("the backend closed a pooled connection before a response to the request")]
    StaleConnection {
        /// Whether the whole request was written to the connection. `false`: the backend cannot have executed
        /// the request.
        was_request_written: bool,
    },
    /// The backend closed the connection before the end of the response head. The connection was new, or a part
    /// of the response had arrived. The backend may have executed the request.
    #[error("the backend closed the connection before the response head: {0}")]
    Closed(String),
    /// The response is not valid HTTP/1.1.
    #[error("the backend sent an invalid HTTP response: {0}")]
    InvalidResponse(String),
    /// The body of the client ended with an error while the gateway forwarded it. The backend is not at fault.
    #[error("the request body of the client ended with an error: {0}")]
    RequestBody(io::Error),
    /// The backend sent no response head within the timeout.
    #[error("the backend sent no response head within {0:?}")]
    Timeout(Duration),
}

impl SendError {
    /// The kind of the error as a word from a fixed list, for records and metrics.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect_error",
            Self::Exhausted(_) => "gateway_exhausted",
            Self::StaleConnection { .. } => "stale",
            Self::Closed(_) => "connection_reset",
            Self::InvalidResponse(_) => "bad_response",
            Self::RequestBody(_) => "request_body",
            Self::Timeout(_) => "timeout",
        }
    }
}
