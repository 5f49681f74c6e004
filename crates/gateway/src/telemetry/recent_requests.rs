//! Statistics of recent requests for the admin page and `tokenweir top`: counts and latencies of the last
//! minute, their history over an hour, totals since the start, and lists of the last requests.

mod finished_request;
mod group;
mod refusal_log;

mod traffic_counts;

mod client_pasts;
mod stats_window;

mod heat_ring;
mod history_ring;

pub use finished_request::{FinishedRequest, RequestFacts};
pub use traffic_counts::RequestGroups;

use client_pasts::ClientPasts;
use heat_ring::HeatRing;
use history_ring::HistoryRing;
use refusal_log::RefusalLog;
use stats_window::{RequestStatsWindow, WINDOW_DURATION};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokenweir_api::{ClientSummary, HeatMap, History, LastMinute, RequestTotals};
use tokenweir_protocol::limits::push_bounded;
use tokenweir_protocol::mutex::lock;
use tokenweir_request::observe::{ExchangeRegistry, Sink};
use tokenweir_request::record::RequestRecord;
use tokenweir_request::slo::Objective;
use traffic_counts::TrafficCounts;

/// The sink that collects the statistics and the lists of recent requests.
///
/// The sink takes about 100 KiB of memory, plus 0.2 KiB per listed request, plus at most 1.2 MiB for the counts
/// of clients. It locks a mutex, so the batch dispatcher must call it instead of the thread that serves a
/// request.
#[derive(Debug)]
pub struct RecentRequests {
    /// Instant at which the window with index 0 begins.
    epoch: Instant,
    /// The latency objectives. Requests that missed an objective are counted.
    objectives: Vec<Objective>,
    state: Mutex<RecentRequestsState>,
}

#[derive(Debug, Default)]
struct RecentRequestsState {
    /// The time windows of 5 s in the last minute that contain requests, oldest first.
    windows: VecDeque<RequestStatsWindow>,
    /// The usual share of disconnects of each client before the last minute.
    pasts: ClientPasts,
    history: HistoryRing,
    heat: HeatRing,
    totals: RequestTotals,
    /// The last finished requests, oldest first.
    last_requests: VecDeque<Arc<FinishedRequest>>,
    /// The last slow requests, oldest first.
    slow_requests: VecDeque<Arc<FinishedRequest>>,
    refusal_log: RefusalLog,
}

/// Number of complete windows of 5 s in a minute. The current window, which is not complete, is not
/// counted.
const WINDOWS_PER_MINUTE: u64 = 12;
/// Maximum length of each of two lists: the last requests, and the last slow requests.
const MAX_LISTED_REQUESTS: usize = 25;

impl RecentRequests {
    /// Creates empty statistics. The first window begins at `epoch`. Requests that missed one of `objectives`
    /// are counted.
    pub fn new(epoch: Instant, objectives: Vec<Objective>) -> Self {
        Self {
            epoch,
            objectives,
            state: Mutex::default(),
        }
    }

    /// Returns statistics of the requests that ended in the last 60 to 65 seconds before `now`.
    pub fn last_minute(&self, now: Instant) -> LastMinute {
        self.merge_windows(WINDOWS_PER_MINUTE, now, RequestStatsWindow::merge)
    }

    /// Returns the numbers of requests and of slow requests as in [`RecentRequests::last_minute`],
    /// for the current window and the last `windows` complete windows of 5 s before `now`.
    pub fn last_windows(&self, windows: u64, now: Instant) -> LastMinute {
        self.merge_windows(windows, now, RequestStatsWindow::merge_counts)
    }

    fn merge_windows(
        &self,
        windows: u64,
        now: Instant,
        merge: fn(&mut RequestStatsWindow, &RequestStatsWindow),
    ) -> LastMinute {
        let index = self.window_index(now);
        let first_index = index.saturating_sub(windows);
        let start = self.epoch + WINDOW_DURATION * u32::try_from(first_index).unwrap_or(u32::MAX);
        let mut merged = RequestStatsWindow::new(index);
        self.for_each_window(first_index, |window| merge(&mut merged, window));
        let unusual_cut_offs = lock(&self.state).pasts.unusual_cut_offs(&merged.traffic);
        LastMinute {
            seconds: now.saturating_duration_since(start).as_secs_f64(),
            unusual_cut_offs,
            ..merged.to_last_minute(&self.objectives)
        }
    }

    /// Returns the clients with the largest shares of the requests that ended in the last minute
    /// and of the open streams, the largest first.
    pub fn clients(&self, streams: &ExchangeRegistry, now: Instant) -> Vec<ClientSummary> {
        self.traffic(streams, now).ranked_clients()
    }

