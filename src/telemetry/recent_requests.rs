//! Statistics of recent requests for the admin page and `tokenweir top`: counts and latencies of
//! the last minute, totals since the start, and lists of the last requests.

mod finished_request;
mod refusal_log;

pub use finished_request::FinishedRequest;

use refusal_log::RefusalLog;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokenweir_api::{LastMinute, LatencyQuantiles, RequestTotals};
use tokenweir_core::histogram::{DurationHistogram, OutputGapHistogram};
use tokenweir_core::observe::Sink;
use tokenweir_core::record::{BackendId, ObservedResponse, Outcome, RequestRecord};

/// The sink that collects the statistics and the lists of recent requests.
///
/// The sink takes about 60 KiB of memory, plus 0.2 KiB per listed request. The sink locks a mutex,
/// so the batch dispatcher must call it, and not the thread that serves a request.
#[derive(Debug)]
pub struct RecentRequests {
    /// Start of the window with index 0.
    epoch: Instant,
    state: Mutex<RecentRequestsState>,
}

#[derive(Debug, Default)]
struct RecentRequestsState {
    /// Windows of the last minute that contain requests, oldest first.
    windows: VecDeque<RequestStatsWindow>,
    totals: RequestTotals,
    /// The last finished requests, oldest first.
    last_requests: VecDeque<Arc<FinishedRequest>>,
    /// The last slow requests, oldest first.
    slow_requests: VecDeque<Arc<FinishedRequest>>,
    refusal_log: RefusalLog,
}

/// Counts of the requests that ended in the last seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecentCounts {
    /// Number of requests that ended.
    pub requests: u64,
    /// Number of these requests that were refused.
    pub refused: u64,
}

/// A histogram of latencies. The error of its quantiles is at most 6.25 %.
type WindowHistogram = DurationHistogram<3>;

/// Counts and latencies of the requests that ended in one window of [`WINDOW_DURATION`].
#[derive(Debug)]
struct RequestStatsWindow {
    /// Number of windows between the epoch and this window.
    index: u64,
    requests: u64,
    failed: u64,
    refused: u64,
    /// Number of requests whose client disconnected.
    disconnected: u64,
    output_tokens: u64,
    ttft: WindowHistogram,
    itl: WindowHistogram,
    /// Durations of the requests that succeeded.
    e2e: WindowHistogram,
    /// Number of requests by the backend of the last attempt.
    requests_by_backend: HashMap<BackendId, BackendCounts>,
}

/// Counts of the requests of one backend.
#[derive(Debug, Clone, Copy, Default)]
struct BackendCounts {
    requests: u64,
    /// Number of requests with a TTFT, and its sum.
    streams: u32,
    ttft: Duration,
}

/// Number of complete windows that make a minute. The current window is not counted.
const WINDOWS_PER_MINUTE: u64 = 12;
const WINDOW_DURATION: Duration = Duration::from_secs(5);
/// Maximum length of the list of the last requests and of the list of the last slow requests.
const MAX_LISTED_REQUESTS: usize = 25;

// === impl RecentRequests ===

impl RecentRequests {
    /// Creates empty statistics. The first window begins at `epoch`.
    pub fn new(epoch: Instant) -> Self {
        Self { epoch, state: Mutex::default() }
    }

    /// Statistics of the requests that ended in the last 60 to 65 seconds before `now`.
    pub fn last_minute(&self, now: Instant) -> LastMinute {
        let index = self.window_index(now);
        let first_index = index.saturating_sub(WINDOWS_PER_MINUTE);
        let start = self.epoch + WINDOW_DURATION * u32::try_from(first_index).unwrap_or(u32::MAX);
        let mut merged = RequestStatsWindow::new(index);
        let state = self.lock_state();
        let windows = state.windows.iter().filter(|window| window.index >= first_index);
        windows.for_each(|window| merged.merge(window));
        drop(state);
        let by_backend = &merged.requests_by_backend;
        let ttft = |(id, counts): (&BackendId, &BackendCounts)| {
            Some((id.to_string(), counts.ttft.checked_div(counts.streams)?.as_secs_f64()))
        };
        let requests =
            |(id, counts): (&BackendId, &BackendCounts)| (id.to_string(), counts.requests);
        LastMinute {
            seconds: now.saturating_duration_since(start).as_secs_f64(),
            requests: merged.requests,
            failed: merged.failed,
            refused: merged.refused,
            client_disconnects: merged.disconnected,
            output_tokens: merged.output_tokens,
            ttft: quantiles(&merged.ttft),
            itl: quantiles(&merged.itl),
            e2e: quantiles(&merged.e2e),
            ttft_by_backend: by_backend.iter().filter_map(ttft).collect(),
            requests_by_backend: by_backend.iter().map(requests).collect(),
        }
    }

    /// Counts of the requests that ended in the current window and in the last `windows` complete
    /// windows of 5 s before `now`.
    pub fn counts_of_windows(&self, windows: u64, now: Instant) -> RecentCounts {
        let first_index = self.window_index(now).saturating_sub(windows);
        let state = self.lock_state();
        let windows = state.windows.iter().filter(|window| window.index >= first_index);
        windows.fold(RecentCounts::default(), |counts, window| RecentCounts {
            requests: counts.requests + window.requests,
            refused: counts.refused + window.refused,
        })
    }

    /// Logs the end of a wave of refused requests. Must be called every few seconds.
    pub fn log_end_of_refusals(&self, now: Instant) {
        self.lock_state().refusal_log.end_wave(now);
    }

