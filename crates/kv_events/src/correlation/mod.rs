//! Learns which text the cached blocks of an engine contain.
//!
//! The gateway divides the text of a prompt into *text blocks* of 512 bytes. The engine divides the prompt into
//! *engine blocks* of tokens, and names each engine block by a hash of tokens. The gateway gives each request a
//! session id of its own. The KV events that the request causes contain this id, so they show the *chain* of
//! the engine blocks of its prompt. The *place* of a text block is the last engine block that ends before or at
//! the end of the text block.
//!
//! The gateway ignores a request whose events do not form one chain, or contradict the number of cached tokens
//! that the engine reported.

mod bounded_map;
mod prompt_lookup;
mod request_chains;
mod session_ids;
mod text_index;

pub use prompt_lookup::{CachedPrompt, PromptLookup, PromptText};
pub use request_chains::{RequestChain, RequestChains, RequestKey};
pub use session_ids::{IssuedSessionId, SessionIds};
pub use text_index::{Alignment, AnsweredRequest, ChainBlock, TextIndex};
