//! Circuit breaker of one backend: ejects the backend after failures and re-admits it.
//!
//! ```text
//!       consecutive failures or failure ratio             ejection time over
//! closed ─────────────────────────────────────────► open ─────────────────────► half-open
//!    ▲  ▲                                             ▲                           │  │
//!    │  └── slow start: few requests ◄── success ─────┼───────────────────────────┘  │
//!    │                                                └────── failure ───────────────┘
//!    └── resting: overloaded or paused, for one second or for the time that it stated
//! ```
//!
//! A half-open backend gets one request at a time. Failures that clients can cause at will (disconnects,
//! requests that all backends refuse) are not reported to the breaker. A routing decision reads two atomics and
//! takes no lock, except during slow start.

use super::recent_outcomes::RecentOutcomes;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokenweir_protocol::atomic::AtomicInstant;
use tokenweir_protocol::mutex::lock;
use tokenweir_protocol::units;
use tokenweir_protocol::{named_enum, settings};

settings! {
    /// When a backend is ejected and how it is re-admitted.
    #[derive(Copy)]
    pub struct CircuitBreakerSettings {
        /// Number of consecutive failures that ejects a backend. 0: disabled.
        pub consecutive_failures: u32,
        /// Share of failed requests, from 0 to 1, that ejects a backend. The requests of the last 10
        /// seconds count, or of up to 60 until there are 20. With fewer, at least 10 requests and 5
        /// failures are needed. 0: disabled.
        pub failure_ratio: f64,
        /// Duration of the first ejection. Each further one lasts twice as long, up to 5 minutes.
        #[serde(with = "units::Duration")]
        pub base_ejection_time: Duration,
        /// Time in which the traffic of a re-admitted backend grows from 10 % to its full share. Not a key of
        /// the configuration.
        #[serde(skip)]
        pub slow_start: Duration,
        /// Share of backends that are not ejected, from 0 to 1, below which ejections are ignored
        /// (panic mode).
        pub panic_threshold: f64,
        /// Time after which an engine that reports requests but generates no tokens counts as stuck.
        /// `null`: disabled.
        #[serde(with = "units::OptionalDuration")]
        pub stuck_after: Option<Duration>,
    }
}

/// Circuit breaker of one backend.
#[derive(Debug)]
pub struct CircuitBreaker {
    /// Time until which the backend gets no requests. `None`: the breaker is closed.
    open_until: AtomicInstant,
    /// Start of the slow start. `None`: no slow start is in progress.
    recovered_at: AtomicInstant,
    /// Boxed, so that writes to this state do not invalidate the cache line of the atomics.
    inner: Box<Mutex<BreakerInner>>,
}

#[derive(Debug)]
struct BreakerInner {
    settings: CircuitBreakerSettings,
    state: BreakerState,
    /// Number of failed requests since the last success.
    consecutive_failures: u32,
    /// Number of successive ejections without a healthy period between them. It determines the ejection time.
    ejections: u32,
    total_ejections: u64,
    /// When a success or a health check last ended an ejection. `None`: never.
    closed_at: Option<Instant>,
    /// When a request last succeeded. `None`: never.
    succeeded_at: Option<Instant>,
    /// The outcomes of the requests of the last minute.
    outcomes: RecentOutcomes,
}

named_enum! {
    /// Whether the circuit breaker lets requests through.
    #[derive(Hash)]
    pub enum BreakerState {
        /// The backend gets requests.
        Closed = "closed",
        /// The backend gets no requests for a moment, because it reported overload or a pause.
        Resting = "resting",
        /// The backend gets no requests, because it failed or is shutting down.
        Open = "open",
        /// The backend gets one request at a time.
        HalfOpen = "half_open",
    }
}

const MAX_EJECTION_TIME: Duration = Duration::from_mins(5);
/// Time for which an overloaded or paused backend gets no requests, unless the backend states another time.
const OVERLOAD_BACKOFF: Duration = Duration::from_secs(1);
/// Maximum time for which an overloaded or paused backend can keep requests away, even if it states a longer
/// time.
const MAX_REST: Duration = Duration::from_mins(1);
/// Time for which a backend counts as [serving](CircuitBreaker::is_serving) after a success.
const SERVING_TIME: Duration = Duration::from_secs(5);
/// Time for which a backend that is shutting down gets no requests. Within this time, vLLM either exits or
/// continues to serve.
const DRAIN_TIME: Duration = Duration::from_secs(10);
/// Time after which a half-open backend gets another request if the outcome of the first is still unknown.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Share of its traffic that a backend gets at the beginning of slow start.
const MIN_TRAFFIC_SHARE: f64 = 0.1;

