//! Serves client connections, from the accepted socket to the end of the last response.
//!
//! [`handler`] admits a connection and detects its protocol. [`http1`] and [`http2`] read the
//! requests and write the responses. [`request`] passes each request to the proxy.

pub(crate) mod handler;
mod http1;
mod http1_connection;
mod http2;
pub(crate) mod limiter;
mod request;
pub(crate) mod shutdown;
pub(crate) mod state;
mod stream_executor;
mod write_buffer;
