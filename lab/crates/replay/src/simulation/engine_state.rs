//! The engine of a backend and the batch that it computes now.

use crate::cache_view::PublishedCache;
use std::time::Duration;
use tokenweir_routing::TokenGapSum;
use tokenweir_sim::engine::{Engine, EngineSpec, EngineStep, SimulatedEngineLoad};

/// An engine and the batch that it computes now.
pub(super) struct EngineState {
    pub(super) engine: Engine,
    pub(super) spec: EngineSpec,
    pub(super) batch: Option<EngineStep>,
    /// The load that the metrics page of the engine shows. It does not change while a batch is computed.
    pub(super) reported_load: SimulatedEngineLoad,
    /// The content of the cache, as KV events publish it. Used if the gateways receive KV events.
    pub(super) published: PublishedCache,
    pub(super) busy_time: Duration,
    /// Time until which the API server is busy with requests that it received earlier.
    pub(super) front_end_busy_until: Duration,
    /// Number of restarts. Pending events of an earlier process have no effect.
    pub(super) process: u32,
    /// Whether the process has ended and the next one cannot serve yet.
    pub(super) is_down: bool,
    /// Number of preemptions of the processes that have ended.
    earlier_preemptions: u64,
    seed: u64,
    publishes: bool,
    /// The LoRA adapters that the metrics page names.
    pub(super) reported_adapters: Vec<u32>,
    /// The gaps between tokens since the start of the process.
    pub(super) token_gaps: TokenGapSum,
}

impl EngineState {
    /// An idle engine. `seed`: the seed of its random numbers. `publishes`: whether it records the changes of
    /// its cache, for KV events.
    pub(super) fn new(spec: EngineSpec, seed: u64, publishes: bool) -> Self {
        let mut engine = Engine::with_seed(spec, tokenweir_routing::mix(seed));
        if publishes {
            engine.record_cache_changes();
        }
        Self {
            engine,
            spec,
            batch: None,
            reported_load: SimulatedEngineLoad::default(),
            published: PublishedCache::default(),
            busy_time: Duration::ZERO,
            front_end_busy_until: Duration::ZERO,
            process: 0,
            is_down: false,
            earlier_preemptions: 0,
            seed,
            publishes,
            reported_adapters: Vec::new(),
            token_gaps: TokenGapSum::default(),
        }
    }

    /// Ends the process of the engine. The next process has an empty cache, also for the gateways, and no
    /// requests, and cannot serve yet.
    pub(super) fn restart(&mut self) {
        let process = self.process + 1;
        let seed = self.seed ^ u64::from(process) << u32::BITS;
        *self = Self {
            busy_time: self.busy_time,
            process,
            is_down: true,
            earlier_preemptions: self.preemptions(),
            seed: self.seed,
            ..Self::new(self.spec, seed, self.publishes)
        };
    }

    /// Counts the gaps before the tokens of a batch. The first token of a response has none.
    pub(super) fn count_token_gaps(&mut self, batch: &EngineStep) {
        let count = batch.tokens.iter().filter(|token| token.nth > 1).count() as f64;
        self.token_gaps.count += count;
        self.token_gaps.seconds += count * batch.duration.as_secs_f64();
    }

    /// Number of preemptions of all processes of the backend.
    pub(super) fn preemptions(&self) -> u64 {
        self.earlier_preemptions + self.engine.load().preemptions
    }
}
