//! The queue of one engine, as load reports and first outputs show it. The wait of an ended request is compared
//! with it.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use tokenweir_protocol::limits::push_bounded;
use tokenweir_protocol::mutex::lock;
use tokenweir_routing::LoadReport;

/// What a gateway knows about the queue of one engine since its start.
#[derive(Debug, Default)]
pub struct EngineQueues {
    /// The last periods in which requests waited, oldest first.
    periods: Mutex<VecDeque<QueuePeriod>>,
    /// Maximum number of requests of this gateway that the engine has answered at once.
    max_answering: AtomicU32,
    /// How often the engine reached `max_answering` again.
    confirmations: AtomicU32,
}

/// Consecutive load reports that all had waiting requests.
#[derive(Debug, Clone, Copy)]
struct QueuePeriod {
    /// Time of the first report with waiting requests.
    began: Instant,
    /// Time of the first later report without waiting requests. `None`: the last report still had some.
    ended: Option<Instant>,
    /// Maximum number of running requests in the period's reports. A single report can have fewer, because vLLM
    /// counts running requests after some have ended and before others replace them.
    running: f64,
}

/// Maximum number of stored periods.
const MAX_PERIODS: usize = 16;
/// Number of times that the engine must reach the maximum of answered requests again before the maximum is
/// used.
const MIN_CONFIRMATIONS: u32 = 3;

impl EngineQueues {
    /// Applies the report of a scrape at `at`.
    pub fn on_report(&self, report: &LoadReport, at: Instant) {
        let mut periods = lock(&self.periods);
        let open = periods.back_mut().filter(|period| period.ended.is_none());
        match (open, report.waiting >= 1.0) {
            (Some(period), true) => period.running = period.running.max(report.running),
            (Some(period), false) => period.ended = Some(at),
            (None, false) => {}
            (None, true) => {
                let period = QueuePeriod {
                    began: at,
                    ended: None,
                    running: report.running,
                };
                push_bounded(&mut periods, period, MAX_PERIODS);
            }
        }
    }

    /// Number of requests that ran while others waited, in the last period that overlaps the time from `from`
    /// to `until`. `None`: no report showed a queue in that time.
    pub fn running_in(&self, from: Instant, until: Instant) -> Option<f64> {
        let overlaps = |period: &&QueuePeriod| {
            period.began <= until && period.ended.is_none_or(|ended| ended > from)
        };
        lock(&self.periods)
            .iter()
            .rev()
            .find(overlaps)
            .map(|period| period.running)
    }

    /// Records the first output of a stream. `answering`: requests of this gateway that the engine answers now,
    /// with this stream.
    ///
    /// While requests wait for a slot, a waiting request replaces each request that ends, so the number of
    /// answered requests returns to its maximum again and again. While the load grows, the maximum grows too,
    /// and does not count yet.
    pub fn on_first_output(&self, answering: u32) {
        let max = self.max_answering.load(Ordering::Relaxed);
        // A race between two responses loses one confirmation.
        if answering > max {
            self.max_answering.store(answering, Ordering::Relaxed);
            self.confirmations.store(0, Ordering::Relaxed);
        } else if answering == max {
            self.confirmations.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Maximum number of requests of this gateway that the engine answers at once while others wait. It shows
    /// even a queue that is shorter than the interval between two reports. 0: not known.
    pub fn max_answering(&self) -> u32 {
        if self.confirmations.load(Ordering::Relaxed) < MIN_CONFIRMATIONS {
            return 0;
        }
        self.max_answering.load(Ordering::Relaxed)
    }

    /// Forgets everything, because the engine has restarted, perhaps with other settings.
    pub fn on_restart(&self) {
        lock(&self.periods).clear();
        self.max_answering.store(0, Ordering::Relaxed);
        self.confirmations.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokenweir_protocol::clock;

    #[test]
    fn overlapping_reports_give_their_running_requests() {
        let queues = EngineQueues::default();
        let start = clock::epoch();
        let at = |millis| start + Duration::from_millis(millis);
        let reports = [
            (100, 0.0, 4.0),
            (200, 3.0, 7.0),
            (300, 5.0, 8.0),
            (400, 0.0, 6.0),
        ];
        for (millis, waiting, running) in reports {
            let report = LoadReport {
                waiting,
                running,
                ..LoadReport::default()
            };
            queues.on_report(&report, at(millis));
        }
        for (from, until, expected) in [
            (10, 190, None),
            (10, 200, Some(8.0)),
            (210, 220, Some(8.0)),
            (310, 390, Some(8.0)),
            (400, 500, None),
        ] {
            assert_eq!(
                queues.running_in(at(from), at(until)),
                expected,
                "{from} to {until}"
            );
        }
    }

    #[test]
    fn the_oldest_period_is_dropped_first() {
        let queues = EngineQueues::default();
        let start = clock::epoch();
        let at = |n: usize| start + Duration::from_secs(n as u64);
        for n in 0..=2 * MAX_PERIODS {
            let waiting = if n % 2 == 0 { 1.0 } else { 0.0 };
            let report = LoadReport {
                waiting,
                running: n as f64,
                ..LoadReport::default()
            };
            queues.on_report(&report, at(n));
        }
        assert_eq!(queues.running_in(at(0), at(1)), None);
        assert_eq!(queues.running_in(at(2), at(2)), Some(2.0));
        assert_eq!(
            queues.running_in(at(100), at(101)),
            Some(2.0 * MAX_PERIODS as f64)
        );
    }

    #[test]
    fn the_maximum_counts_after_three_repetitions() {
        for (answering, expected) in [
            (&[14, 15, 16, 16, 16, 15, 16][..], 16),
            (&[14, 15, 16, 16, 16], 0),
            (&[15, 16, 16, 16, 16, 17], 0),
        ] {
            let queues = EngineQueues::default();
            for count in answering {
                queues.on_first_output(*count);
            }
            assert_eq!(queues.max_answering(), expected, "{answering:?}");
        }
    }
}
