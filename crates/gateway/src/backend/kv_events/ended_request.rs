//! The data that the learner needs about a followed request that has ended. A request is followed
//! if the gateway set its session id, so that KV events show which blocks the engine stored for the
//! request.

use super::key_space::KeySpace;
use std::sync::{Arc, Weak};
use tokenweir_kv_events::correlation::{RequestChain, RequestKey};
use tokenweir_protocol::openai::Usage;
use tokenweir_routing::PromptFingerprint;

/// The cache in which the engine stored the blocks of a request.
pub(super) trait RequestCache: Send + Sync {
    /// Records that the engine stored a chain of blocks for a request, and that the text of the
    /// request begins with the text block `text`.
    fn set_text(&self, chain: &RequestChain, text: u64);
}

/// A followed request that has ended.
#[derive(Debug)]
pub(super) struct EndedRequest {
    pub(super) key: RequestKey,
    /// The cache of the backend. The reference is weak, because the cache owns the queue in which this
    /// value waits.
    pub(super) cache: Weak<dyn RequestCache>,
    /// The key space to which the hashes of the request's blocks belong.
    pub(super) space: Arc<KeySpace>,
    /// Tokens in an engine block.
    pub(super) block_size: u32,
    pub(super) prompt: Arc<PromptFingerprint>,
    pub(super) usage: Usage,
}
