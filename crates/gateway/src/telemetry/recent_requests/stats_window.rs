//! Counts and latencies of the requests that ended in one window of 5 s.

use super::traffic_counts::TrafficCounts;
use derive_more::AddAssign;
use hashbrown::HashMap;
use std::collections::BTreeMap;
use std::hash::Hash;
use std::time::Duration;
use tokenweir_api::{BackendMinute, LastMinute, LatencyQuantiles, ObjectiveMinute};
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::histogram::{DurationHistogram, OutputGapHistogram};
use tokenweir_request::record::{Answer, ErrorSource, Outcome, RequestRecord, SlowCause};
use tokenweir_request::significance::TimeSpread;
use tokenweir_request::slo::{Objective, ObjectiveResult};

/// A histogram of latencies. The error of its quantiles is at most 6.25 %.
pub(super) type WindowHistogram = DurationHistogram<3>;

/// Counts and latencies of the requests that ended in one time window of 5 s.
#[derive(Debug, Default)]
pub(super) struct RequestStatsWindow {
    /// Number of windows between the start of the gateway and this window.
    pub(super) index: u64,
    sums: Sums,
    /// Number of responses with a 4xx status that the gateway itself sent, by the status.
    gateway_client_errors: Counts<u16>,
    /// Number of responses with a 4xx status of backends, by the status.
    backend_client_errors: Counts<u16>,
    slow: Counts<SlowCause>,
    refused: Counts<&'static str>,
    /// Number of requests that the gateway answered with another 4xx status, by the reason.
    rejected: Counts<&'static str>,
    /// Number of error responses, by status and origin.
    error_sources: Counts<(u16, ErrorSource)>,
    objectives: Vec<ObjectiveCounts>,
    pub(super) traffic: TrafficCounts,
    pub(super) ttft: WindowHistogram,
    /// For streams with reasoning: times to the first output that is not reasoning.
    first_answer: WindowHistogram,
    pub(super) itl: WindowHistogram,
    /// Durations of the requests that succeeded.
    pub(super) e2e: WindowHistogram,
    by_backend: HashMap<BackendId, BackendCounts>,
}

/// Sums over requests that [`TrafficCounts::all`] does not contain.
#[derive(Debug, Clone, Copy, Default, AddAssign)]
struct Sums {
    /// Requests that repeat an earlier request.
    repeats: u64,
    /// Slow requests that were slow after their first output.
    slow_output: u64,
    give_ups: GiveUps,
}

/// Numbers of requests by a property.
#[derive(Debug)]
struct Counts<K>(HashMap<K, u64>);

/// The times after which clients stopped waiting.
#[derive(Debug, Clone, Copy, Default, AddAssign)]
struct GiveUps {
    count: u64,
    seconds: f64,
    squares: f64,
}

/// Minimum number of times that are compared.
const MIN_EQUAL: u64 = 5;

impl GiveUps {
    /// The number of seconds after which all clients stopped waiting, if it was the same for all. `None`: the
    /// times differ, or are too few.
    fn equal_seconds(self) -> Option<f64> {
        let count = self.count.max(1) as f64;
        let times = TimeSpread::of_means(self.seconds / count, self.squares / count);
        (self.count >= MIN_EQUAL && times.is_equal()).then_some(times.mean)
    }
}

/// Counts of the requests to which an objective applies.
#[derive(Debug, Clone, Copy, Default, AddAssign)]
struct ObjectiveCounts {
    requests: u64,
    /// Number of requests that were served but missed the objective.
    missed: u64,
}

/// Counts of the requests that had attempts at one backend.
#[derive(Debug, Default)]
struct BackendCounts {
    sums: BackendSums,
    /// Number of attempts that the backend answered with 4xx, by the status.
    client_errors: Counts<u16>,
}

#[derive(Debug, Clone, Copy, Default, AddAssign)]
struct BackendSums {
    requests: u64,
    attempts: u64,
    failed_attempts: u64,
    streams: u64,
    /// Sum of the times to first token of `streams`.
    ttft: Duration,
}

/// Maximum number of statuses and origins of error responses that are counted.
const MAX_SOURCES: usize = 16;
pub(super) const WINDOW_DURATION: Duration = Duration::from_secs(5);

impl RequestStatsWindow {
    pub(super) fn new(index: u64) -> Self {
        Self {
            index,
            ..Self::default()
        }
    }

