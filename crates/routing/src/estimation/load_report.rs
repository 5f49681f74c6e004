//! The last load report of a backend, and estimates that combine it with local load.
//!
//! Each value is one atomic. A reader may see some values of one report and others of the next, but each value
//! is valid by itself.

use super::limits::{MAX_COUNT, OptionalF64, at_least_0, at_most};
use super::reservation::LocalLoad;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};
use tokenweir_engine::dialect;
use tokenweir_protocol::atomic::AtomicF64;

/// Load of a backend, from one scrape of its metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LoadReport {
    /// KV cache usage, from 0 to 1. `None`: not reported.
    pub kv_usage: Option<f64>,
    /// Requests that wait in the engine.
    pub waiting: f64,
    /// Requests that run in the engine.
    pub running: f64,
    /// Capacity of the KV cache in tokens. `None`: not reported.
    pub capacity: Option<u64>,
    /// Sum of the prompt tokens computed and the tokens generated since the start of the engine. `None`:
    /// not reported.
    pub tokens: Option<f64>,
    /// The gaps between tokens since the start of the engine. `None`: not reported.
    pub token_gaps: Option<TokenGapSum>,
}

/// Sum and number of the times between two tokens of a sequence.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TokenGapSum {
    /// Sum of the times in seconds.
    pub seconds: f64,
    /// Number of the times.
    pub count: f64,
}

/// Load of a backend in its last report, and the change of this gateway's own requests since then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ReportedLoad {
    /// Requests that waited in the engine.
    pub waiting: f64,
    /// Requests that ran in the engine.
    pub running: f64,
    /// Requests that this gateway has sent since the report, minus its requests that have ended since.
    pub sent_since: f64,
}

pub(super) struct EstimatedLoad {
    /// Number of requests of others at the engine.
    pub(super) external: f64,
    /// Requests that wait in the engine.
    pub(super) waiting: f64,
    /// KV cache usage. `None`: not reported.
    pub(super) kv_usage: Option<f64>,
    pub(super) reported: ReportedLoad,
}

/// The last load report of a backend, and the local load at the time of its scrape.
#[derive(Debug, Default)]
pub(super) struct LastReport {
    /// Time at which the gateway began to scrape the metrics of the backend, in seconds since the
    /// start of the estimator. `None`: no report yet.
    reported_at: OptionalF64,
    kv_usage: OptionalF64,
    waiting: AtomicF64,
    running: AtomicF64,
    /// Capacity of the KV cache in tokens. 0: not known.
    kv_capacity_tokens: AtomicU64,
    engine_tokens: OptionalF64,
    local_in_flight: AtomicF64,
    local_pending_output_count: AtomicF64,
    local_kv_tokens: AtomicF64,
    /// Moving average of the requests of others at the backend.
    external_requests_mean: AtomicF64,
}

/// Assumed number of blocks of a cache whose capacity is not reported.
const DEFAULT_CACHE_BLOCKS: f64 = 8_192.0;

/// Weight of one report in the moving average of the requests of others.
const EXTERNAL_REQUESTS_WEIGHT: f64 = 0.1;

impl LoadReport {
    /// The part of the scraped load that routing uses. `None`: the number of running or waiting requests is
    /// missing or implausible.
    pub fn of(load: &dialect::EngineLoad) -> Option<Self> {
        let requests = |count: Option<f64>| count.filter(|count| *count <= MAX_COUNT);
        Some(Self {
            kv_usage: load.kv_usage,
            waiting: requests(load.waiting)?,
            running: requests(load.running)?,
            capacity: load.capacity(),
            tokens: load
                .token_counts()
                .map(|counts| counts.prompt + counts.generated),
            token_gaps: load
                .gap_seconds
                .zip(load.gaps)
                .map(|(seconds, count)| TokenGapSum { seconds, count }),
        })
    }
}

