//! Parameters of a simulation.

use crate::cache_view::{CacheView, ExchangeSettings};
use crate::results::LatencyObjectives;
use crate::routers::DEFAULT_SCRAPE_INTERVAL;
use std::ops::Range;
use std::time::{Duration, Instant};
use tokenweir_routing::Policy;
use tokenweir_routing::saturation::SaturationThresholds;
use tokenweir_sim::engine::EngineSpec;

/// Parameters of a simulation, except the router and the seed.
#[derive(Debug, Clone)]
pub struct SimulationSetup {
    /// Engine of each backend.
    pub specs: Vec<EngineSpec>,
    /// Factor by which the requests arrive faster than in the trace.
    pub speed: f64,
    /// Maximum random delay of an arrival after its timestamp. The delay spreads the arrivals of traces
    /// whose timestamps are rounded.
    pub spread: Duration,
    /// Time between two scrapes of a backend by a gateway.
    pub scrape: Duration,
    /// Number of gateways. 0 counts as 1.
    pub gateways: usize,
    /// The source of the gateways' knowledge about the prefix caches.
    pub cache_view: CacheView,
    /// The exchange of messages between gateways, for the cache views that have it.
    pub exchange: ExchangeSettings,
    /// Admission control of the gateways. `None`: disabled. Routers that are not policies of the gateway
    /// have none.
    pub admission: Option<SimulatedAdmission>,
    /// Position of a backend whose engine computes nothing during a period. It still accepts
    /// requests, and its metrics can be scraped. `None`: there is no such backend.
    pub frozen: Option<(usize, Range<Duration>)>,
    /// Restarts of backends. `None`: no backend restarts.
    pub restarts: Option<RestartSettings>,
    /// Objectives that the reimplemented routers know. Infinity: no objective.
    pub known_objectives: LatencyObjectives,
    /// Settings of the routing policies.
    pub policy: Policy,
    /// The instant of real time that corresponds to virtual time 0.
    pub epoch: Instant,
}

/// Admission control of the gateways.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimulatedAdmission {
    /// The thresholds from which a backend counts as full.
    pub thresholds: SaturationThresholds,
    /// Maximum wait of a request in a gateway. After this time, the gateway refuses the request.
    pub max_wait: Duration,
    /// Objective of the TTFT. A request that cannot meet it is refused. `None`: no request is refused for
    /// this reason. The thresholds have the limits of the same objective.
    pub objective: Option<Duration>,
    /// Whether the queue serves the tenants in turn. Otherwise all requests count as one tenant.
    pub has_tenants: bool,
    /// Whether new sessions wait until their contexts fit into the KV caches.
    pub has_sessions: bool,
}

/// Restarts of the backends, one after the other in the order of their positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RestartSettings {
    /// Time between the restarts of two backends, and before the first restart. Above 0.
    pub interval: Duration,
    /// Time from the end of a process until the next process can serve.
    pub downtime: Duration,
}

impl SimulationSetup {
    /// A setup with one gateway, the default policy and a scrape interval of 100 ms.
    pub fn new(specs: Vec<EngineSpec>, epoch: Instant) -> Self {
        Self {
            specs,
            speed: 1.0,
            spread: Duration::ZERO,
            scrape: DEFAULT_SCRAPE_INTERVAL,
            gateways: 1,
            cache_view: CacheView::default(),
            exchange: ExchangeSettings::default(),
            admission: None,
            frozen: None,
            restarts: None,
            known_objectives: LatencyObjectives::new(f64::INFINITY, f64::INFINITY),
            policy: Policy::default(),
            epoch,
        }
    }

    /// Time at which a backend can start to compute a batch: now, or if the engine is frozen, the end of that
    /// period.
    pub(super) fn compute_start(&self, backend: usize, now: Duration) -> Duration {
        match &self.frozen {
            Some((frozen, period)) if *frozen == backend && period.contains(&now) => period.end,
            _ => now,
        }
    }
}
