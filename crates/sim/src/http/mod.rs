//! vLLM's HTTP API on a socket.

mod event_stream;
mod request;

mod routes;

mod server;

pub(crate) use server::serve;
