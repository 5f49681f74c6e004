//! The KV events of one backend.

use crate::backend_cache::{BackendCache, CacheStatus};
use crate::settings::{KvEventSource, KvEventsSettings};
use std::sync::{Arc, OnceLock};
use tokenweir_engine::address::BackendAddress;
use tokenweir_gateway::backend::facets::{BackendFacet, BackendTargets};
use tokenweir_gateway::status::StatusBlocks;

/// The publishers of one backend, and the known contents of its cache.
#[derive(Debug, Default)]
pub struct KvEventsFacet {
    /// The prefix cache of the backend as its KV events show it. Empty until the gateway subscribes
    /// to the events.
    pub(crate) cache: OnceLock<Arc<BackendCache>>,
    /// The publishers of KV events. `None`: the gateway does not subscribe to them.
    pub(crate) source: Option<KvEventSource>,
}

impl KvEventsFacet {
    /// The KV events of the backend at `address`. `source`: the settings of this backend.
    pub fn new(
        source: Option<&KvEventSource>,
        settings: &KvEventsSettings,
        address: &BackendAddress,
    ) -> Self {
        let source = source.cloned().unwrap_or_default();
        Self {
            source: source.resolve(settings, address),
            ..Self::default()
        }
    }

    /// The prefix cache of the backend. `None`: the gateway does not subscribe to its KV events.
    pub fn cache(&self) -> Option<&Arc<BackendCache>> {
        self.cache.get().filter(|cache| !cache.is_withdrawn.get())
    }
}

impl BackendFacet for KvEventsFacet {
    fn is_same_endpoint(&self, other: &dyn BackendFacet) -> bool {
        other
            .downcast::<Self>()
            .is_some_and(|other| other.source == self.source)
    }

    fn add_status(&self, _: &BackendTargets, blocks: &mut StatusBlocks) {
        let cache: Option<CacheStatus> = self.cache().map(|cache| cache.status());
        blocks.add(cache);
    }
}
