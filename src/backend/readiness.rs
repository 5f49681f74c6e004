//! Whether requests can be served now: which backends may be sent requests, why the others may not,
//! and whether so many are ejected that ejections are ignored (panic mode). `/readyz`, `/health`,
//! the metrics, `/status` and the live views all read this.

use super::fleet::Fleet;
use super::{Backend, Health};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Whether a backend may be sent new requests, and if not, why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Availability {
    /// It may. It may still be full: then requests wait.
    Available,
    /// It failed requests, and its circuit breaker keeps them from it.
    Ejected,
    /// Its engine sleeps.
    Asleep,
    /// It is configured to get nothing new.
    ZeroWeight,
    /// An operator wants it to get nothing new.
    Drained,
    /// It does not pass its health check, or makes no progress.
    Down,
    /// It has not been looked at yet.
    Unknown,
}

/// The availability of a fleet at one moment.
#[derive(Debug, Clone)]
pub struct Readiness {
    /// The backends.
    pub backends: Vec<Standing>,
    /// Whether ejections are ignored, for all models or for some.
    pub is_panic: bool,
}

/// The availability of one backend.
#[derive(Debug, Clone)]
pub struct Standing {
    /// The backend.
    pub backend: Arc<Backend>,
    /// Why it may be sent requests or not.
    pub availability: Availability,
    /// Whether it may be sent requests now: in panic mode also one that is ejected.
    pub is_up: bool,
}

/// Logs the beginning and the end of panic mode.
#[derive(Debug, Default)]
pub(super) struct PanicLog {
    is_begun: AtomicBool,
    /// Requests that were routed since it began.
    requests: AtomicU64,
    times: Mutex<Option<Times>>,
}

#[derive(Debug, Clone, Copy)]
struct Times {
    began: Instant,
    last: Instant,
}

/// Panic mode has ended when it has been off for so long: a backend that is tried and fails again
/// would have it logged for each try.
const CALM: Duration = Duration::from_secs(10);

/// Whether so few of the backends that are up are left that ejections are ignored.
pub(super) fn is_panic(up: usize, ejected: usize, threshold: f64) -> bool {
    ((up - ejected) as f64) < threshold * up as f64
}

/// How many may be sent requests but for ejections, and how many of them are ejected.
fn counts(each: impl Iterator<Item = Availability>) -> (usize, usize) {
    each.fold((0, 0), |(fit, ejected), it| match it {
        Availability::Available => (fit + 1, ejected),
        Availability::Ejected => (fit + 1, ejected + 1),
        _ => (fit, ejected),
    })
}

// === impl Availability ===

impl Availability {
    /// All of them.
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
    /// Whether it may be sent new requests, and if not, why.
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

impl Fleet {
    /// Whether any backend may be sent requests. If all that are fit are ejected, panic mode decides.
    pub(super) fn is_ready(&self, now: Instant) -> bool {
        self.backends.iter().any(|backend| match backend.availability(now) {
            Availability::Available => true,
            Availability::Ejected => self.panic_threshold > 0.0,
            _ => false,
        })
    }

    /// Whether a set of backends is in panic mode, which a request meets. Logs the beginning.
    /// Ejections may be ignored for a request in other cases: when it was sent to others before, or
    /// when backends are full for a moment. These are nothing to worry about.
    pub(super) fn panics(&self, set: &[usize], now: Instant) -> bool {
        let each = set.iter().map(|position| self.backends[*position].availability(now));
        let (fit, ejected) = counts(each);
        let is_panic = is_panic(fit, ejected, self.panic_threshold);
        if is_panic {
            self.panic.begin(fit, ejected, now);
        }
        is_panic
    }

    /// The availability of each backend. Logs the end of panic mode.
    pub(super) fn readiness(&self, now: Instant) -> Readiness {
        let standing = |backend: &Arc<Backend>| {
            let availability = backend.availability(now);
            let is_up = availability == Availability::Available;
            Standing { backend: backend.clone(), availability, is_up }
        };
        let mut backends: Vec<Standing> = self.backends.iter().map(standing).collect();
        let mut is_in_panic = false;
        if backends.iter().any(|it| it.availability == Availability::Ejected) {
            for set in self.routes.sets() {
                let each = set.iter().map(|position| backends[*position].availability);
                let (fit, ejected) = counts(each);
                if is_panic(fit, ejected, self.panic_threshold) {
                    is_in_panic = true;
                    for position in &**set {
                        let it = &mut backends[*position];
                        it.is_up |= it.availability == Availability::Ejected;
                    }
                }
            }
        }
        if !is_in_panic {
            self.panic.end(now);
        }
        Readiness { backends, is_panic: is_in_panic }
    }
}

impl Readiness {
    /// Whether any backend may be sent requests, and so at least one model can be served.
    pub fn is_ready(&self) -> bool {
        self.backends.iter().any(|it| it.is_up)
    }

    /// The backends by what keeps requests from them, such as `3 backends: 1 asleep, 2 down`.
    pub fn summary(&self) -> String {
        let mut counts: BTreeMap<Availability, usize> = BTreeMap::new();
        for it in &self.backends {
            *counts.entry(it.availability).or_default() += 1;
        }
        let many = self.backends.len();
        let mut summary = match many {
            0 => "no backends".to_owned(),
            1 => "1 backend".to_owned(),
            _ => format!("{many} backends"),
        };
        for (number, (availability, count)) in counts.into_iter().enumerate() {
            let gap = if number == 0 { ':' } else { ',' };
            // Writing to a string cannot fail.
            let _ = write!(summary, "{gap} {count} {}", availability.as_str());
        }
        summary
    }
}

// === impl PanicLog ===

impl PanicLog {
    /// A request is routed in panic mode: so many backends are up, and so many of them ejected.
    /// Whether that was logged.
    pub(super) fn begin(&self, up: usize, ejected: usize, now: Instant) -> bool {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.get_or_insert(Times { began: now, last: now }).last = now;
        let is_new = !self.is_begun.swap(true, Ordering::Relaxed);
        if is_new {
            tracing::warn!(
                up,
                ejected,
                "panic mode begins: so many backends are ejected that all are sent requests \
                 (health.panic_threshold)"
            );
        }
        is_new
    }

    /// The fleet is not in panic mode. Whether that was logged.
    fn end(&self, now: Instant) -> bool {
        if !self.is_begun.load(Ordering::Relaxed) {
            return false;
        }
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let over = times.filter(|it| now.saturating_duration_since(it.last) >= CALM);
        if let Some(Times { began, last }) = over {
            *times = None;
            self.is_begun.store(false, Ordering::Relaxed);
            let requests = self.requests.swap(0, Ordering::Relaxed);
            let seconds = last.saturating_duration_since(began).as_secs();
            tracing::info!(seconds, requests, "panic mode has ended: ejections count again");
        }
        over.is_some()
    }
}

#[cfg(test)]
#[path = "readiness_tests.rs"]
mod tests;
