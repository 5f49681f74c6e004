//! Detection of the periods in which an event recurs, so that the log has one line at the start of a period and
//! one at its end.

use std::time::{Duration, Instant};

/// The current period in which an event recurs. A period starts with its first event, and ends when the event
/// has not recurred for `QUIET_TIME`.
#[derive(Debug, Default)]
pub struct EventPeriod {
    /// The times of the first and of the last event of the current period. `None`: no period is current.
    current: Option<(Instant, Instant)>,
}

/// A period ends when its event has not occurred for this time. With a shorter time, an event that recurs every
/// few seconds would start and end a period each time.
const QUIET_TIME: Duration = Duration::from_secs(10);

impl EventPeriod {
    /// Whether a period has started that has not ended.
    pub const fn is_current(&self) -> bool {
        self.current.is_some()
    }

    /// Records an event at `now`. Returns whether this event starts a new period.
    pub fn record(&mut self, now: Instant) -> bool {
        let is_first = !self.is_current();
        let (_, last) = self.current.get_or_insert((now, now));
        *last = now.max(*last);
        is_first
    }

    /// Ends the period if no event has occurred for `QUIET_TIME`. Returns the time from the first to
    /// the last event of the ended period. `None`: no period has ended.
    pub fn end(&mut self, now: Instant) -> Option<Duration> {
        let is_over =
            |(_, last): &mut (Instant, Instant)| now.saturating_duration_since(*last) >= QUIET_TIME;
        let (first, last) = self.current.take_if(is_over)?;
        Some(last.saturating_duration_since(first))
    }
}