    pub(super) fn record_request(&mut self, record: &RequestRecord, objectives: &[Objective]) {
        if let Some(status @ 400..=499) = record.status
            && record.outcome != Outcome::Rejected
        {
            let errors = if record.refusal.is_none() {
                &mut self.backend_client_errors
            } else {
                &mut self.gateway_client_errors
            };
            errors.add(status, 1);
        }
        if let Some(reason) = record.refusal {
            let reasons = match record.outcome {
                Outcome::Rejected => &mut self.refused,
                _ => &mut self.rejected,
            };
            reasons.add(reason, 1);
        }
        if record.outcome == Outcome::Ok {
            self.e2e.record(record.duration());
        }
        self.sums.repeats += u64::from(record.is_repeat);
        if record.answer == Some(Answer::ClientTimeout) {
            let seconds = record.duration().as_secs_f64();
            self.sums.give_ups += GiveUps {
                count: 1,
                seconds,
                squares: seconds * seconds,
            };
        }
        self.count_source(record);
        self.traffic.record(record);
        self.judge(record, objectives);
        if let Some(ttft) = record.ttft() {
            self.ttft.record(ttft);
        }
        if let Some(wait) = record.reasoning_wait() {
            self.first_answer.record(wait);
        }
        add_gaps(&mut self.itl, record.observed.token_gaps());
        self.record_attempts(record);
    }

    /// Counts the origin of an error response.
    fn count_source(&mut self, record: &RequestRecord) {
        let last = record.attempts.len().saturating_sub(1);
        if let Some(source) = record.error_source(last)
            && let Some(status @ 300..) = record.status
        {
            let sources = &mut self.error_sources;
            if sources.0.len() < MAX_SOURCES || sources.0.contains_key(&(status, source)) {
                sources.add((status, source), 1);
            }
        }
    }

    fn record_attempts(&mut self, record: &RequestRecord) {
        for (index, attempt) in record.attempts.iter().enumerate() {
            let is_last = index + 1 == record.attempts.len();
            let counts = self.by_backend.entry(attempt.backend.clone()).or_default();
            let is_failed = record.backend_failure(index).is_some();
            let ttft = if is_last {
                record.upstream_ttft()
            } else {
                None
            };
            counts.sums += BackendSums {
                requests: u64::from(is_last),
                attempts: 1,
                failed_attempts: u64::from(is_failed),
                streams: u64::from(ttft.is_some()),
                ttft: ttft.unwrap_or_default(),
            };
            if let Some(status @ 400..=499) = attempt.status {
                counts.client_errors.add(status, 1);
            }
        }
    }

    /// Counts a slow request as slow, and counts the request for each objective that applies to it.
    fn judge(&mut self, record: &RequestRecord, objectives: &[Objective]) {
        // A client that reads slowly delays only itself.
        if let Some(cause) = record.slow.filter(|cause| *cause != SlowCause::SlowClient) {
            self.slow.add(cause, 1);
            self.sums.slow_output += u64::from(cause.is_after_first_output());
        }
        self.objectives
            .resize_with(objectives.len(), Default::default);
        let is_served = matches!(record.outcome, Outcome::Ok | Outcome::Cancelled);
        for (counts, objective) in self.objectives.iter_mut().zip(objectives) {
            let result = objective.judge(record);
            counts.requests += u64::from(result != ObjectiveResult::Excluded);
            counts.missed += u64::from(result == ObjectiveResult::Bad && is_served);
        }
    }

    /// Adds the numbers of requests and tokens of another window to this window.
    pub(super) fn merge_counts(&mut self, other: &Self) {
        self.sums += other.sums;
        self.traffic.all += other.traffic.all;
        self.gateway_client_errors
            .merge(&other.gateway_client_errors);
        self.backend_client_errors
            .merge(&other.backend_client_errors);
        self.error_sources.merge(&other.error_sources);
        self.refused.merge(&other.refused);
        self.rejected.merge(&other.rejected);
        self.slow.merge(&other.slow);
    }

    /// Adds the counts and the latencies of another window to this window.
    pub(super) fn merge(&mut self, other: &Self) {
        self.merge_counts(other);
        let objectives = self.objectives.len().max(other.objectives.len());
        self.objectives.resize_with(objectives, Default::default);
        for (merged, counts) in self.objectives.iter_mut().zip(&other.objectives) {
            *merged += *counts;
        }
        self.traffic.merge_groups(&other.traffic);
        self.ttft.merge(&other.ttft);
        self.first_answer.merge(&other.first_answer);
        self.itl.merge(&other.itl);
        self.e2e.merge(&other.e2e);
        for (id, counts) in &other.by_backend {
            let merged = self.by_backend.entry(id.clone()).or_default();
            merged.sums += counts.sums;
            merged.client_errors.merge(&counts.client_errors);
        }
    }

