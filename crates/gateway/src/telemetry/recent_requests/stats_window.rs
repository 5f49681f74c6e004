//! Counts and latencies of the requests that ended in one window of 5 s.

use super::traffic_counts::TrafficCounts;
use hashbrown::HashMap;
use std::collections::BTreeMap;
use std::time::Duration;
use tokenweir_api::{BackendMinute, LastMinute, LatencyQuantiles, ObjectiveMinute};
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::histogram::{DurationHistogram, OutputGapHistogram};
use tokenweir_request::record::{
    Answer, ErrorSource, ObservedResponse, Outcome, RequestRecord, SlowCause,
};
use tokenweir_request::significance::TimeSpread;
use tokenweir_request::slo::{Objective, ObjectiveResult};

/// A histogram of latencies. The error of its quantiles is at most 6.25 %.
pub(super) type WindowHistogram = DurationHistogram<3>;

/// Counts and latencies of the requests that ended in one time window of 5 s.
#[derive(Debug, Default)]
pub(super) struct RequestStatsWindow {
    /// Number of windows between the start of the gateway and this window.
    pub(super) index: u64,
    /// Numbers of requests, of responses with a 4xx status and of output tokens. The other fields, including
    /// `slow`, are not set.
    pub(super) counts: LastMinute,
    slow: HashMap<SlowCause, u64>,
    /// Number of refused requests, by the reason.
    refused: HashMap<&'static str, u64>,
    /// Number of requests that the gateway answered with another 4xx, by the reason.
    rejected: HashMap<&'static str, u64>,
    /// Number of error responses, by status and origin.
    error_sources: BTreeMap<(u16, ErrorSource), u64>,
    /// The counts of each objective.
    objectives: Vec<ObjectiveCounts>,
    give_ups: GiveUps,
    pub(super) traffic: TrafficCounts,
    pub(super) ttft: WindowHistogram,
    /// For streams with reasoning: times to the first output that is not reasoning.
    first_answer: WindowHistogram,
    pub(super) itl: WindowHistogram,
    /// Durations of the requests that succeeded.
    pub(super) e2e: WindowHistogram,
    by_backend: HashMap<BackendId, BackendCounts>,
}

/// The times after which clients gave up waiting.
#[derive(Debug, Clone, Copy, Default)]
struct GiveUps {
    count: u64,
    seconds: f64,
    squares: f64,
}

/// Minimum number of times that are compared.
const MIN_EQUAL: u64 = 5;

impl GiveUps {
    /// The time, if all clients gave up after the same. `None`: the times differ, or are too few.
    fn equal_seconds(self) -> Option<f64> {
        let count = self.count.max(1) as f64;
        let times = TimeSpread::of_means(self.seconds / count, self.squares / count);
        (self.count >= MIN_EQUAL && times.is_equal()).then_some(times.mean)
    }
}

/// Counts of the requests to which an objective applies.
#[derive(Debug, Clone, Default)]
struct ObjectiveCounts {
    requests: u64,
    /// Number of requests that were served but missed the objective.
    missed: u64,
}

/// Counts of the requests that had attempts at one backend.
#[derive(Debug, Clone, Default)]
struct BackendCounts {
    /// Numbers of requests, attempts and errors at the backend. The mean of the times to first
    /// token is not set.
    minute: BackendMinute,
    /// Sum of the times to first token of the streams that `minute.streams` counts.
    ttft: Duration,
}

/// Maximum number of statuses and origins of error responses that are counted.
const MAX_SOURCES: usize = 16;
/// Length of one window of the statistics.
pub(super) const WINDOW_DURATION: Duration = Duration::from_secs(5);

impl RequestStatsWindow {
    pub(super) fn new(index: u64) -> Self {
        Self {
            index,
            ..Self::default()
        }
    }