impl Default for CircuitBreakerSettings {
    /// The default: ejection for 10 s after 5 consecutive failures or at a failure ratio of 0.35, slow start of
    /// 30 s, panic mode below half of the backends, and stuck after 2 min without tokens.
    fn default() -> Self {
        Self {
            consecutive_failures: 5,
            failure_ratio: 0.35,
            base_ejection_time: Duration::from_secs(10),
            slow_start: Duration::from_secs(30),
            panic_threshold: 0.5,
            stuck_after: Some(Duration::from_mins(2)),
        }
    }
}

impl CircuitBreaker {
    /// Creates a breaker that lets all requests through.
    pub fn new(settings: CircuitBreakerSettings, now: Instant) -> Self {
        Self {
            open_until: AtomicInstant::default(),
            recovered_at: AtomicInstant::default(),
            inner: Mutex::new(BreakerInner::new(settings, now)).into(),
        }
    }

    /// The settings of the last [`Self::set`].
    pub fn settings(&self) -> CircuitBreakerSettings {
        lock(&self.inner).settings
    }

    /// Replaces the settings. The present state stays.
    pub fn set(&self, settings: CircuitBreakerSettings) {
        lock(&self.inner).settings = settings;
    }

    /// Whether the backend gets no requests now.
    pub fn is_shut(&self, now: Instant) -> bool {
        self.open_until
            .get()
            .is_some_and(|open_until| now < open_until)
    }

    /// Whether the backend gets no requests now because it failed or is shutting down. `false` if it is only
    /// overloaded or paused.
    pub fn is_ejected(&self, now: Instant) -> bool {
        self.is_shut(now) && self.state() != BreakerState::Resting
    }

    /// Whether slow start keeps this request from the backend. `random`: a uniform random number in
    /// `[0, 1)`. With 0, the request is always allowed.
    pub fn spares(&self, now: Instant, random: f64) -> bool {
        let recovered_at = self.recovered_at.get();
        recovered_at.is_some_and(|at| random >= self.slow_start_share(at, now))
    }

    /// Records that the backend was picked for a request. The first request after the ejection time makes the
    /// breaker half-open. A request while the breaker is open (panic mode) has no effect.
    pub fn on_pick(&self, now: Instant) {
        if self
            .open_until
            .get()
            .is_none_or(|open_until| now < open_until)
        {
            return;
        }
        let mut inner = lock(&self.inner);
        match inner.state {
            BreakerState::Closed => {}
            BreakerState::Resting => self.close(&mut inner),
            BreakerState::Open | BreakerState::HalfOpen => {
                inner.state = BreakerState::HalfOpen;
                self.open_until.set(Some(now + PROBE_TIMEOUT));
            }
        }
    }

    /// Records that a request succeeded, which means that its response has begun. Returns whether the success
    /// closed the breaker.
    pub fn on_answer(&self, now: Instant) -> bool {
        let mut inner = lock(&self.inner);
        inner.outcomes.record(false, now);
        inner.consecutive_failures = 0;
        inner.succeeded_at = Some(now);
        // While the breaker is open, a success belongs to a request from before the ejection.
        let is_recovered = inner.state == BreakerState::HalfOpen;
        if is_recovered {
            self.recover(inner, now);
        }
        is_recovered
    }

    /// Records that a request failed. Returns whether the failure ejected the backend.
    pub fn on_failure(&self, now: Instant) -> bool {
        let mut inner = lock(&self.inner);
        inner.outcomes.record(true, now);
        inner.consecutive_failures = inner.consecutive_failures.saturating_add(1);
        let CircuitBreakerSettings {
            consecutive_failures,
            failure_ratio,
            ..
        } = inner.settings;
        let should_eject = match inner.state {
            BreakerState::Open => false,
            BreakerState::HalfOpen => true,
            BreakerState::Closed | BreakerState::Resting => {
                (consecutive_failures > 0 && inner.consecutive_failures >= consecutive_failures)
                    || (failure_ratio > 0.0 && inner.outcomes.failure_ratio() >= failure_ratio)
            }
        };
        if should_eject {
            self.eject(&mut inner, now);
        }
        should_eject
    }

    /// Records that the engine crashed, and ejects the backend at once. Returns whether the breaker was not
    /// open before.
    pub fn on_death(&self, now: Instant) -> bool {
        let mut inner = lock(&self.inner);
        let was_not_open = inner.state != BreakerState::Open;
        if was_not_open {
            self.eject(&mut inner, now);
        }
        was_not_open
    }

    /// Whether a request succeeded within the last seconds.
    pub fn is_serving(&self, now: Instant) -> bool {
        let succeeded_at = lock(&self.inner).succeeded_at;
        succeeded_at.is_some_and(|at| now.saturating_duration_since(at) < SERVING_TIME)
    }

