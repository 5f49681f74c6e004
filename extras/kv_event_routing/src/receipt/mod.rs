//! Receives the KV events of one backend: finds its publishers, subscribes to each of them, and begins
//! again when the publishers change.

mod part_sink;
mod sources;

pub(crate) use part_sink::PartSink;

use crate::backend_cache::BackendCache;
use crate::facet::KvEventsFacet;
use crate::learning::{CacheKnowledge, start_learner};
use crate::option::KvEventsOption;
use crate::settings::KvEventSource;
use futures_util::future::{join_all, pending};
use sources::Publisher;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_gateway::backend::health_checker::CheckContext;
use tokenweir_gateway::backend::pool::BackendPool;
use tokenweir_gateway::backend::{Backend, BackendDriver, BackendIdentity};
use tokenweir_kv_events::residency::StreamState;
use tokenweir_kv_events::zmtp::{Connection, SocketType, Subscriber};
use tokenweir_net::page_fetcher::PageFetcher;
use tokenweir_net::supervise::{self, SupervisedTask};
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

impl BackendDriver for KvEventsOption {
    fn start(&self, _: &Arc<BackendPool>) -> Option<SupervisedTask> {
        self.0.get().map(start_learner)
    }

    /// Starts to receive the KV events of a backend, unless the gateway does not use them.
    fn start_for(
        &self,
        backend: &Arc<Backend>,
        context: &Arc<CheckContext>,
    ) -> Option<SupervisedTask> {
        backend.facets.get::<KvEventsFacet>()?.source.as_ref()?;
        let backend = backend.clone();
        let knowledge = self.0.get()?.clone();
        let context = context.clone();
        let run = move || run(backend.clone(), knowledge.clone(), context.clone());
        Some(supervise::spawn(crate::settings::TASK, run))
    }
}

/// Receives the KV events of a backend until the future is dropped.
async fn run(backend: Arc<Backend>, knowledge: Arc<CacheKnowledge>, context: Arc<CheckContext>) {
    let identity = &backend.identity;
    let Some(facet) = backend.facets.get::<KvEventsFacet>() else {
        return;
    };
    let cache = || {
        let cache = facet
            .cache
            .get_or_init(|| Arc::new(BackendCache::new(knowledge.clone())));
        // From now on routing reads the cache. If the facet already has one, this value is dropped without
        // effect.
        let _ = backend.facets.prompt_cache.set(cache.clone());
        cache
    };
    let Some(source) = facet.source.clone() else {
        return;
    };
    let mut finder = PublisherFinder::new(identity, source, &context);
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
        let parts = cache.set_part_count(publishers.len());
        let subscribers = publishers
            .iter()
            .zip(parts.iter())
            .map(|(publisher, part)| {
                let sink = PartSink::new(&identity.id, cache, part.clone());
                let Publisher {
                    endpoint,
                    replay_endpoint,
                    topic,
                } = publisher.clone();
                async move {
                    Subscriber::new(endpoint, replay_endpoint, topic, sink)
                        .run()
                        .await
                }
            });
        tokio::select! {
            () = finder.wait_change(cache, &publishers) => {}
            _ = join_all(subscribers) => {}
        }
    }
}

impl PublisherFinder {
    fn new(identity: &BackendIdentity, source: KvEventSource, context: &CheckContext) -> Self {
        let client = context.client.clone();
        let timeout = context.settings.timeout;
        let address = identity.address.clone();
        let authorization = identity.authorization.as_ref();
        Self {
            // The host of an IPv6 address has no brackets here.
            host: address
                .host_and_port()
                .0
                .trim_matches(['[', ']'])
                .to_owned(),
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

    /// Waits until the backend names publishers and the first publisher answers. A missing answer is no error,
    /// because many engines publish at ports that the gateway cannot reach. A backend whose metrics page shows
    /// no prefix cache publishes no events, so it is not asked.
    async fn offered(&mut self, backend: &Backend) -> Vec<Publisher> {
        let has_prefix_cache = || {
            let state = backend.health.state();
            state
                .sample
                .as_ref()
                .is_some_and(|sample| sample.load.prefix_queries.is_some())
        };
        loop {
            while !has_prefix_cache() {
                sleep(SCRAPE_POLL_INTERVAL).await;
            }
            if let Some(found) = self.find().await
                && let Some(first) = found.first()
                && Connection::open(&first.endpoint, SocketType::Sub)
                    .await
                    .is_ok()
            {
                return found;
            }
            sleep(OFFER_INTERVAL).await;
        }
    }

    /// Waits until the backend has other publishers than `current`. The backend is asked only while its events
    /// cannot be trusted, because a restarted backend may use other ports or publish no events any more.
    async fn wait_change(&mut self, cache: &BackendCache, current: &[Publisher]) {
        if self.configured.is_some() {
            return pending().await;
        }
        loop {
            sleep(DISCOVERY_INTERVAL).await;
            if matches!(cache.state(), StreamState::FromHere | StreamState::Exact) {
                continue;
            }
            let Some(found) = self.find().await else {
                continue;
            };
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
