//! Applies the KV events of one part.

use crate::backend_cache::{BackendCache, PartCache};
use std::sync::Arc;
use tokenweir_engine::address::BackendId;
use tokenweir_kv_events::correlation::RequestKey;
use tokenweir_kv_events::decoder::{EventBatch, KvEvent};
use tokenweir_kv_events::residency::StreamState;
use tokenweir_kv_events::zmtp::{ApplyError, ConnectionError, EventSink};

/// Applies the KV events of one part (a data-parallel rank) to the known contents of its cache.
pub(crate) struct PartSink {
    backend: BackendId,
    cache: Arc<BackendCache>,
    part: Arc<PartCache>,
    state: StreamState,
}

impl PartSink {
    pub(crate) fn new(
        backend: &BackendId,
        cache: &Arc<BackendCache>,
        part: Arc<PartCache>,
    ) -> Self {
        Self {
            backend: backend.clone(),
            cache: cache.clone(),
            part,
            state: StreamState::Off,
        }
    }

    /// Applies one event. Takes the locks for each event separately, so that readers can take them in between.
    fn apply_event(&self, event: &KvEvent<'_>) -> Result<(), ApplyError> {
        let Some(chain) = self.part.contents.write().apply(event)? else {
            return Ok(());
        };
        self.cache.join_space(&chain);
        self.cache.space.load_full().write().on_stored(&chain);
        let knowledge = &self.cache.knowledge;
        if let Some(id) = chain.event.session_id
            && let Some(session) = knowledge.session_ids.number_of(id)
        {
            let key = RequestKey {
                backend: self.cache.number,
                session,
            };
            knowledge.chains().on_stored(key, &chain);
        }
        Ok(())
    }

    fn apply_batch(&self, payload: &[u8]) -> Result<bool, ApplyError> {
        let mut is_cleared = false;
        for event in EventBatch::parse(payload)? {
            let event = event?;
            is_cleared |= matches!(event, KvEvent::AllCleared);
            self.apply_event(&event)?;
        }
        Ok(is_cleared)
    }
}

impl EventSink for PartSink {
    fn clear(&mut self) {
        self.part.set_state(StreamState::Gap);
        self.part.contents.write().clear();
        self.cache.leave_space();
    }

    fn apply(&mut self, payload: &[u8]) -> Result<bool, ApplyError> {
        let result = self.apply_batch(payload);
        match &result {
            Ok(_) => drop(self.part.batches.add(1)),
            Err(error) => {
                self.cache.count_error();
                tracing::warn!(
                    backend = %self.backend,
                    %error,
                    "KV events of the backend cannot be applied: its cache counts as unknown"
                );
            }
        }
        result
    }

    fn on_state(&mut self, state: StreamState) {
        if std::mem::replace(&mut self.state, state) != state {
            tracing::info!(
                backend = %self.backend,
                state = state.as_str(),
                "the state of the KV events changed: the gateway knows the whole cache only in state exact"
            );
        }
        self.part.set_state(state);
    }

    fn on_error(&mut self, error: &ConnectionError) {
        self.cache.count_error();
        tracing::debug!(backend = %self.backend, %error, "a connection for KV events failed: trying again");
    }
}
