//! Counts and latencies of the requests that ended in one window of a few seconds.

use std::collections::HashMap;
use std::time::Duration;
use tokenweir_api::{BackendMinute, LastMinute, LatencyQuantiles};
use tokenweir_core::histogram::{DurationHistogram, OutputGapHistogram};
use tokenweir_core::record::{BackendId, ObservedResponse, Outcome, RequestRecord};

/// A histogram of latencies. The error of its quantiles is at most 6.25 %.
pub(super) type WindowHistogram = DurationHistogram<3>;

/// Counts and latencies of the requests that ended in one window.
#[derive(Debug)]
pub(super) struct RequestStatsWindow {
    /// Number of windows between the epoch and this window.
    pub(super) index: u64,
    pub(super) requests: u64,
    pub(super) failed: u64,
    pub(super) refused: u64,
    /// Number of requests whose client disconnected.
    disconnected: u64,
    pub(super) output_tokens: u64,
    pub(super) ttft: WindowHistogram,
    pub(super) itl: WindowHistogram,
    /// Durations of the requests that succeeded.
    pub(super) e2e: WindowHistogram,
    by_backend: HashMap<BackendId, BackendCounts>,
}

/// Counts of the attempts at one backend.
#[derive(Debug, Clone, Copy, Default)]
struct BackendCounts {
    /// Number of requests whose last attempt was at the backend.
    requests: u64,
    attempts: u64,
    failed_attempts: u64,
    /// Number of requests with a TTFT, and its sum.
    streams: u32,
    ttft: Duration,
}

/// Length of a window.
pub(super) const WINDOW_DURATION: Duration = Duration::from_secs(5);

// === impl RequestStatsWindow ===

impl RequestStatsWindow {
    pub(super) fn new(index: u64) -> Self {
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
            by_backend: HashMap::new(),
        }
    }

    pub(super) fn record_request(&mut self, record: &RequestRecord) {
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
        for (index, attempt) in record.attempts.iter().enumerate() {
            let is_last = index + 1 == record.attempts.len();
            let counts = self.by_backend.entry(attempt.backend.clone()).or_default();
            counts.attempts += 1;
            counts.requests += u64::from(is_last);
            counts.failed_attempts += u64::from(record.backend_failure(index).is_some());
            if let Some(ttft) = record.upstream_ttft().filter(|_| is_last) {
                counts.streams += 1;
                counts.ttft += ttft;
            }
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        self.failed += other.failed;
        self.refused += other.refused;
        self.disconnected += other.disconnected;
        self.output_tokens += other.output_tokens;
        self.ttft.merge(&other.ttft);
        self.itl.merge(&other.itl);
        self.e2e.merge(&other.e2e);
        for (id, counts) in &other.by_backend {
            let merged = self.by_backend.entry(id.clone()).or_default();
            merged.requests += counts.requests;
            merged.attempts += counts.attempts;
            merged.failed_attempts += counts.failed_attempts;
            merged.streams += counts.streams;
            merged.ttft += counts.ttft;
        }
    }

    /// The counts and latencies as part of the admin document, without the length of the interval.
    pub(super) fn to_last_minute(&self) -> LastMinute {
        let by_backend = |(id, counts): (&BackendId, &BackendCounts)| {
            let ttft = counts.ttft.checked_div(counts.streams);
            let minute = BackendMinute {
                requests: counts.requests,
                attempts: counts.attempts,
                failed_attempts: counts.failed_attempts,
                streams: u64::from(counts.streams),
                ttft_seconds: ttft.map(|ttft| ttft.as_secs_f64()),
            };
            (id.to_string(), minute)
        };
        LastMinute {
            seconds: 0.0,
            requests: self.requests,
            failed: self.failed,
            refused: self.refused,
            client_disconnects: self.disconnected,
            output_tokens: self.output_tokens,
            ttft: quantiles(&self.ttft),
            itl: quantiles(&self.itl),
            e2e: quantiles(&self.e2e),
            by_backend: self.by_backend.iter().map(by_backend).collect(),
        }
    }
}

/// Adds the gaps of one stream to `latencies`. Each gap counts as the midpoint of its bucket.
pub(super) fn add_gaps(latencies: &mut WindowHistogram, gaps: &OutputGapHistogram) {
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
pub(super) fn quantiles(latencies: &WindowHistogram) -> Option<LatencyQuantiles> {
    (latencies.count() > 0).then(|| LatencyQuantiles {
        p50: latencies.quantile(0.5),
        p95: latencies.quantile(0.95),
        p99: latencies.quantile(0.99),
        max: latencies.max(),
        count: latencies.count(),
    })
}
