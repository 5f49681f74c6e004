//! Computes the availability of each backend, the readiness of the gateway, and panic mode: if too
//! many backends are ejected, ejections are ignored. `/readyz`, `/health`, `/status`, the metrics
//! and the live views read this.

use super::pool_snapshot::PoolSnapshot;
use super::{Backend, Health};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Whether a backend may be sent new requests, and if not, why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Availability {
    /// The backend gets new requests. A saturated backend is available too: requests wait for it in
    /// the queue.
    Available,
    /// The circuit breaker has ejected the backend, because it failed requests.
    Ejected,
    /// The engine sleeps.
    Asleep,
    /// The configured weight is 0.
    ZeroWeight,
    /// An operator has drained the backend.
    Drained,
    /// The health checks fail, or the engine makes no progress.
    Down,
    /// The first health check has not completed.
    Unknown,
}

/// The availability of all backends at one moment.
#[derive(Debug, Clone)]
pub struct Readiness {
    /// The backends.
    pub backends: Vec<BackendAvailability>,
    /// Whether ejections are ignored, for all models or for some.
    pub is_panic: bool,
}

/// The availability of one backend.
#[derive(Debug, Clone)]
pub struct BackendAvailability {
    /// The backend.
    pub backend: Arc<Backend>,
    /// The availability, without regard to panic mode.
    pub availability: Availability,
    /// Whether the backend may be sent requests now. In panic mode also true if it is ejected.
    pub is_up: bool,
}

/// Logs the start and the end of panic mode.
#[derive(Debug, Default)]
pub(super) struct PanicModeLog {
    is_active: AtomicBool,
    /// Number of requests routed in panic mode since its start.
    routed_requests: AtomicU64,
    period: Mutex<Option<PanicPeriod>>,
}

#[derive(Debug, Clone, Copy)]
struct PanicPeriod {
    started_at: Instant,
    last_request_at: Instant,
}

/// Panic mode counts as ended after this time without it. Otherwise each probe of an ejected
/// backend that fails again would log an end and a start.
const PANIC_MODE_QUIET_PERIOD: Duration = Duration::from_secs(10);

/// Whether the share of `up` backends that are not ejected is below `threshold`.
pub(super) fn is_panic(up: usize, ejected: usize, threshold: f64) -> bool {
    ((up - ejected) as f64) < threshold * up as f64
}

/// Number of backends that are available or ejected, and number of ejected ones.
fn count_eligible_and_ejected(each: impl Iterator<Item = Availability>) -> (usize, usize) {
    each.fold((0, 0), |(eligible, ejected), availability| match availability {
        Availability::Available => (eligible + 1, ejected),
        Availability::Ejected => (eligible + 1, ejected + 1),
        _ => (eligible, ejected),
    })
}

// === impl Availability ===

impl Availability {
    /// All values.
    pub const ALL: [Self; 7] = [
        Self::Available,
        Self::Ejected,
        Self::Asleep,
        Self::ZeroWeight,
        Self::Drained,
        Self::Down,
        Self::Unknown,
    ];

    /// The name in metrics, in `/status` and in `/readyz`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Ejected => "ejected",
            Self::Asleep => "asleep",
            Self::ZeroWeight => "zero_weight",
            Self::Drained => "drained",
            Self::Down => "down",
            Self::Unknown => "unknown",
        }
    }
}

impl Backend {
    /// Whether the backend may be sent new requests, and if not, why.
    pub fn availability(&self, now: Instant) -> Availability {
        let state = self.state();
        match state.health {
            _ if self.is_drained() => Availability::Drained,
            Health::Unknown => Availability::Unknown,
            Health::Down => Availability::Down,
            Health::Up if state.is_asleep() => Availability::Asleep,
            Health::Up if self.weight() == 0 => Availability::ZeroWeight,
            Health::Up if self.breaker.is_ejected(now) => Availability::Ejected,
            Health::Up => Availability::Available,
        }
    }
}

// === impl Readiness ===

impl PoolSnapshot {
    /// Whether any backend may be sent requests. If all eligible backends are ejected, this is true
    /// only with a panic threshold above 0.
    pub(super) fn is_ready(&self, now: Instant) -> bool {
        self.backends.iter().any(|backend| match backend.availability(now) {
            Availability::Available => true,
            Availability::Ejected => self.panic_threshold > 0.0,
            _ => false,
        })
    }

