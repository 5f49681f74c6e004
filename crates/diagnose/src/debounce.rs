//! Debounces verdicts. A verdict begins when two of the last three evaluations found the condition.
//! It ends when no evaluation has found the condition for 30 s.

use std::time::{Duration, Instant};

/// The debounce state of one rule at one backend.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct VerdictDebounce {
    /// The results of the last three evaluations as bits, the newest in the lowest bit. A bit is 1 if the
    /// evaluation found the condition.
    recent_results: u8,
    /// The time at which the verdict began, and the last time at which the condition was found.
    /// `None`: no verdict holds.
    active_span: Option<(Instant, Instant)>,
}

/// Time without the condition after which a verdict ends.
pub(super) const CLEAR_AFTER: Duration = Duration::from_secs(30);
const RECENT_RESULTS_MASK: u8 = 0b111;

impl VerdictDebounce {
    /// Adds the result of an evaluation at `now`: whether it found the condition of the rule.
    pub(super) fn update(&mut self, is_found: bool, now: Instant) {
        self.recent_results = (self.recent_results << 1 | u8::from(is_found)) & RECENT_RESULTS_MASK;
        if let Some((_, last)) = &mut self.active_span {
            if is_found {
                *last = now;
            } else if now.saturating_duration_since(*last) >= CLEAR_AFTER {
                self.active_span = None;
            }
        } else if is_found && self.recent_results.count_ones() >= 2 {
            self.active_span = Some((now, now));
        }
    }

    /// Extends a verdict that holds, so that it lasts at least [`CLEAR_AFTER`] from `now` on. Callers use this
    /// while no data shows whether the condition has ended.
    pub(super) fn hold(&mut self, now: Instant) {
        if let Some((_, last)) = &mut self.active_span {
            *last = now;
        }
    }

    /// Whether the verdict holds, or one of the last three evaluations found the condition.
    pub(super) fn is_active_or_pending(&self) -> bool {
        self.active_span.is_some() || self.recent_results != 0
    }

    /// The time at which the verdict began. `None`: no verdict holds.
    pub(super) fn since(&self) -> Option<Instant> {
        self.active_span.map(|(first, _)| first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_protocol::clock;

    #[test]
    fn two_matches_in_three_begin_a_verdict() {
        let start = clock::epoch();
        let mut debounce = VerdictDebounce::default();
        let mut update = |is_found, seconds| {
            debounce.update(is_found, start + Duration::from_secs(seconds));
            debounce.since().is_some()
        };
        assert!(!update(true, 0) && !update(false, 5));
        assert!(!update(false, 10), "one result is no verdict");
        assert!(!update(true, 15) && !update(false, 20) && update(true, 25));
        assert!(
            update(false, 30) && update(false, 50),
            "the verdict continues for 30 s"
        );
        assert!(!update(false, 55) && !update(true, 60));
    }
}
