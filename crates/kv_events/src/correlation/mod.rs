//! Which blocks of an engine are which text. The gateway knows the text of a request as hashes of
//! its blocks of 512 bytes; the engine names its blocks by hashes of tokens. A request with a session
//! id of its own connects both: the events that it causes name its blocks.
//!
//! Nothing is guessed: a request whose events do not form one chain, or that contradict the cached
//! tokens that the engine reported, teaches nothing.

mod bounded_map;
mod request_chains;
mod text_index;

pub use request_chains::{RequestChain, RequestChains, RequestKey};
pub use text_index::{AnsweredRequest, TextIndex};
