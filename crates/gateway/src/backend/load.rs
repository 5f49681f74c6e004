//! The load of a backend: the requests in flight, the estimates learned from responses and scrapes, and the
//! stalls and gaps of streams.

use super::recent_times::RollingGapHistogram;
use super::stream_profile::StreamProfile;
use std::time::{Duration, Instant};
use tokenweir_protocol::atomic::{AtomicCounter, AtomicFlag, AtomicInstant};
use tokenweir_request::record::EngineQueues;
use tokenweir_routing::LoadEstimator;
use tokio::sync::Notify;

/// Requests in flight, learned speed, and the stalls and gaps of streams.
#[derive(Debug)]
#[repr(C)] // the estimator, which routing reads of each candidate, comes first
pub struct BackendLoad {
    /// Estimates load and speed from responses and scrapes.
    pub estimator: LoadEstimator,
    /// Whether `first_request` was signalled and the health checker has not consumed the signal yet.
    is_first_request_notified: AtomicFlag,
    /// Signals to the health checker that the idle backend got a request.
    first_request: Notify,
    pub(super) engine_queues: EngineQueues,
    /// The recent gaps between outputs of streams.
    pub(super) recent_gaps: RollingGapHistogram,
    pub(super) stream_profile: StreamProfile,
    /// Number of stalls since the backend was added to the gateway.
    stall_count: AtomicCounter,
    /// Number of restarts of the server process since the backend was added to the gateway.
    restart_count: AtomicCounter,
    /// Number of metrics pages that came from another engine than the page before.
    engine_switches: AtomicCounter,
    /// When a response last had output, which shows that the engine works. `None`: never.
    pub(super) last_output_at: AtomicInstant,
    /// The longest fetch of a metrics page since the last [`Self::take_page_time`], in microseconds.
    page_micros: AtomicCounter,
}

/// Default age of a load report at which it has half of its weight in predictions.
const DEFAULT_LOAD_HORIZON: Duration = Duration::from_secs(5);

impl BackendLoad {
    /// The load of a new backend, without requests and scrapes.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            estimator: LoadEstimator::new(now, DEFAULT_LOAD_HORIZON),
            is_first_request_notified: AtomicFlag::default(),
            first_request: Notify::new(),
            engine_queues: EngineQueues::default(),
            recent_gaps: RollingGapHistogram::default(),
            stream_profile: StreamProfile::default(),
            stall_count: AtomicCounter::new(),
            restart_count: AtomicCounter::new(),
            engine_switches: AtomicCounter::new(),
            last_output_at: AtomicInstant::default(),
            page_micros: AtomicCounter::new(),
        }
    }

    /// Sets the age of a load report at which it has half of its weight in predictions.
    pub fn set_horizon(&self, horizon: Duration) {
        self.estimator.set_horizon(horizon);
    }

    /// Number of requests that this gateway has in flight on the backend.
    pub fn in_flight(&self) -> u32 {
        self.estimator.local_load().in_flight
    }

    /// Number of streams that have sent no output for longer than the stall threshold.
    pub fn stalled_streams(&self) -> u32 {
        self.estimator.silent()
    }

    /// Number of stalls of the streams of the backend since the backend joined the gateway.
    pub fn stall_count(&self) -> u64 {
        self.stall_count.get()
    }

    /// Number of restarts of the server process since the backend joined the gateway.
    pub fn restart_count(&self) -> u64 {
        self.restart_count.get()
    }

    /// Number of metrics pages that came from another engine than the page before. Above 0, several engines
    /// answer at the address of the backend.
    pub fn engine_switches(&self) -> u64 {
        self.engine_switches.get()
    }

    /// The p99 of the recent gaps between outputs of streams, in seconds. `None`: there are too few
    /// gaps.
    pub fn gap_p99(&self) -> Option<f64> {
        self.recent_gaps.p99()
    }

    /// Records the duration of a fetch of a metrics page, successful or not.
    pub(super) fn on_page(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.page_micros.raise_to(micros);
    }

    /// The longest fetch of a metrics page since the last call. `None`: no page was fetched.
    pub fn take_page_time(&self) -> Option<Duration> {
        let micros = self.page_micros.take();
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    /// Records that a stream of the backend stalled (`is_stalled`), or that its stall ended.
    pub(super) fn on_stall(&self, is_stalled: bool, now: Instant) {
        if is_stalled {
            self.stall_count.add(1);
        }
        self.estimator.on_stall_change(is_stalled, now);
    }

    /// Counts a metrics page that came from another engine.
    pub(super) fn on_engine_switch(&self) {
        self.engine_switches.add(1);
    }

    /// Counts a restart of the server process, and forgets the learned values that the restart makes
    /// invalid.
    pub(super) fn on_restart(&self) {
        self.restart_count.add(1);
        self.estimator.on_restart();
        self.engine_queues.on_restart();
        self.stream_profile.on_restart();
    }

    /// Signals to the health checker that the idle backend gets a request. Until the health checker consumes
    /// the signal, further calls only read a flag. The flag is cheaper than the `Notify`, which is usually not
    /// in the CPU caches.
    pub(super) fn on_first_request(&self) {
        if !self.is_first_request_notified.get() && !self.is_first_request_notified.replace(true) {
            self.first_request.notify_one();
        }
    }

    /// Waits until the idle backend gets a request.
    pub(super) async fn wait_first_request(&self) {
        self.first_request.notified().await;
        self.is_first_request_notified.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_protocol::clock;

    #[test]
    fn all_and_present_stalls_are_counted() {
        let now = clock::now();
        let load = BackendLoad::new(now);
        load.on_stall(true, now);
        load.on_stall(true, now);
        load.on_stall(false, now);
        assert_eq!((load.stall_count(), load.stalled_streams()), (2, 1));
    }
}
