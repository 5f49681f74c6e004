//! A request whose stored blocks the gateway recognizes in KV events, because the events have the
//! session id that the gateway set.

use crate::backend_cache::BackendCache;
use crate::learning::EndedRequest;
use http::{HeaderMap, HeaderValue};
use std::sync::{Arc, Mutex};
use tokenweir_gateway::backend::facets::FollowedPrompt;
use tokenweir_kv_events::correlation::RequestKey;
use tokenweir_protocol::headers;
use tokenweir_protocol::mutex::lock;
use tokenweir_protocol::openai::Usage;
use tokenweir_routing::PromptFingerprint;

/// One attempt of a followed request: KV events with the session id that the gateway set show which
/// blocks the engine stored. When the value is dropped, the learner compares the prompt with them.
#[derive(Debug)]
pub(crate) struct FollowedRequest {
    cache: Arc<BackendCache>,
    session: u64,
    pub(crate) header: HeaderValue,
    prompt: Arc<PromptFingerprint>,
    usage: Mutex<Usage>,
}

impl FollowedRequest {
    /// Begins to follow a request. `None`: the prompt has no text.
    pub(crate) fn begin(
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
}

impl FollowedPrompt for FollowedRequest {
    /// Sets the session id that the request must have.
    fn set_headers(&self, headers: &mut HeaderMap) {
        if !self.cache.is_withdrawn.get() {
            headers::set_session_id(headers, &self.header);
        }
    }

    fn set_usage(&self, usage: Usage) {
        *lock(&self.usage) = usage;
    }
}

impl Drop for FollowedRequest {
    fn drop(&mut self) {
        let usage = *lock(&self.usage);
        self.cache.knowledge.queue_ended(EndedRequest {
            key: RequestKey {
                backend: self.cache.number,
                session: self.session,
            },
            space: self.cache.space.load_full(),
            block_size: self.cache.block_size(),
            prompt: self.prompt.clone(),
            usage,
        });
    }
}
