//! Panic mode: if too many backends are ejected, the gateway ignores ejections.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokenweir_routing::resilience::Availability;

/// Logs the start and the end of panic mode.
#[derive(Debug, Default)]
pub(super) struct PanicModeLog {
    /// Whether the start of panic mode was logged and its end was not.
    is_active: AtomicBool,
    /// Number of requests routed in panic mode since its start.
    routed_requests: AtomicU64,
    /// The current period of panic mode, in which ejected backends get requests too. `None`: panic
    /// mode is off.
    period: Mutex<Option<PanicPeriod>>,
}

/// A period of panic mode.
#[derive(Debug, Clone, Copy)]
struct PanicPeriod {
    started_at: Instant,
    /// Time of the last request that was routed in panic mode.
    last_request_at: Instant,
}

/// The end of panic mode is logged when no request was routed in panic mode for this time. Without
/// this time, each failed probe of an ejected backend would log an end and a start of panic mode.
const PANIC_MODE_QUIET_PERIOD: Duration = Duration::from_secs(10);

/// Whether the share of backends that are not ejected is below `threshold`. `up` is the number of
/// backends that are up, and `ejected` is the number of ejected backends among them.
pub(super) fn is_panic(up: usize, ejected: usize, threshold: f64) -> bool {
    ((up - ejected) as f64) < threshold * up as f64
}

/// The number of backends that are available or ejected, and the number of ejected backends.
pub(super) fn count_eligible_and_ejected(
    availabilities: impl Iterator<Item = Availability>,
) -> (usize, usize) {
    availabilities.fold((0, 0), |(eligible, ejected), availability| match availability {
        Availability::Available => (eligible + 1, ejected),
        Availability::Ejected => (eligible + 1, ejected + 1),
        _ => (eligible, ejected),
    })
}

// === impl PanicModeLog ===

impl PanicModeLog {
    /// Records a request that is routed in panic mode. The first such request logs the start of
    /// panic mode. Returns whether the start was logged.
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

    /// Records that no backends are in panic mode now. Logs the end of panic mode after
    /// [`PANIC_MODE_QUIET_PERIOD`]. Returns whether the end was logged.
    pub(super) fn end(&self, now: Instant) -> bool {
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
mod tests {
    use super::*;
    use tokenweir_protocol::clock;

    #[test]
    fn the_start_and_the_end_of_a_panic_mode_that_flaps_are_logged_once() {
        let (log, now) = (PanicModeLog::default(), clock::now());
        assert!(!log.end(now), "it has not started");
        assert!(log.begin(2, 2, now));
        for second in 1..30 {
            let later = now + Duration::from_secs(second);
            assert!(!log.end(later), "it was active a second ago");
            assert!(!log.begin(2, 2, later));
        }
        let last_request_at = now + Duration::from_secs(29);
        assert!(!log.end(last_request_at + PANIC_MODE_QUIET_PERIOD / 2));
        assert!(log.end(last_request_at + PANIC_MODE_QUIET_PERIOD));
        assert!(!log.end(last_request_at + 2 * PANIC_MODE_QUIET_PERIOD));
        assert!(log.begin(2, 2, last_request_at + 3 * PANIC_MODE_QUIET_PERIOD), "a new panic mode");
    }
}
