//! The history of requests in the last hour: one point for each interval of 10 s in which requests
//! ended.

use super::group::Group;
use super::stats_window::{RequestStatsWindow, WINDOW_DURATION, WindowHistogram};
use std::collections::VecDeque;
use std::time::Duration;
use tokenweir_api::History;

/// Points of the request history of the last hour, oldest first. An interval without requests has
/// no point. The ring takes at most 100 KiB of memory.
#[derive(Debug, Default)]
pub(super) struct HistoryRing(pub(super) VecDeque<HistoryPoint>);

/// Counts and latencies of the requests that ended in one interval. The default is an interval
/// without requests.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HistoryPoint {
    /// Number of intervals between the start of the gateway and this interval.
    index: u64,
    counts: Group,
    ttft: Option<f64>,
    itl: Option<f64>,
    e2e: Option<f64>,
}

const WINDOWS_PER_INTERVAL: u64 = 2;
/// Number of intervals in the history: one hour.
const INTERVALS: u64 = 360;

impl HistoryRing {
    /// Adds a point for each interval that has ended, from its `windows`. `current`: the index of the current
    /// window.
    pub(super) fn close_intervals(&mut self, windows: &VecDeque<RequestStatsWindow>, current: u64) {
        let interval = interval_of(current);
        let open = self.open_points(windows).into_iter();
        self.0.extend(open.filter(|point| point.index < interval));
        while self
            .0
            .pop_front_if(|point| point.index + INTERVALS <= interval)
            .is_some()
        {}
    }

    /// Returns the history of the last hour in the form of the admin listener. `current` is the
    /// index of the current window. `elapsed` is the time since the start of the window with index
    /// 0.
    pub(super) fn to_document(
        &self,
        windows: &VecDeque<RequestStatsWindow>,
        current: u64,
        elapsed: Duration,
    ) -> History {
        let interval = interval_of(current);
        let first = (interval + 1).saturating_sub(INTERVALS);
        let length = usize::try_from(interval - first + 1).unwrap_or_default();
        let interval_length = WINDOW_DURATION * WINDOWS_PER_INTERVAL as u32;
        let mut points = vec![HistoryPoint::default(); length];
        for point in self.0.iter().copied().chain(self.open_points(windows)) {
            let position = point
                .index
                .checked_sub(first)
                .and_then(|at| usize::try_from(at).ok());
            if let Some(slot) = position.and_then(|at| points.get_mut(at)) {
                *slot = point;
            }
        }
        let counts =
            |read: fn(&Group) -> u64| points.iter().map(|point| read(&point.counts)).collect();
        let latencies = |read: fn(&HistoryPoint) -> Option<f64>| points.iter().map(read).collect();
        History {
            interval_seconds: interval_length.as_secs_f64(),
            last_seconds: elapsed.as_secs_f64() % interval_length.as_secs_f64(),
            requests: counts(|counts| counts.requests),
            failed: counts(|counts| counts.failed),
            client_errors: counts(|counts| counts.client_errors),
            refused: counts(|counts| counts.refused),
            bad_answers: counts(|counts| counts.answers.total - counts.answers.good),
            output_tokens: counts(|counts| counts.output_tokens),
            ttft_p95: latencies(|point| point.ttft),
            itl_p95: latencies(|point| point.itl),
            e2e_p95: latencies(|point| point.e2e),
        }
    }

    /// Builds the points of the intervals in `windows` that are not in the ring yet, oldest first.
    fn open_points(&self, windows: &VecDeque<RequestStatsWindow>) -> Vec<HistoryPoint> {
        let last = self.0.back().map(|point| point.index);
        let mut merged: Vec<RequestStatsWindow> = Vec::new();
        for window in windows {
            let index = interval_of(window.index);
            if last.is_some_and(|last| index <= last) {
                continue;
            }
            if merged.last().is_none_or(|open| open.index != index) {
                merged.push(RequestStatsWindow::new(index));
            }
            if let Some(open) = merged.last_mut() {
                open.merge(window);
            }
        }
        merged.iter().map(HistoryPoint::of).collect()
    }
}

impl HistoryPoint {
    /// Builds the point of an interval from its merged windows. `merged.index` is the index of the interval.
    fn of(merged: &RequestStatsWindow) -> Self {
        Self {
            index: merged.index,
            counts: merged.traffic.all,
            ttft: p95(&merged.ttft),
            itl: p95(&merged.itl),
            e2e: p95(&merged.e2e),
        }
    }
}

const fn interval_of(window: u64) -> u64 {
    window / WINDOWS_PER_INTERVAL
}

/// Returns the 95th percentile in seconds, rounded to 10 µs so that the document stays small.
/// `None`: the histogram is empty.
fn p95(latencies: &WindowHistogram) -> Option<f64> {
    (latencies.count() > 0).then(|| (latencies.quantile(0.95) * 1e5).round() / 1e5)
}
