//! Which blocks of an engine are which text. The gateway knows the text of a request as hashes of
//! its blocks of 512 bytes; the engine names its blocks by hashes of tokens. A request with a session
//! id of its own connects both: the events that it causes name its blocks.
//!
//! Gateways with a shared key write an outline of each prompt into the session id, so that each learns
//! from the requests of all.
//!
//! Nothing is guessed: a request whose events do not form one chain, or that contradict the cached
//! tokens that the engine reported, teaches nothing.

mod bounded_map;
mod prompt_lookup;
mod prompt_outline;
mod request_chains;
mod session_ids;
mod text_index;

pub use prompt_lookup::{CachedPrompt, PromptLookup, PromptText};
pub use prompt_outline::PromptOutline;
pub use request_chains::{RequestChain, RequestChains, RequestKey};
pub use session_ids::{OutlineKey, SessionIds};
pub use text_index::{Alignment, AnsweredRequest, ChainBlock, TextIndex};