    /// Whether a set of backends is in panic mode when a request is routed. Logs the start of panic
    /// mode. A request may ignore ejections in other cases too, which are not panic mode: after
    /// attempts on the other backends, or while backends are overloaded for a moment.
    pub(super) fn check_panic_mode(&self, set: &[usize], now: Instant) -> bool {
        let each = set.iter().map(|position| self.backends[*position].availability(now));
        let (eligible, ejected) = count_eligible_and_ejected(each);
        let is_panic = is_panic(eligible, ejected, self.panic_threshold);
        if is_panic {
            self.panic_log.begin(eligible, ejected, now);
        }
        is_panic
    }

    /// The availability of each backend. Logs the end of panic mode.
    pub(super) fn readiness(&self, now: Instant) -> Readiness {
        let evaluate = |backend: &Arc<Backend>| {
            let availability = backend.availability(now);
            let is_up = availability == Availability::Available;
            BackendAvailability { backend: backend.clone(), availability, is_up }
        };
        let mut backends: Vec<BackendAvailability> = self.backends.iter().map(evaluate).collect();
        let mut is_in_panic = false;
        if backends.iter().any(|backend| backend.availability == Availability::Ejected) {
            for set in self.routes.backend_sets() {
                let each = set.iter().map(|position| backends[*position].availability);
                let (eligible, ejected) = count_eligible_and_ejected(each);
                if is_panic(eligible, ejected, self.panic_threshold) {
                    is_in_panic = true;
                    for position in &**set {
                        let backend = &mut backends[*position];
                        backend.is_up |= backend.availability == Availability::Ejected;
                    }
                }
            }
        }
        if !is_in_panic {
            self.panic_log.end(now);
        }
        Readiness { backends, is_panic: is_in_panic }
    }
}

impl Readiness {
    /// Whether any backend may be sent requests, so that at least one model can be served.
    pub fn is_ready(&self) -> bool {
        self.backends.iter().any(|backend| backend.is_up)
    }

    /// The number of backends by availability, such as `3 backends: 1 asleep, 2 down`.
    pub fn summary(&self) -> String {
        let mut counts: BTreeMap<Availability, usize> = BTreeMap::new();
        for backend in &self.backends {
            *counts.entry(backend.availability).or_default() += 1;
        }
        let total = self.backends.len();
        let mut summary = match total {
            0 => "no backends".to_owned(),
            1 => "1 backend".to_owned(),
            _ => format!("{total} backends"),
        };
        for (index, (availability, count)) in counts.into_iter().enumerate() {
            let separator = if index == 0 { ':' } else { ',' };
            // Writing to a string cannot fail.
            let _ = write!(summary, "{separator} {count} {}", availability.as_str());
        }
        summary
    }
}

// === impl PanicModeLog ===

impl PanicModeLog {
    /// Records a request that is routed in panic mode. Logs the start of panic mode, and returns
    /// whether it did.
    pub(super) fn begin(&self, up: usize, ejected: usize, now: Instant) -> bool {
        self.routed_requests.fetch_add(1, Ordering::Relaxed);
        let mut period = self.period.lock().unwrap_or_else(PoisonError::into_inner);
        period
            .get_or_insert(PanicPeriod { started_at: now, last_request_at: now })
            .last_request_at = now;
        let is_new = !self.is_active.swap(true, Ordering::Relaxed);
        if is_new {
            tracing::warn!(
                up,
                ejected,
                "panic mode begins: the share of backends that are not ejected is below \
                 circuit_breaker.panic_threshold, so ejected backends get requests too"
            );
        }
        is_new
    }

    /// Records that panic mode is off. Logs its end after the quiet period, and returns whether it
    /// did.
    fn end(&self, now: Instant) -> bool {
        if !self.is_active.load(Ordering::Relaxed) {
            return false;
        }
        let mut period = self.period.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = period.filter(|period| {
            now.saturating_duration_since(period.last_request_at) >= PANIC_MODE_QUIET_PERIOD
        });
        if let Some(PanicPeriod { started_at, last_request_at }) = ended {
            *period = None;
            self.is_active.store(false, Ordering::Relaxed);
            let requests = self.routed_requests.swap(0, Ordering::Relaxed);
            let seconds = last_request_at.saturating_duration_since(started_at).as_secs();
            tracing::info!(seconds, requests, "panic mode ended: ejected backends get no requests");
        }
        ended.is_some()
    }
}

#[cfg(test)]
#[path = "readiness_tests.rs"]
mod tests;
