//! Panic mode: if too many backends are ejected, the gateway ignores ejections.

use std::sync::Mutex;
use std::time::Instant;
use tokenweir_protocol::event_period::EventPeriod;
use tokenweir_protocol::mutex::lock;
use tokenweir_routing::resilience::Availability;

/// Logs the start and the end of panic mode, in which ejected backends get requests too.
#[derive(Debug, Default)]
pub(super) struct PanicModeLog {
    /// The period of routing in panic mode, and the number of requests in it.
    state: Mutex<(EventPeriod, u64)>,
}

/// Whether the share of backends that are not ejected is below `threshold`. `up`: the number of backends that
/// are up. `ejected`: how many of them are ejected.
pub(super) fn is_panic(up: usize, ejected: usize, threshold: f64) -> bool {
    ((up - ejected) as f64) < threshold * up as f64
}

/// The number of backends that are available or ejected, and how many of them are ejected.
pub(super) fn count_eligible_and_ejected(
    availabilities: impl Iterator<Item = Availability>,
) -> (usize, usize) {
    availabilities.fold(
        (0, 0),
        |(eligible, ejected), availability| match availability {
            Availability::Available => (eligible + 1, ejected),
            Availability::Ejected => (eligible + 1, ejected + 1),
            _ => (eligible, ejected),
        },
    )
}

impl PanicModeLog {
    /// Records a request that is routed in panic mode. The first such request logs the start of
    /// panic mode. Returns whether the start was logged.
    pub(super) fn begin(&self, up: usize, ejected: usize, now: Instant) -> bool {
        let mut state = lock(&self.state);
        let (period, requests) = &mut *state;
        *requests += 1;
        let is_new = period.record(now);
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

    /// Records that panic mode applies to no backends now. Logs the end of panic mode ten seconds after the
    /// last request in panic mode. Returns whether the end was logged.
    pub(super) fn end(&self, now: Instant) -> bool {
        let mut state = lock(&self.state);
        let (period, requests) = &mut *state;
        let Some(duration) = period.end(now) else {
            return false;
        };
        let seconds = duration.as_secs();
        let requests = std::mem::take(requests);
        tracing::info!(
            seconds,
            requests,
            "panic mode ended: ejected backends get no requests"
        );
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokenweir_protocol::clock;

    #[test]
    fn repeated_panic_mode_is_logged_once() {
        let log = PanicModeLog::default();
        let now = clock::now();
        assert!(!log.end(now), "it has not started");
        assert!(log.begin(2, 2, now));
        for second in 1..30 {
            let later = now + Duration::from_secs(second);
            assert!(!log.end(later), "it was active a second ago");
            assert!(!log.begin(2, 2, later));
        }
        let last_request_at = now + Duration::from_secs(29);
        assert!(!log.end(last_request_at + Duration::from_secs(5)));
        assert!(log.end(last_request_at + Duration::from_secs(10)));
        assert!(!log.end(last_request_at + Duration::from_secs(20)));
        assert!(
            log.begin(2, 2, last_request_at + Duration::from_secs(30)),
            "a new panic mode"
        );
    }
}
