//! Receives the KV events of one backend: finds its publishers, subscribes to each of them, and begins
//! again when the publishers change.

use crate::backend::Backend;
use crate::backend::identity::BackendIdentity;
use crate::backend::kv_events::backend_cache::BackendCache;
use crate::backend::kv_events::knowledge::CacheKnowledge;
use crate::backend::kv_events::rank_cache::RankCache;
use crate::backend::kv_events::settings::{KvEventSource, host_of};
use crate::backend::kv_events::sources::{self, Publisher};
use futures_util::future::{join_all, pending};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_engine::address::BackendId;
use tokenweir_kv_events::correlation::RequestKey;
use tokenweir_kv_events::decoder::{EventBatch, KvEvent};
use tokenweir_kv_events::residency::StreamState;
use tokenweir_kv_events::zmtp::{
    ApplyError, Connection, ConnectionError, EventSink, SocketType, Subscriber,
};
use tokenweir_net::client::HttpClient;
use tokenweir_net::page_fetcher::PageFetcher;
use tokio::time::sleep;

/// Time between two requests for the list of publishers while the KV events cannot be used.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(5);
/// Time between two requests for the list of publishers of a backend whose KV events are used only if it
/// offers them.
const OFFER_INTERVAL: Duration = Duration::from_secs(30);
/// Time between two checks of the last scrape of a backend that has shown no prefix cache.
const SCRAPE_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum size of a list of publishers, in bytes.
const MAX_LIST_BYTES: usize = 64 << 10;

/// Finds the publishers of the KV events of one backend.
struct PublisherFinder {
    fetcher: PageFetcher,
    host: String,
    source: KvEventSource,
    configured: Option<Vec<Publisher>>,
}

/// Receives the KV events of a backend until the future is dropped.
pub(in crate::backend) async fn run(
    backend: Arc<Backend>,
    knowledge: Arc<CacheKnowledge>,
    source: KvEventSource,
    client: HttpClient,
    timeout: Duration,
) {
    let identity = &backend.identity;
    let cache = || identity.kv_cache_or(|| Arc::new(BackendCache::new(knowledge.clone())));
    let mut finder = PublisherFinder::new(identity, source, client, timeout);
    loop {
        let publishers = if finder.is_optional() {
            finder.offered(&backend).await
        } else {
            finder.required(cache()).await
        };
        let cache = cache();
        tracing::info!(
            backend = %identity.id,
            publishers = publishers.len(),
            port = publishers.first().map(|publisher| publisher.endpoint.port),
            "subscribing to the KV events of the backend"
        );
        let ranks = cache.set_rank_count(publishers.len());
        let subscribers = publishers.iter().zip(ranks.iter()).map(|(publisher, rank)| {
            let sink = RankSink::new(&identity.id, cache, rank.clone());
            let Publisher { endpoint, replay_endpoint, topic } = publisher.clone();
            async move { Subscriber::new(endpoint, replay_endpoint, topic, sink).run().await }
        });
        tokio::select! {
            () = finder.wait_change(cache, &publishers) => {}
            _ = join_all(subscribers) => {}
        }
    }
}

impl PublisherFinder {
    fn new(
        identity: &BackendIdentity,
        source: KvEventSource,
        client: HttpClient,
        timeout: Duration,
    ) -> Self {
        let (address, authorization) = (identity.address.clone(), identity.authorization.as_ref());
        Self {
            host: host_of(&address),
            fetcher: PageFetcher::new(client, address, authorization, timeout, MAX_LIST_BYTES),
            configured: sources::configured(&source),
            source,
        }
    }

    /// Whether the gateway uses the KV events only if the backend offers them, because no setting
    /// requires them.
    fn is_optional(&self) -> bool {
        self.source.enabled.is_none()
    }

    /// The publishers of the backend: the configured ones, or those that it lists. `None`: not
    /// known at the moment.
    async fn find(&mut self) -> Option<Vec<Publisher>> {
        if let Some(configured) = &self.configured {
            return Some(configured.clone());
        }
        sources::discover(&mut self.fetcher, &self.host).await
    }

