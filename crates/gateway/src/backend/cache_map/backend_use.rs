//! The requests that this gateway sent to one backend. They give a model of the backend's cache, and the
//! counts of requests for each group of prompts.

use super::group_key::GroupKey;
use super::prompt_use::PromptUse;
use crate::backend::Backend;
use std::collections::HashMap;
use std::sync::Arc;
use tokenweir_kv_events::groups::{GroupNumber, ModelledCache, UsedPrompt};

/// The requests that this gateway sent to one backend: a model of the backend's cache, and request
/// counts of each group of prompts.
#[derive(Debug)]
pub(super) struct BackendUse {
    pub(super) backend: Arc<Backend>,
    pub(super) cache: ModelledCache,
    /// Request counts of each group of prompts. The index is the number of the group in `cache`.
    requests: Box<[GroupRequests]>,
    /// Number of restarts of the server process until the last recorded request. A further restart
    /// empties `cache`.
    restarts: u64,
}

/// Counts of the requests of one group of prompts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct GroupRequests {
    pub(super) requests: u64,
    /// Number of requests that reused at least one cached text block of the prompt.
    pub(super) reused: u64,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
}

impl BackendUse {
    pub(super) fn new(backend: Arc<Backend>) -> Self {
        Self {
            restarts: backend.load.restart_count(),
            backend,
            cache: ModelledCache::new(fastrand::u64(..)),
            requests: vec![GroupRequests::default(); GroupNumber::COUNT].into(),
        }
    }

    /// Approximate memory of this value, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.cache.bytes() + size_of_val(&*self.requests)
    }

    pub(super) fn add(&mut self, used: &PromptUse<'_>) {
        let restarts = self.backend.load.restart_count();
        if std::mem::replace(&mut self.restarts, restarts) != restarts {
            self.cache.clear();
        }
        let block_tokens = used.block_tokens();
        let full_blocks = used.prompt.blocks.len() as f64 * block_tokens;
        let rest = (used.prompt_tokens as f64 - full_blocks).max(0.0) + used.output_tokens as f64;
        let capacity = self.backend.load.estimator.retained_blocks(block_tokens);
        let prompt =
            UsedPrompt { blocks: &used.prompt.blocks, unmatched: (rest / block_tokens) as usize };
        let (group, is_new) = self.cache.use_prompt(prompt, capacity as usize);
        let requests = &mut self.requests[usize::from(group.0)];
        if is_new {
            *requests = GroupRequests::default();
        }
        requests.requests += 1;
        requests.reused += u64::from(used.cached_tokens as f64 >= block_tokens);
        requests.prompt_tokens += used.prompt_tokens;
        requests.cached_tokens += used.cached_tokens;
    }

    /// Returns the request counts of each group of prompts.
    pub(super) fn requests(&self) -> HashMap<GroupKey, GroupRequests> {
        let groups = self.cache.groups().counts();
        let requests = groups.map(|(number, group)| {
            let key = group.text.map_or(GroupKey::Other, GroupKey::Text);
            (key, self.requests[usize::from(number.0)])
        });
        requests.collect()
    }
}