    /// Returns the counts and latencies in the form of the admin listener. The caller must set
    /// `seconds`, the length of the interval.
    pub(super) fn to_last_minute(&self, objectives: &[Objective]) -> LastMinute {
        let by_backend =
            |(id, counts): (&BackendId, &BackendCounts)| (id.to_string(), counts.to_minute());
        let objective = |(objective, counts): (&Objective, &ObjectiveCounts)| ObjectiveMinute {
            name: objective.name.clone(),
            target: objective.definition.target,
            requests: counts.requests,
            slow: counts.missed,
        };
        let all = &self.traffic.all;
        LastMinute {
            requests: all.requests,
            failed: all.failed,
            refused: all.refused,
            client_disconnects: all.client_disconnects,
            output_tokens: all.output_tokens,
            repeats: self.sums.repeats,
            slow_output: self.sums.slow_output,
            gateway_client_errors: self.gateway_client_errors.named(|status| *status),
            backend_client_errors: self.backend_client_errors.named(|status| *status),
            slow: self.slow.named(|cause| cause.as_str().to_owned()),
            objectives: objectives
                .iter()
                .zip(&self.objectives)
                .map(objective)
                .collect(),
            give_up_seconds: self.sums.give_ups.equal_seconds(),
            answers: all.answers,
            common: self.traffic.common_properties(),
            error_sources: self
                .error_sources
                .named(|(status, source)| format!("{status} {source}")),
            refused_by_reason: self.refused.named(ToString::to_string),
            rejected_by_reason: self.rejected.named(ToString::to_string),
            ttft: quantiles(&self.ttft),
            first_answer: quantiles(&self.first_answer),
            itl: quantiles(&self.itl),
            e2e: quantiles(&self.e2e),
            by_backend: self.by_backend.iter().map(by_backend).collect(),
            ..LastMinute::default()
        }
    }
}

impl BackendCounts {
    fn to_minute(&self) -> BackendMinute {
        let sums = &self.sums;
        let streams = u32::try_from(sums.streams).unwrap_or(u32::MAX);
        let mean_ttft = sums.ttft.checked_div(streams);
        BackendMinute {
            requests: sums.requests,
            attempts: sums.attempts,
            failed_attempts: sums.failed_attempts,
            client_errors: self.client_errors.named(|status| *status),
            streams: sums.streams,
            ttft_seconds: mean_ttft.map(|ttft| ttft.as_secs_f64()),
        }
    }
}

impl<K: Copy + Eq + Hash> Counts<K> {
    fn add(&mut self, key: K, count: u64) {
        *self.0.entry(key).or_default() += count;
    }

    fn merge(&mut self, other: &Self) {
        for (key, count) in &other.0 {
            self.add(*key, *count);
        }
    }

    /// Returns the numbers by the name of their key.
    fn named<N: Ord>(&self, name: impl Fn(&K) -> N) -> BTreeMap<N, u64> {
        let named = |(key, count): (&K, &u64)| (name(key), *count);
        self.0.iter().map(named).collect()
    }
}

impl<K> Default for Counts<K> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

/// Adds the gaps between the outputs of one stream to `latencies`. Each gap counts as the midpoint of its
/// bucket in `gaps`.
pub(super) fn add_gaps(latencies: &mut WindowHistogram, gaps: &OutputGapHistogram) {
    if gaps.count() == 0 {
        return;
    }
    let snapshot = gaps.snapshot();
    let mut lower = 0.0;
    for (count, bound) in snapshot
        .bucket_counts
        .iter()
        .zip(gaps.bounds().iter().chain([&snapshot.max]))
    {
        let upper = bound.min(snapshot.max);
        if *count > 0 {
            latencies.record_between(lower, upper, *count);
        }
        lower = upper;
    }
}

/// Returns the quantiles of the latencies, in seconds. `None`: the histogram is empty.
pub(super) fn quantiles(latencies: &WindowHistogram) -> Option<LatencyQuantiles> {
    (latencies.count() > 0).then(|| LatencyQuantiles {
        p50: latencies.quantile(0.5),
        p95: latencies.quantile(0.95),
        p99: latencies.quantile(0.99),
        max: latencies.max(),
        count: latencies.count(),
    })
}
