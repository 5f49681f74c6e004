//! A request whose stored blocks the gateway recognizes in KV events, because the events have the
//! session id that the gateway set.

use super::backend_cache::BackendCache;
use super::knowledge::EndedRequest;
use http::HeaderValue;
use std::sync::{Arc, Mutex};
use tokenweir_kv_events::correlation::RequestKey;
use tokenweir_protocol::mutex::lock;
use tokenweir_protocol::openai::Usage;
use tokenweir_routing::PromptFingerprint;

/// One attempt of a followed request: KV events with the session id that the gateway set show which
/// blocks the engine stored. When the value is dropped, the learner compares the prompt with them.
#[derive(Debug)]
pub(in crate::backend) struct FollowedRequest {
    cache: Arc<BackendCache>,
    session: u64,
    header: HeaderValue,
    prompt: Arc<PromptFingerprint>,
    usage: Mutex<Usage>,
}

impl FollowedRequest {
    /// Begins to follow a request. `None`: the prompt has no text.
    pub(in crate::backend) fn begin(
        cache: &Arc<BackendCache>,
        prompt: &Arc<PromptFingerprint>,
    ) -> Option<Self> {
        if prompt.bytes == 0 {
            return None;
        }
        let id = cache.knowledge.session_ids.issue();
        Some(Self {
            cache: cache.clone(),
            session: id.number,
            header: HeaderValue::from_str(&id.text).ok()?,
            prompt: prompt.clone(),
            usage: Mutex::default(),
        })
    }

    /// The header value with the session id that the gateway set.
    pub(in crate::backend) fn header(&self) -> &HeaderValue {
        &self.header
    }

    /// Stores the token counts that the response reported.
    pub(in crate::backend) fn set_usage(&self, usage: Usage) {
        *lock(&self.usage) = usage;
    }
}

impl Drop for FollowedRequest {
    fn drop(&mut self) {
        let usage = *lock(&self.usage);
        self.cache.knowledge.queue_ended(EndedRequest {
            key: RequestKey { backend: self.cache.number, session: self.session },
            ranks: self.cache.ranks.load_full(),
            space: self.cache.space.load_full(),
            block_size: self.cache.block_size(),
            prompt: self.prompt.clone(),
            usage,
        });
    }
}
