//! Receives the KV events of one backend: finds its publishers, subscribes to each, and begins again
//! when they change.

use super::backend_cache::{BackendCache, RankCache};
use super::settings::KvEventSource;
use super::sources::{self, Publisher};
use futures_util::future::{join_all, pending};
use http::HeaderValue;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::address::BackendAddress;
use tokenweir_core::record::BackendId;
use tokenweir_kv_events::correlation::RequestKey;
use tokenweir_kv_events::decoder::{EventBatch, KvEvent};
use tokenweir_kv_events::residency::StreamState;
use tokenweir_kv_events::zmtp::{ApplyError, ConnectionError, EventSink, Subscriber};
use tokenweir_net::client::HttpClient;
use tokenweir_net::page_fetcher::PageFetcher;
use tokio::time::sleep;

/// Time between two requests for the publishers while the events cannot be used.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum size of a list of publishers, in bytes.
const MAX_LIST_BYTES: usize = 64 << 10;

/// The backend whose events are received.
#[derive(Debug, Clone)]
pub(in crate::backend) struct EventTarget {
    pub(in crate::backend) backend: BackendId,
    pub(in crate::backend) address: BackendAddress,
    /// The `Authorization` header of requests to the backend.
    pub(in crate::backend) authorization: Option<HeaderValue>,
}

/// Receives the events of a backend until the future is dropped.
pub(in crate::backend) async fn run(
    target: EventTarget,
    cache: Arc<BackendCache>,
    source: KvEventSource,
    client: HttpClient,
    timeout: Duration,
) {
    let EventTarget { backend, address, authorization } = target;
    let (host, _) = address.host_and_port();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let mut fetcher =
        PageFetcher::new(client, address.clone(), authorization.as_ref(), timeout, MAX_LIST_BYTES);
    let configured = sources::configured(&source);
    let topic = source.topic.as_deref();
    let mut publishers = configured.clone();
    loop {
        let Some(current) = &publishers else {
            publishers = sources::discover(&mut fetcher, host, topic).await;
            if publishers.is_none() {
                cache.count_error();
                sleep(DISCOVERY_INTERVAL).await;
            }
            continue;
        };
        tracing::info!(
            backend = %backend,
            publishers = current.len(),
            port = current.first().map(|publisher| publisher.endpoint.port),
            "subscribing to the KV events of the backend"
        );
        let ranks = cache.set_rank_count(current.len());
        let subscribers = current.iter().zip(ranks.iter()).map(|(publisher, rank)| {
            let sink = RankSink::new(&backend, &cache, rank.clone());
            let Publisher { endpoint, replay_endpoint, topic } = publisher.clone();
            async move { Subscriber::new(endpoint, replay_endpoint, topic, sink).run().await }
        });
        let changed = async {
            if configured.is_some() {
                return pending().await;
            }
            discover_change(&mut fetcher, host, topic, &cache, current).await
        };
        let found = tokio::select! {
            found = changed => Some(found),
            _ = join_all(subscribers) => None,
        };
        publishers = found;
    }
}

/// Waits until the backend has other publishers than `current`, and returns them. The backend is
/// asked only while no events arrive: a backend that restarted may have other ports.
async fn discover_change(
    fetcher: &mut PageFetcher,
    host: &str,
    topic: Option<&str>,
    cache: &BackendCache,
    current: &[Publisher],
) -> Vec<Publisher> {
    loop {
        sleep(DISCOVERY_INTERVAL).await;
        if matches!(cache.state(), StreamState::FromHere | StreamState::Exact) {
            continue;
        }
        if let Some(found) = sources::discover(fetcher, host, topic).await
            && found != current
        {
            return found;
        }
    }
}

/// Applies the events of one data-parallel rank.
pub(super) struct RankSink {
    backend: BackendId,
    cache: Arc<BackendCache>,
    rank: Arc<RankCache>,
    state: StreamState,
}

impl RankSink {
    pub(super) fn new(
        backend: &BackendId,
        cache: &Arc<BackendCache>,
        rank: Arc<RankCache>,
    ) -> Self {
        let (backend, cache) = (backend.clone(), cache.clone());
        Self { backend, cache, rank, state: StreamState::Off }
    }

    /// Each event is applied with the locks of its own, so that readers find them open in between.
    fn apply_event(&self, event: &KvEvent<'_>) -> Result<(), ApplyError> {
        let Some(chain) = self.rank.contents_mut().apply(event)? else { return Ok(()) };
        self.cache.join_space(&chain);
        self.cache.space().index_mut().on_stored(&chain);
        let (knowledge, Some(id)) = (&self.cache.knowledge, chain.event.session_id) else {
            return Ok(());
        };
        if let Some(session) = knowledge.session_ids.number_of(id) {
            let key = RequestKey { backend: self.cache.number, session };
            knowledge.chains().on_stored(key, &chain);
            return Ok(());
        }
        let first_token = u64::from(chain.first_depth) * u64::from(chain.event.block_size);
        if let Some(outline) = knowledge.session_ids.outline(id, first_token) {
            self.cache.space().index_mut().learn_outline(&outline, &chain);
            knowledge.count_outline();
        }
        Ok(())
    }

    fn apply_batch(&self, payload: &[u8]) -> Result<bool, ApplyError> {
        let mut is_cleared = false;
        for event in EventBatch::parse(payload)?.events() {
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
        self.rank.contents_mut().clear();
        self.cache.leave_space();
    }

    fn apply(&mut self, payload: &[u8]) -> Result<bool, ApplyError> {
        self.rank.count_batch();
        self.apply_batch(payload).inspect_err(|error| {
            self.cache.count_error();
            tracing::warn!(
                backend = %self.backend,
                %error,
                "KV events of the backend cannot be applied: its cache counts as unknown"
            );
        })
    }

    fn on_state(&mut self, state: StreamState) {
        if std::mem::replace(&mut self.state, state) != state {
            let state = BackendCache::STATES[state as usize];
            tracing::info!(backend = %self.backend, state, "state of the KV events");
        }
        self.rank.set_state(state);
    }

    fn on_error(&mut self, error: &ConnectionError) {
        self.cache.count_error();
        tracing::debug!(backend = %self.backend, %error, "KV events");
    }
}