    /// Totals of all requests since the start of the gateway.
    pub fn totals(&self) -> RequestTotals {
        self.lock_state().totals
    }

    /// The last requests and the last slow requests in one list without duplicates, newest first.
    pub fn ended(&self) -> Vec<Arc<FinishedRequest>> {
        let state = self.lock_state();
        let listed = state.last_requests.iter().chain(&state.slow_requests).cloned();
        let mut requests: Vec<Arc<FinishedRequest>> = listed.collect();
        drop(state);
        requests.sort_by_key(|request| std::cmp::Reverse(request.number));
        requests.dedup_by_key(|request| request.number);
        requests
    }

    fn window_index(&self, moment: Instant) -> u64 {
        let elapsed = moment.saturating_duration_since(self.epoch);
        let index = elapsed.as_nanos() / WINDOW_DURATION.as_nanos();
        u64::try_from(index).unwrap_or(u64::MAX)
    }

    fn lock_state(&self) -> MutexGuard<'_, RecentRequestsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for RecentRequests {
    fn finished(&self, records: &[&RequestRecord]) {
        for record in records {
            let index = record.timings.ended.map_or(0, |ended| self.window_index(ended));
            let mut state = self.lock_state();
            state.record_request(record, index);
            state.refusal_log.record(record, record.timings.ended.unwrap_or(self.epoch));
        }
    }
}

// === impl RecentRequestsState, RequestStatsWindow ===

impl RecentRequestsState {
    fn record_request(&mut self, record: &RequestRecord, index: u64) {
        let newest = self.windows.back().map(|window| window.index);
        if newest.is_none_or(|newest| newest < index) {
            self.windows.push_back(RequestStatsWindow::new(index));
            self.windows.retain(|window| window.index + WINDOWS_PER_MINUTE >= index);
        }
        // A record is counted in the newest window even if its request ended in an earlier window.
        if let Some(window) = self.windows.back_mut() {
            window.record_request(record);
        }
        let request = Arc::new(FinishedRequest::from_record(record, self.totals.requests));
        self.totals.requests += 1;
        self.totals.output_tokens += record.output_tokens().unwrap_or_default();
        if request.slow.is_some() {
            push_bounded(&mut self.slow_requests, request.clone());
        }
        push_bounded(&mut self.last_requests, request);
    }
}

/// Appends a request. A list of [`MAX_LISTED_REQUESTS`] loses its oldest request.
fn push_bounded(list: &mut VecDeque<Arc<FinishedRequest>>, request: Arc<FinishedRequest>) {
    if list.len() >= MAX_LISTED_REQUESTS {
        list.pop_front();
    }
    list.push_back(request);
}

impl RequestStatsWindow {
    fn new(index: u64) -> Self {
        Self {
            index,
            requests: 0,
            failed: 0,
            refused: 0,
            disconnected: 0,
            output_tokens: 0,
            ttft: WindowHistogram::default(),
            itl: WindowHistogram::default(),
            e2e: WindowHistogram::default(),
            requests_by_backend: HashMap::new(),
        }
    }

    fn record_request(&mut self, record: &RequestRecord) {
        self.requests += 1;
        self.output_tokens += record.output_tokens().unwrap_or_default();
        match record.outcome {
            Outcome::Ok => self.e2e.record(record.duration()),
            Outcome::Cancelled => self.disconnected += 1,
            Outcome::Rejected => self.refused += 1,
            outcome => self.failed += u64::from(outcome.is_backend_failure()),
        }
        if let Some(ttft) = record.ttft() {
            self.ttft.record(ttft);
        }
        let ObservedResponse { inter_token_latency: itl, inter_chunk_latency: gaps, .. } =
            &record.observed;
        add_gaps(&mut self.itl, if itl.count() > 0 { itl } else { gaps });
        if let Some(id) = record.backend() {
            let counts = self.requests_by_backend.entry(id.clone()).or_default();
            counts.requests += 1;
            if let Some(ttft) = record.upstream_ttft() {
                counts.streams += 1;
                counts.ttft += ttft;
            }
        }
    }

    fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        self.failed += other.failed;
        self.refused += other.refused;
        self.disconnected += other.disconnected;
        self.output_tokens += other.output_tokens;
        self.ttft.merge(&other.ttft);
        self.itl.merge(&other.itl);
        self.e2e.merge(&other.e2e);
        for (id, counts) in &other.requests_by_backend {
            let merged = self.requests_by_backend.entry(id.clone()).or_default();
            merged.requests += counts.requests;
            merged.streams += counts.streams;
            merged.ttft += counts.ttft;
        }
    }
}

/// Adds the gaps of one stream to `latencies`. Each gap counts as the midpoint of its bucket.
fn add_gaps(latencies: &mut WindowHistogram, gaps: &OutputGapHistogram) {
    let snapshot = gaps.snapshot();
    let mut lower = 0.0;
    for (count, bound) in
        snapshot.bucket_counts.iter().zip(gaps.bounds().iter().chain([&snapshot.max]))
    {
        let upper = bound.min(snapshot.max);
        if *count > 0 {
            latencies.record_between(lower, upper, *count);
        }
        lower = upper;
    }
}

/// The quantiles of the latencies, in seconds. `None`: the histogram is empty.
fn quantiles(latencies: &WindowHistogram) -> Option<LatencyQuantiles> {
    (latencies.count() > 0).then(|| LatencyQuantiles {
        p50: latencies.quantile(0.5),
        p95: latencies.quantile(0.95),
        p99: latencies.quantile(0.99),
        max: latencies.max(),
        count: latencies.count(),
    })
}

#[cfg(test)]
mod tests;
