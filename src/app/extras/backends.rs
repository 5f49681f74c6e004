//! The options that work with backends: their state for all backends of a pool, their state for one backend,
//! and their background tasks.

use super::{gpu, kv_event_routing, peer_exchange, ranks, sessions, sleep};
use crate::config::{BackendConfig, Config};
use gpu::GpuFacet;
use kv_event_routing::{CacheKnowledge, KvEventsDriver, KvEventsFacet};
use peer_exchange::{ExchangeFacet, PeerExchange, PeerExchangeError};
use ranks::{RankFacet, RankProbes};
use sessions::{GatewaySharing, Sharing};
use sleep::{SleepFacet, SleepMode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokenweir_gateway::backend::BackendDrivers;
use tokenweir_gateway::backend::facets::{BackendFacet, PoolFacet, PoolFacets};
use tokenweir_gateway::status::StatusSource;
use tokenweir_settings::Environment;

/// The options that work with backends.
#[derive(Clone)]
pub struct BackendOptions {
    sleep: SleepMode,
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

// === impl BackendOptions ===

impl BackendOptions {
    /// The options before the first backend exists. `env` returns the value of an environment variable.
    pub fn new(config: &Config, env: impl Environment) -> Result<Self, PeerExchangeError> {
        Ok(Self {
            sleep: SleepMode::new(config.sleep),
            exchange: config.peer_exchange.start(env)?.map(ExchangeFacet),
            cache_knowledge: CacheKnowledge::new(config.kv_events),
        })
    }

    /// The state that options share between all backends of the pool.
    pub fn pool_facets(&self) -> PoolFacets {
        let mut facets: Vec<Arc<dyn PoolFacet>> = vec![Arc::new(self.sleep.clone())];
        if let Some(exchange) = &self.exchange {
            facets.push(Arc::new(exchange.clone()));
        }
        PoolFacets(facets)
    }

    /// The background work of the options for backends.
    pub fn drivers(&self) -> BackendDrivers {
        let mut drivers: BackendDrivers = vec![
            Arc::new(RankProbes),
            Arc::new(self.sleep.clone()),
            Arc::new(KvEventsDriver(self.cache_knowledge.clone())),
        ];
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
        let mut facets: Vec<Box<dyn BackendFacet>> = vec![
            Box::new(RankFacet::new(config.routing.data_parallel_ranks)),
            Box::new(SleepFacet::default()),
            Box::new(KvEventsFacet::new(source)),
            Box::new(GpuFacet::new(cost)),
        ];
        if let Some(exchange) = &self.exchange {
            facets.push(Box::new(exchange.clone()));
        }
        facets
    }

    /// The exchange with other gateways. `None`: not configured.
    pub(super) fn exchange(&self) -> Option<Arc<PeerExchange>> {
        self.exchange.as_ref().map(|exchange| exchange.0.clone())
    }

    /// Number of other gateways that the exchange knows.
    pub(super) fn connected_gateways(&self, now: Instant) -> u64 {
        let exchange = self.exchange.as_ref();
        exchange.map_or(0, |exchange| exchange.0.status(now).peers as u64)
    }

    /// How the gateways share the backends. While the exchange is not reachable, the gateways that it knew last
    /// count.
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
        self.sleep.configure(config.sleep);
    }

    /// Functions that add the blocks of the options to a status.
    pub(super) fn status_sources(&self) -> [StatusSource; 2] {
        [
            peer_exchange::rows::status_source(self.exchange.clone()),
            kv_event_routing::rows::status_source(self.cache_knowledge.clone()),
        ]
    }
}
