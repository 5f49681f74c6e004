//! Logs the start and the end of each period with stalled streams.

use std::time::Instant;
use tokenweir_protocol::event_period::EventPeriod;

/// Logs periods with stalled streams: one line when the first stream has stalled, and one line with the number
/// of stalls after the last. The metrics and the access log contain each stall.
#[derive(Debug, Default)]
pub(super) struct StallLog {
    /// Number of stalls of all backends since the start of the gateway, as of the last call of
    /// [`StallLog::record`].
    stall_count: u64,
    period: EventPeriod,
    /// Number of stalls since the current period of stalls began.
    stalls: u64,
}

impl StallLog {
    /// Updates the log with the number of stalled streams of each backend at `now`, and with the number of
    /// stalls of all backends since the start. Returns whether a period of stalls begins, and the number of
    /// stalls of a period that has ended. `None`: no period has ended.
    pub(super) fn record(
        &mut self,
        stalled: &[(&str, u32)],
        stall_count: u64,
        now: Instant,
    ) -> (bool, Option<u64>) {
        // The sum falls when a backend leaves the pool, because its stalls no longer count.
        let new = stall_count.saturating_sub(self.stall_count);
        self.stall_count = stall_count;
        let streams: u32 = stalled.iter().map(|(_, streams)| streams).sum();
        let is_stalling = new > 0 || streams > 0;
        let begins = is_stalling && self.period.record(now);
        if begins {
            let names = stalled.iter().filter(|(_, streams)| *streams > 0);
            let names: Vec<String> = names
                .map(|(backend, streams)| format!("{backend} {streams}"))
                .collect();
            // A stall can begin and end between two calls, so that no stream is stalled now.
            tracing::warn!(
                stalls = new,
                stalled_now = streams,
                backends = names.join(", "),
                "streams stall: they had no output for longer than the stall threshold"
            );
        }
        self.stalls += new;
        let ended = self.period.end(now).map(|duration| {
            let stalls = std::mem::take(&mut self.stalls);
            tracing::info!(
                seconds = duration.as_secs(),
                stalls,
                "no stream stalls any more"
            );
            stalls
        });
        (begins, ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokenweir_protocol::clock;

    #[test]
    fn start_and_end_of_a_period_are_logged() {
        let (mut log, start) = (StallLog::default(), clock::now());
        let mut at = |seconds, stalled, stall_count| {
            log.record(
                &[("a", stalled), ("b", 0)],
                stall_count,
                start + Duration::from_secs(seconds),
            )
        };
        assert_eq!(at(0, 0, 0), (false, None));
        assert_eq!(at(5, 2, 2), (true, None));
        assert_eq!(
            at(10, 2, 2),
            (false, None),
            "the same streams are still stalled"
        );
        assert_eq!(
            at(15, 0, 3),
            (false, None),
            "a stall that ended between two calls"
        );
        assert_eq!(at(20, 0, 3), (false, None));
        assert_eq!(at(25, 0, 3), (false, Some(3)));
        assert_eq!(
            at(30, 0, 1),
            (false, None),
            "a backend with two stalls has left"
        );
        assert_eq!(at(35, 0, 2), (true, None), "a new period");
    }
}
