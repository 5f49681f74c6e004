//! Prefill and decode of one request on different backends, in the pull mode of vLLM's
//! `NixlConnector`: the roles of backends, and the bodies of both legs.
//!
//! The prefill leg is the request with a limit of one token. Its response has parameters that name the
//! blocks of the KV cache that the prefill backend keeps for some seconds. The decode leg is the request
//! of the client with these parameters: its backend reads the blocks. vLLM does not check that the blocks
//! still belong to the request, and releases them after the first read. So the parameters of a prefill
//! leg must reach at most one engine, and soon.

mod bodies;
mod role;
mod skip;

pub use bodies::{PrefillResponse, decode_request, prefill_request};
pub use role::Role;
pub use skip::PrefillSkip;