    pub(super) fn record_request(&mut self, record: &RequestRecord, objectives: &[Objective]) {
        let counts = &mut self.counts;
        counts.requests += 1;
        if let Some(status @ 400..=499) = record.status
            && record.outcome != Outcome::Rejected
        {
            let is_of_backend = record.refusal.is_none();
            let errors = if is_of_backend {
                &mut counts.backend_client_errors
            } else {
                &mut counts.gateway_client_errors
            };
            *errors.entry(status).or_default() += 1;
        }
        if let Some(reason) = record.refusal {
            let reasons = match record.outcome {
                Outcome::Rejected => &mut self.refused,
                _ => &mut self.rejected,
            };
            *reasons.entry(reason).or_default() += 1;
        }
        counts.output_tokens += record.output_tokens().unwrap_or_default();
        match record.outcome {
            Outcome::Ok => self.e2e.record(record.duration()),
            Outcome::Cancelled => counts.client_disconnects += 1,
            Outcome::Rejected => counts.refused += 1,
            outcome => counts.failed += u64::from(outcome.is_backend_failure()),
        }
        counts.repeats += u64::from(record.is_repeat);
        if record.answer == Some(Answer::ClientTimeout) {
            let seconds = record.duration().as_secs_f64();
            self.give_ups.count += 1;
            self.give_ups.seconds += seconds;
            self.give_ups.squares += seconds * seconds;
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
        let ObservedResponse {
            inter_token_latency: itl,
            inter_chunk_latency: gaps,
            ..
        } = &*record.observed;
        add_gaps(&mut self.itl, if itl.count() > 0 { itl } else { gaps });
        self.record_attempts(record);
    }

    /// Counts the origin of an error response.
    fn count_source(&mut self, record: &RequestRecord) {
        let last = record.attempts.len().saturating_sub(1);
        if let Some(source) = record.error_source(last)
            && let Some(status @ 300..) = record.status
        {
            let has_place = self.error_sources.len() < MAX_SOURCES;
            let is_known = self.error_sources.contains_key(&(status, source));
            if has_place || is_known {
                *self.error_sources.entry((status, source)).or_default() += 1;
            }
        }
    }

    fn record_attempts(&mut self, record: &RequestRecord) {
        for (index, attempt) in record.attempts.iter().enumerate() {
            let is_last = index + 1 == record.attempts.len();
            let BackendCounts {
                minute: counts,
                ttft: ttft_sum,
            } = self.by_backend.entry(attempt.backend.clone()).or_default();
            counts.attempts += 1;
            counts.requests += u64::from(is_last);
            counts.failed_attempts += u64::from(record.backend_failure(index).is_some());
            if let Some(status @ 400..=499) = attempt.status {
                *counts.client_errors.entry(status).or_default() += 1;
            }
            if let Some(ttft) = record.upstream_ttft()
                && is_last
            {
                counts.streams += 1;
                *ttft_sum += ttft;
            }
        }
    }

    /// Counts a slow request as slow, and counts the request for each objective that applies to it.
    fn judge(&mut self, record: &RequestRecord, objectives: &[Objective]) {
        // A client that reads slowly delays only itself.
        if let Some(cause) = record.slow.filter(|cause| *cause != SlowCause::SlowClient) {
            *self.slow.entry(cause).or_default() += 1;
            self.counts.slow_output += u64::from(cause.is_after_first_output());
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
        let sums = &mut self.counts;
        let counts = &other.counts;
        sums.requests += counts.requests;
        self.traffic.merge_all(&other.traffic);
        sums.failed += counts.failed;
        sums.refused += counts.refused;
        sums.client_disconnects += counts.client_disconnects;
        sums.repeats += counts.repeats;
        self.give_ups.count += other.give_ups.count;
        self.give_ups.seconds += other.give_ups.seconds;
        self.give_ups.squares += other.give_ups.squares;
        sums.slow_output += counts.slow_output;
        sums.output_tokens += counts.output_tokens;
        add_counts(
            &mut sums.gateway_client_errors,
            &counts.gateway_client_errors,
        );
        add_counts(
            &mut sums.backend_client_errors,
            &counts.backend_client_errors,
        );
        add_counts(&mut self.error_sources, &other.error_sources);
        add_reasons(&mut self.refused, &other.refused);
        add_reasons(&mut self.rejected, &other.rejected);
        for (cause, count) in &other.slow {
            *self.slow.entry(*cause).or_default() += count;
        }
    }

    /// Adds the counts and the latencies of another window to this window.
    pub(super) fn merge(&mut self, other: &Self) {
        self.merge_counts(other);
        let objectives = self.objectives.len().max(other.objectives.len());
        self.objectives.resize_with(objectives, Default::default);
        for (merged, counts) in self.objectives.iter_mut().zip(&other.objectives) {
            merged.requests += counts.requests;
            merged.missed += counts.missed;
        }
        self.traffic.merge_groups(&other.traffic);
        self.ttft.merge(&other.ttft);
        self.first_answer.merge(&other.first_answer);
        self.itl.merge(&other.itl);
        self.e2e.merge(&other.e2e);
        for (
            id,
            BackendCounts {
                minute: counts,
                ttft,
            },
        ) in &other.by_backend
        {
            let BackendCounts {
                minute: merged,
                ttft: ttft_sum,
            } = self.by_backend.entry(id.clone()).or_default();
            merged.requests += counts.requests;
            merged.attempts += counts.attempts;
            merged.failed_attempts += counts.failed_attempts;
            add_counts(&mut merged.client_errors, &counts.client_errors);
            merged.streams += counts.streams;
            *ttft_sum += *ttft;
        }
    }

    /// Returns the counts and latencies in the form of the admin listener. The caller must set
    /// `seconds`, the length of the interval.
    pub(super) fn to_last_minute(&self, objectives: &[Objective]) -> LastMinute {
        let by_backend = |(id, counts): (&BackendId, &BackendCounts)| {
            let streams = u32::try_from(counts.minute.streams).unwrap_or(u32::MAX);
            let ttft_seconds = counts
                .ttft
                .checked_div(streams)
                .map(|ttft| ttft.as_secs_f64());
            let minute = BackendMinute {
                ttft_seconds,
                ..counts.minute.clone()
            };
            (id.to_string(), minute)
        };
        let objective = |(objective, counts): (&Objective, &ObjectiveCounts)| ObjectiveMinute {
            name: objective.name.clone(),
            target: objective.definition.target,
            requests: counts.requests,
            slow: counts.missed,
        };
        LastMinute {
            slow: self
                .slow
                .iter()
                .map(|(it, count)| (it.as_str().to_owned(), *count))
                .collect(),
            objectives: objectives
                .iter()
                .zip(&self.objectives)
                .map(objective)
                .collect(),
            give_up_seconds: self.give_ups.equal_seconds(),
            answers: self.traffic.all.answers,
            common: self.traffic.common_properties(),
            error_sources: self
                .error_sources
                .iter()
                .map(|((status, source), count)| (format!("{status} {source}"), *count))
                .collect(),
            refused_by_reason: by_name(&self.refused),
            rejected_by_reason: by_name(&self.rejected),
            ttft: quantiles(&self.ttft),
            first_answer: quantiles(&self.first_answer),
            itl: quantiles(&self.itl),
            e2e: quantiles(&self.e2e),
            by_backend: self.by_backend.iter().map(by_backend).collect(),
            ..self.counts.clone()
        }
    }
}

fn add_reasons(sums: &mut HashMap<&'static str, u64>, counts: &HashMap<&'static str, u64>) {
    for (reason, count) in counts {
        *sums.entry(reason).or_default() += count;
    }
}

fn by_name(counts: &HashMap<&'static str, u64>) -> BTreeMap<String, u64> {
    counts
        .iter()
        .map(|(name, count)| ((*name).to_owned(), *count))
        .collect()
}

fn add_counts<K: Ord + Copy>(sums: &mut BTreeMap<K, u64>, counts: &BTreeMap<K, u64>) {
    for (key, count) in counts {
        *sums.entry(*key).or_default() += count;
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