impl LastReport {
    /// Stores a report. `at`: the start of the scrape, in seconds since the start of the estimator.
    /// `local_load`: the local load at that time. Returns whether the engine has computed or generated tokens
    /// since the previous report.
    pub(super) fn set(&self, report: &LoadReport, local_load: &LocalLoad, at: f64) -> bool {
        let external =
            at_least_0(report.waiting + report.running - f64::from(local_load.in_flight));
        self.external_requests_mean
            .average_in(external, EXTERNAL_REQUESTS_WEIGHT);
        self.kv_usage.set(report.kv_usage);
        self.waiting.set(report.waiting);
        self.running.set(report.running);
        self.kv_capacity_tokens
            .store(report.capacity.unwrap_or(0), Ordering::Relaxed);
        self.local_in_flight.set(local_load.in_flight.into());
        self.local_pending_output_count
            .set(local_load.pending.into());
        self.local_kv_tokens.set(local_load.tokens as f64);
        self.reported_at.set(Some(at));
        let before = self.engine_tokens.get();
        self.engine_tokens.set(report.tokens);
        before
            .zip(report.tokens)
            .is_some_and(|(before, tokens)| before.to_bits() != tokens.to_bits())
    }

    pub(super) fn forget(&self) {
        self.reported_at.set(None);
        self.kv_usage.set(None);
        self.engine_tokens.set(None);
        self.kv_capacity_tokens.store(0, Ordering::Relaxed);
        self.waiting.set(0.0);
        self.running.set(0.0);
        self.external_requests_mean.set(0.0);
    }

    /// Age of the last report in seconds. `None`: no report yet.
    pub(super) fn age(&self, now: f64) -> Option<f64> {
        self.reported_at.get().map(|at| at_least_0(now - at))
    }

    /// Capacity of the KV cache in tokens. `None`: not known.
    pub(super) fn capacity(&self) -> Option<u64> {
        Some(self.kv_capacity_tokens.load(Ordering::Relaxed)).filter(|capacity| *capacity > 0)
    }

    /// Number of blocks of `block_tokens` tokens that the KV cache can hold.
    pub(super) fn cache_blocks(&self, block_tokens: f64) -> f64 {
        let blocks = |capacity| capacity as f64 / block_tokens.max(1.0);
        self.capacity().map_or(DEFAULT_CACHE_BLOCKS, blocks)
    }

    /// The estimated load of the engine. With falling certainty, the estimate moves from the last report to
    /// local load and the mean of external load. Without this mean, four gateways that fill small, empty caches lose
    /// 6 points (four traffics: −27 to +5).
    #[inline] // each candidate of each decision reads it once
    pub(super) fn load(&self, local: &LocalLoad, certainty: f64) -> EstimatedLoad {
        let blend = |reported: f64, local: f64| certainty * reported + (1.0 - certainty) * local;
        let in_flight = f64::from(local.in_flight);
        let pending = f64::from(local.pending);
        let in_flight_then = self.local_in_flight.get();
        let pending_then = self.local_pending_output_count.get();
        let waiting = self.waiting.get();
        let running = self.running.get();
        let external = at_least_0(waiting + running - in_flight_then);
        EstimatedLoad {
            external: blend(external, self.external_requests_mean.get()),
            // Without a report, all local requests without output may be waiting.
            waiting: blend(at_least_0(waiting + (pending - pending_then)), pending),
            kv_usage: self.kv_usage(local, blend),
            reported: ReportedLoad {
                waiting,
                running,
                sent_since: in_flight - in_flight_then,
            },
        }
    }

    fn kv_usage(&self, local: &LocalLoad, blend: impl Fn(f64, f64) -> f64) -> Option<f64> {
        let reported = self.kv_usage.get()?;
        let Some(capacity) = self.capacity() else {
            return Some(reported);
        };
        let capacity = capacity as f64;
        let tokens = local.tokens as f64;
        let sent_since = tokens - self.local_kv_tokens.get();
        let by_report = at_least_0(reported + sent_since / capacity);
        // Requests may share blocks, so the sum can exceed the capacity.
        let by_local_load = at_most(tokens / capacity, 1.0);
        Some(blend(by_report, by_local_load))
    }
}