    /// Waits until the backend has publishers. Each attempt that finds no publisher counts as an error.
    async fn required(&mut self, cache: &BackendCache) -> Vec<Publisher> {
        loop {
            if let Some(found) = self.find().await.filter(|found| !found.is_empty()) {
                return found;
            }
            cache.count_error();
            sleep(DISCOVERY_INTERVAL).await;
        }
    }

    /// Waits until the backend names publishers and the first publisher answers. It is no error if
    /// no publisher answers, because many engines publish at ports that the gateway cannot reach. A
    /// backend whose metrics page shows no prefix cache publishes no events, and is not asked for
    /// publishers.
    async fn offered(&mut self, backend: &Backend) -> Vec<Publisher> {
        let has_prefix_cache = || {
            let state = backend.health.state();
            state.sample.as_ref().is_some_and(|sample| sample.load.prefix_queries.is_some())
        };
        loop {
            while !has_prefix_cache() {
                sleep(SCRAPE_POLL_INTERVAL).await;
            }
            if let Some(found) = self.find().await
                && let Some(first) = found.first()
                && Connection::open(&first.endpoint, SocketType::Sub).await.is_ok()
            {
                return found;
            }
            sleep(OFFER_INTERVAL).await;
        }
    }

    /// Waits until the backend has other publishers than `current`. The backend is asked only while
    /// its events cannot be trusted: a backend that restarted may have other ports, or publish no
    /// events any more.
    async fn wait_change(&mut self, cache: &BackendCache, current: &[Publisher]) {
        if self.configured.is_some() {
            return pending().await;
        }
        loop {
            sleep(DISCOVERY_INTERVAL).await;
            if matches!(cache.state(), StreamState::FromHere | StreamState::Exact) {
                continue;
            }
            let Some(found) = self.find().await else { continue };
            if found.is_empty() && self.is_optional() {
                cache.withdraw();
                return;
            }
            if !found.is_empty() && found != current {
                return;
            }
        }
    }
}

/// Applies the KV events of one data-parallel rank to the known contents of its cache.
pub(in crate::backend) struct RankSink {
    backend: BackendId,
    cache: Arc<BackendCache>,
    rank: Arc<RankCache>,
    state: StreamState,
}

impl RankSink {
    pub(in crate::backend) fn new(
        backend: &BackendId,
        cache: &Arc<BackendCache>,
        rank: Arc<RankCache>,
    ) -> Self {
        let (backend, cache) = (backend.clone(), cache.clone());
        Self { backend, cache, rank, state: StreamState::Off }
    }

    /// Applies one event. Takes the locks for each event separately, so that readers get them in
    /// between.
    fn apply_event(&self, event: &KvEvent<'_>) -> Result<(), ApplyError> {
        let Some(chain) = self.rank.contents.write().apply(event)? else { return Ok(()) };
        self.cache.join_space(&chain);
        self.cache.space.load_full().write().on_stored(&chain);
        let knowledge = &self.cache.knowledge;
        if let Some(id) = chain.event.session_id
            && let Some(session) = knowledge.session_ids.number_of(id)
        {
            let key = RequestKey { backend: self.cache.number, session };
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

impl EventSink for RankSink {
    fn clear(&mut self) {
        self.rank.set_state(StreamState::Gap);
        self.rank.contents.write().clear();
        self.cache.leave_space();
    }

    fn apply(&mut self, payload: &[u8]) -> Result<bool, ApplyError> {
        let result = self.apply_batch(payload);
        match &result {
            Ok(_) => self.rank.count_batch(),
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
        self.rank.set_state(state);
    }

    fn on_error(&mut self, error: &ConnectionError) {
        self.cache.count_error();
        tracing::debug!(backend = %self.backend, %error, "a connection for KV events failed: trying again");
    }
}
