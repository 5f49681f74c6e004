//! The periods in which requests waited in one engine, according to its load reports. The wait of an ended
//! request is compared with these periods.

use super::super::load_report::LoadReport;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Instant;
use tokenweir_protocol::limits::push_bounded;
use tokenweir_protocol::mutex::lock;

/// The periods in which requests waited in one engine, according to its reports.
#[derive(Debug, Default)]
pub struct ReportedQueues(
    /// The last periods in which requests waited, oldest first.
    Mutex<VecDeque<QueuePeriod>>,
);

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

impl ReportedQueues {
    /// Applies the report of a scrape at `at`.
    pub(super) fn on_report(&self, report: &LoadReport, at: Instant) {
        let mut periods = lock(&self.0);
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
        lock(&self.0)
            .iter()
            .rev()
            .find(overlaps)
            .map(|period| period.running)
    }

    pub(super) fn clear(&self) {
        lock(&self.0).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokenweir_protocol::clock;

    #[test]
    fn overlapping_reports_give_their_running_requests() {
        let queues = ReportedQueues::default();
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
        let queues = ReportedQueues::default();
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
}