    /// Returns the counts of each model and of each tenant, of the requests that ended in the last minute and of
    /// the open streams.
    pub fn groups(&self, streams: &ExchangeRegistry, now: Instant) -> RequestGroups {
        self.traffic(streams, now).summaries()
    }

    /// The counts of the requests that ended in the last minute and of the open streams.
    fn traffic(&self, streams: &ExchangeRegistry, now: Instant) -> TrafficCounts {
        let first_index = self.window_index(now).saturating_sub(WINDOWS_PER_MINUTE);
        let mut counts = TrafficCounts::default();
        self.for_each_window(first_index, |window| counts.merge_groups(&window.traffic));
        streams.visit_streams(|stream| counts.record_stream(stream));
        counts
    }

    /// Returns the latencies of requests in the last hour before `now`.
    pub fn heat_map(&self, now: Instant) -> HeatMap {
        let state = lock(&self.state);
        state
            .heat
            .to_document(state.windows.back(), self.window_index(now))
    }

    /// Returns the counts and latencies of requests in the last hour before `now`.
    pub fn history(&self, now: Instant) -> History {
        let state = lock(&self.state);
        let elapsed = now.saturating_duration_since(self.epoch);
        state
            .history
            .to_document(&state.windows, self.window_index(now), elapsed)
    }

    /// Logs the end of a period of refused requests when no request was refused for ten seconds. Must be called
    /// every few seconds.
    pub fn log_end_of_refusals(&self, now: Instant) {
        lock(&self.state).refusal_log.end_wave(now);
    }

    /// Returns the numbers of requests and output tokens since the start of the gateway.
    pub fn totals(&self) -> RequestTotals {
        lock(&self.state).totals
    }

    /// Returns the last requests and the last slow requests in one list without duplicates, newest
    /// first.
    pub fn ended(&self) -> Vec<Arc<FinishedRequest>> {
        let state = lock(&self.state);
        let listed = state
            .last_requests
            .iter()
            .chain(&state.slow_requests)
            .cloned();
        let mut requests: Vec<Arc<FinishedRequest>> = listed.collect();
        drop(state);
        requests.sort_by_key(|request| std::cmp::Reverse(request.number));
        requests.dedup_by_key(|request| request.number);
        requests
    }

    /// Calls `visit` with each time window whose index is at least `first_index`.
    fn for_each_window(&self, first_index: u64, visit: impl FnMut(&RequestStatsWindow)) {
        let state = lock(&self.state);
        state
            .windows
            .iter()
            .filter(|window| window.index >= first_index)
            .for_each(visit);
    }

    fn window_index(&self, moment: Instant) -> u64 {
        let elapsed = moment.saturating_duration_since(self.epoch);
        elapsed.as_secs() / WINDOW_DURATION.as_secs()
    }
}

impl Sink for RecentRequests {
    fn finished(&self, records: &[&RequestRecord]) {
        for record in records {
            let index = record
                .timings
                .ended
                .map_or(0, |ended| self.window_index(ended));
            let mut state = lock(&self.state);
            state.record_request(record, index, &self.objectives);
            state
                .refusal_log
                .record(record, record.timings.ended.unwrap_or(self.epoch));
        }
    }
}

impl RecentRequestsState {
    fn record_request(&mut self, record: &RequestRecord, index: u64, objectives: &[Objective]) {
        let newest = self.windows.back().map(|window| window.index);
        if newest.is_none_or(|newest| newest < index) {
            self.history.close_intervals(&self.windows, index);
            if let Some(complete) = self.windows.back() {
                self.heat.add(complete);
            }
            self.windows.push_back(RequestStatsWindow::new(index));
            while let Some(oldest) = self.windows.front()
                && oldest.index + WINDOWS_PER_MINUTE < index
            {
                self.pasts.add(&oldest.traffic);
                self.windows.pop_front();
            }
        }
        // The newest window counts a record even if its request ended in an earlier window.
        if let Some(window) = self.windows.back_mut() {
            window.record_request(record, objectives);
        }
        let request = Arc::new(FinishedRequest::from_record(record, self.totals.requests));
        self.totals.requests += 1;
        self.totals.output_tokens += record.output_tokens().unwrap_or_default();
        if request.facts.slow.is_some() {
            push_bounded(
                &mut self.slow_requests,
                request.clone(),
                MAX_LISTED_REQUESTS,
            );
        }
        push_bounded(&mut self.last_requests, request, MAX_LISTED_REQUESTS);
    }
}

#[cfg(test)]
mod tests;
