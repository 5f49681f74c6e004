//! A request whose stored blocks the gateway recognizes in KV events, because the events have the
//! session id that the gateway set.

use super::backend_cache::{BackendCache, KvEventsFacet};
use super::knowledge::EndedRequest;
use http::{HeaderMap, HeaderValue};
use std::sync::{Arc, Mutex, OnceLock};
use tokenweir_kv_events::correlation::RequestKey;
use tokenweir_protocol::headers;
use tokenweir_protocol::mutex::lock;
use tokenweir_protocol::openai::Usage;
use tokenweir_routing::PromptFingerprint;

/// The followed request of a lease. Empty: the gateway does not look for the blocks of the request in the KV
/// events of the backend.
#[derive(Debug, Default)]
pub(crate) struct FollowedBlocks(OnceLock<FollowedRequest>);

/// One attempt of a followed request: KV events with the session id that the gateway set show which
/// blocks the engine stored. When the value is dropped, the learner compares the prompt with them.
#[derive(Debug)]
pub(super) struct FollowedRequest {
    cache: Arc<BackendCache>,
    session: u64,
    header: HeaderValue,
    prompt: Arc<PromptFingerprint>,
    usage: Mutex<Usage>,
}

impl FollowedBlocks {
    /// Begins to follow the blocks of the request in the KV events of the backend, and sets the session id that
    /// the request must have. Does nothing if the events are not received, or the prompt has no text.
    pub(crate) fn set_header(
        &self,
        facet: &KvEventsFacet,
        prompt: &Arc<PromptFingerprint>,
        headers: &mut HeaderMap,
    ) {
        let Some(cache) = facet.cache() else { return };
        if self.0.get().is_none()
            && let Some(followed) = FollowedRequest::begin(cache, prompt)
        {
            // If another call has set the value in the meantime, this value is dropped without effect.
            let _ = self.0.set(followed);
        }
        if let Some(followed) = self.0.get() {
            headers::set_session_id(headers, followed.header());
        }
    }

    /// Stores the token counts that the response reported.
    pub(crate) fn set_usage(&self, usage: Usage) {
        if let Some(followed) = self.0.get() {
            followed.set_usage(usage);
        }
    }
}

impl FollowedRequest {
    /// Begins to follow a request. `None`: the prompt has no text.
    pub(super) fn begin(
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
    pub(super) fn header(&self) -> &HeaderValue {
        &self.header
    }

    /// Stores the token counts that the response reported.
    pub(super) fn set_usage(&self, usage: Usage) {
        *lock(&self.usage) = usage;
    }
}

impl Drop for FollowedRequest {
    fn drop(&mut self) {
        let usage = *lock(&self.usage);
        self.cache.knowledge.queue_ended(EndedRequest {
            key: RequestKey { backend: self.cache.number, session: self.session },
            space: self.cache.space.load_full(),
            block_size: self.cache.block_size(),
            prompt: self.prompt.clone(),
            usage,
        });
    }
}
