//! The protocols between clients, backends and the gateway: HTTP/1.1, JSON, server-sent events, trace context
//! and the OpenAI API. The crate also has the clocks, units, limits and histograms that all crates need.
//!
//! No module opens a socket, reads a file or draws a random number: bytes, time and random numbers are
//! arguments. Only [`clock`] reads clocks.

pub mod atomic;
pub mod clock;
pub mod event_period;
pub mod headers;
pub mod histogram;
pub mod http1;
pub mod json;
pub mod limits;
pub mod metric_kind;
pub mod mutex;
pub mod named_enum;
pub mod openai;
pub mod sse;
#[cfg(test)]
mod test_input;
pub mod trace_context;
pub mod units;