    /// Records that the backend reported overload or a pause. `rest`: the time for which the backend accepts no
    /// requests, as it stated. `None`: no time stated.
    pub fn on_overload(&self, rest: Option<Duration>, now: Instant) {
        let mut inner = lock(&self.inner);
        if matches!(inner.state, BreakerState::Closed | BreakerState::Resting) {
            inner.state = BreakerState::Resting;
            let rest = rest.unwrap_or_default().clamp(OVERLOAD_BACKOFF, MAX_REST);
            // The lock of the state is held, so no other thread changes the time.
            self.open_until
                .set(self.open_until.get().max(Some(now + rest)));
        }
    }

    /// Records that the backend is shutting down. Returns whether the breaker was not open before.
    pub fn on_drain(&self, now: Instant) -> bool {
        let mut inner = lock(&self.inner);
        let was_not_open = inner.state != BreakerState::Open;
        inner.state = BreakerState::Open;
        self.open_until.set(Some(now + DRAIN_TIME));
        was_not_open
    }

    /// Records that the backend has recovered: closes the breaker, clears the counted outcomes and
    /// begins slow start.
    pub fn on_recovery(&self, now: Instant) {
        self.recover(lock(&self.inner), now);
    }

    /// Like [`Self::on_recovery`]. The caller has held the lock since it read the state, so that no other
    /// request changes the state in between.
    fn recover(&self, mut inner: MutexGuard<'_, BreakerInner>, now: Instant) {
        inner.consecutive_failures = 0;
        inner.outcomes.clear();
        if matches!(inner.state, BreakerState::Open | BreakerState::HalfOpen) {
            inner.closed_at = Some(now);
        }
        if inner.state != BreakerState::Closed {
            self.close(&mut inner);
        }
        let has_slow_start = !inner.settings.slow_start.is_zero();
        drop(inner);
        if has_slow_start {
            self.recovered_at.set(Some(now));
        }
    }

    /// The state now. An open breaker whose time is over stays open until its next request.
    pub fn state(&self) -> BreakerState {
        if self.open_until.get().is_none() {
            return BreakerState::Closed;
        }
        lock(&self.inner).state
    }

    /// Total number of ejections.
    pub fn ejections(&self) -> u64 {
        lock(&self.inner).total_ejections
    }

    fn eject(&self, inner: &mut BreakerInner, now: Instant) {
        // A healthy period that exceeds the last ejection resets the ejection time.
        let healthy_time = inner.closed_at.map(|at| now.saturating_duration_since(at));
        let is_half_open = inner.state == BreakerState::HalfOpen;
        if !is_half_open && healthy_time.is_some_and(|time| time > inner.ejection_time()) {
            inner.ejections = 0;
        }
        inner.ejections = inner.ejections.saturating_add(1);
        inner.total_ejections += 1;
        inner.state = BreakerState::Open;
        inner.consecutive_failures = 0;
        inner.outcomes.clear();
        self.open_until.set(Some(now + inner.ejection_time()));
    }

    fn close(&self, inner: &mut BreakerInner) {
        inner.state = BreakerState::Closed;
        self.open_until.set(None);
    }

    /// Share of its traffic that the backend gets at `now` during slow start. The share grows
    /// linearly from [`MIN_TRAFFIC_SHARE`]. At 1, slow start ends.
    fn slow_start_share(&self, recovered_at: Instant, now: Instant) -> f64 {
        let elapsed = now.saturating_duration_since(recovered_at).as_nanos() as f64;
        let slow_start = lock(&self.inner).settings.slow_start.as_nanos() as f64;
        let share = MIN_TRAFFIC_SHARE + (1.0 - MIN_TRAFFIC_SHARE) * (elapsed / slow_start);
        if share >= 1.0 {
            self.recovered_at.set(None);
        }
        share
    }
}

impl BreakerInner {
    const fn new(settings: CircuitBreakerSettings, now: Instant) -> Self {
        Self {
            settings,
            state: BreakerState::Closed,
            consecutive_failures: 0,
            ejections: 0,
            total_ejections: 0,
            closed_at: None,
            succeeded_at: None,
            outcomes: RecentOutcomes::new(now),
        }
    }

    /// Duration of the latest ejection: the base time, doubled for each earlier ejection in `ejections`, up to
    /// [`MAX_EJECTION_TIME`].
    fn ejection_time(&self) -> Duration {
        let doublings = self.ejections.saturating_sub(1).min(16);
        self.settings
            .base_ejection_time
            .saturating_mul(1 << doublings)
            .min(MAX_EJECTION_TIME)
    }
}

#[cfg(test)]
#[path = "breaker_tests.rs"]
mod tests;
