//! Lets one backend compute the prompt of a request (prefill) and another backend the output (decode), in the
//! pull mode of vLLM's `NixlConnector`.
//!
//! The prefill leg is the client's request with a limit of one token. The prefill backend keeps the KV cache
//! blocks of the prompt for some seconds, and its response has parameters that name these blocks. The decode
//! leg is the client's request with these parameters: the decode backend reads the blocks. vLLM does not
//! check that the blocks still belong to the request, and releases them after the first read. So the gateway
//! must send the parameters of a prefill leg to at most one engine, and soon.
//!
//! The decode backend is leased first. If a prefill leg fails or would not be faster, the decode backend
//! computes the prompt itself: a fault of prefill backends never fails a request.

mod bodies;
mod leg;
mod note;
mod option;
pub mod rows;
mod search;
mod step;

pub use note::{PredictedTtfts, PrefillNote, PrefillSkip};
pub use step::PrefillLegs;
