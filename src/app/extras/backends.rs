//! The options that work with backends: their state for all backends of a pool, their state for one backend,
//! and their background tasks.

use super::attached::AttachedOptions;
use super::{gpu, kv_event_routing, peer_exchange, ranks, sessions};
use crate::config::{BackendConfig, Config};
use gpu::GpuFacet;
use kv_event_routing::{CacheKnowledge, KvEventsDriver, KvEventsFacet};
use peer_exchange::{ExchangeFacet, PeerExchange, PeerExchangeError};
use ranks::{RankFacet, RankProbes};
use sessions::{GatewaySharing, Sharing};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokenweir_gateway::backend::BackendDrivers;
use tokenweir_gateway::backend::facets::{BackendFacet, PoolFacets};
use tokenweir_gateway::status::StatusSource;
use tokenweir_request::access::QuotaScope;
use tokenweir_settings::Environment;

/// The options that work with backends.
#[derive(Clone)]
pub struct BackendOptions {
    pub(super) attached: Arc<AttachedOptions>,
    exchange: Option<ExchangeFacet>,
    cache_knowledge: Arc<CacheKnowledge>,
}

/// Returns why an option cannot start with this configuration, and the path of the key. Unreadable secrets are
/// ignored here. `None`: all options can start.
pub(in crate::app) fn obstacle(
    config: &Config,
    env: impl Environment,
) -> Option<(&'static str, PeerExchangeError)> {
    let error = config.peer_exchange.start(env).err()?;
    matches!(error, PeerExchangeError::Key(_)).then_some(("peer_exchange.key", error))
}

/// Whether all gateways count limits together.
pub(in crate::app) fn quota_scope(config: &Config) -> QuotaScope {
    if config.peer_exchange.url.is_some() {
        QuotaScope::Shared
    } else {
        QuotaScope::Gateway
    }
}

impl BackendOptions {
    /// The options before the first backend exists. `env` returns the value of an environment variable.
    pub fn new(config: &Config, env: impl Environment) -> Result<Self, PeerExchangeError> {
        Ok(Self {
            attached: Arc::new(AttachedOptions::new(config)),
            exchange: config.peer_exchange.start(env)?.map(ExchangeFacet),
            cache_knowledge: CacheKnowledge::new(config.kv_events),
        })
    }

    /// The state that options share between all backends of the pool.
    pub fn pool_facets(&self) -> PoolFacets {
        let mut facets = self.attached.parts.pool_facets.clone();
        if let Some(exchange) = &self.exchange {
            facets.push(Arc::new(exchange.clone()));
        }
        PoolFacets(facets)
    }

    /// The background work of the options for backends.
    pub fn drivers(&self) -> BackendDrivers {
        let mut drivers: BackendDrivers = vec![Arc::new(RankProbes)];
        drivers.extend(self.attached.parts.drivers.iter().cloned());
        drivers.push(Arc::new(KvEventsDriver(self.cache_knowledge.clone())));
        if let Some(exchange) = &self.exchange {
            drivers.push(Arc::new(exchange.clone()));
        }
        drivers
    }

    /// The parts of the options that belong to the backend of `entry`. Status blocks keep this order.
    pub fn facets(&self, config: &Config, entry: &BackendConfig) -> Vec<Box<dyn BackendFacet>> {
        let kv_events = entry.kv_events.clone().unwrap_or_default();
        let source = kv_events.resolve(&config.kv_events, &entry.url);
        let cost = config.cost.of_backend(entry.gpus, entry.gpu_hour_price);
        let ranks = RankFacet::new(config.routing.data_parallel_ranks);
        let mut facets: Vec<Box<dyn BackendFacet>> = vec![Box::new(ranks)];
        facets.extend(self.attached.parts.facets.iter().map(|create| create()));
        facets.push(Box::new(KvEventsFacet::new(source)));
        facets.push(Box::new(GpuFacet::new(cost)));
        if let Some(exchange) = &self.exchange {
            facets.push(Box::new(exchange.clone()));
        }
        facets
    }

    /// The exchange with other gateways. `None`: not configured.
    pub(super) fn exchange(&self) -> Option<Arc<PeerExchange>> {
        self.exchange.as_ref().map(|exchange| exchange.0.clone())
    }

    /// How the gateways share the backends. While the exchange is away, those share them that it knew last.
    pub(super) fn sharing(&self) -> GatewaySharing {
        let exchange = self.exchange.clone();
        let last_known = AtomicU64::new(1);
        Arc::new(move |now| {
            let Some(exchange) = &exchange else {
                return Sharing::Separate(1);
            };
            let status = exchange.0.status(now);
            if status.connected {
                last_known.store(status.peers as u64 + 1, Ordering::Relaxed);
                return Sharing::Exchange;
            }
            Sharing::Separate(last_known.load(Ordering::Relaxed))
        })
    }

    pub(super) fn configure(&self, config: &Config) {
        self.attached.configure(config);
    }

    /// Functions that add the blocks of the options to a status.
    pub(super) fn status_sources(&self) -> [StatusSource; 2] {
        [
            peer_exchange::rows::status_source(self.exchange.clone()),
            kv_event_routing::rows::status_source(self.cache_knowledge.clone()),
        ]
    }
}
