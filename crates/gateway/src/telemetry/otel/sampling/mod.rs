//! Tail sampling decides at the end of a request whether its trace is sampled. Traces of failed and slow
//! requests are always sampled. Other traces are sampled if head sampling selected them when the request
//! arrived. A request counts as failed or slow for one of these reasons:
//!
//! ```text
//! failure    client disconnect    shed    retry    stall
//! longer than one of the `slow` limits of the configuration
//! longer than the rolling p99 of its model: TTFT, duration of a stream or of another response
//! ```
//!
//! The rolling p99 adapts to the traffic, so that it selects at most about 1 % of the requests. The `slow`
//! limits are fixed.

mod rolling_p99;

use super::spans;
use rolling_p99::RollingP99;
use std::collections::HashMap;
use std::sync::Mutex;
use tokenweir_protocol::mutex::lock;
use tokenweir_protocol::trace_context::Propagation;
use tokenweir_request::error::SHED_REASONS;
use tokenweir_request::record::{ModelLabel, Outcome, RequestRecord, SampleReason};

/// The tail sampler. It keeps the recent latencies of each model.
#[derive(Debug, Default)]
pub(super) struct TailSampler {
    latencies_by_model: Mutex<HashMap<ModelLabel, ModelLatencies>>,
}

#[derive(Debug, Default)]
struct ModelLatencies {
    first_token: RollingP99,
    /// Durations of the requests with a stream as response.
    stream_duration: RollingP99,
    /// Durations of the requests with another response than a stream.
    response_duration: RollingP99,
}

/// Maximum number of entries in the table of latencies by model. The last entry is shared by all models without
/// an entry of their own.
const MAX_TRACKED_MODELS: usize = 64;

impl TailSampler {
    /// Returns why the trace of a finished request is sampled, from the request's result and latencies. Also
    /// adds its latencies to the statistics of the model. `None`: tail sampling does not select the trace.
    pub(super) fn sample(&self, record: &RequestRecord) -> Option<SampleReason> {
        let slow_reason = self.update_latencies(record);
        let is_shed = record
            .refusal
            .is_some_and(|refusal| SHED_REASONS.contains(&refusal));
        let is_failed =
            !is_shed && (spans::has_error(record) || record.outcome == Outcome::Rejected);
        let outcome = record.outcome;
        if is_failed || outcome == Outcome::Shutdown {
            Some(SampleReason::Error)
        } else if outcome == Outcome::Cancelled {
            Some(SampleReason::Aborted)
        } else if is_shed {
            Some(SampleReason::Shed)
        } else if record.attempts.len() > 1 {
            Some(SampleReason::Retried)
        } else if !record.observed.stalls.is_empty() {
            Some(SampleReason::Stalled)
        } else {
            slow_reason.or(record.slow.map(|_| SampleReason::Slow))
        }
    }

    /// Adds the latencies of a complete response to the statistics of its model. Returns the sample reason if a
    /// latency exceeds the p99 of the model, and `None` if none does. The lock is held only for a few
    /// additions.
    fn update_latencies(&self, record: &RequestRecord) -> Option<SampleReason> {
        let now = record.timings.ended?;
        if record.outcome != Outcome::Ok || record.api.is_none() {
            return None;
        }
        let mut latencies_by_model = lock(&self.latencies_by_model);
        let has_own_entry = record.model.is_known()
            && (latencies_by_model.len() < MAX_TRACKED_MODELS - 1
                || latencies_by_model.contains_key(&record.model));
        let model = if has_own_entry {
            record.model.clone()
        } else {
            ModelLabel::Unknown
        };
        let latencies = latencies_by_model.entry(model).or_default();
        let is_late = record
            .ttft()
            .is_some_and(|ttft| latencies.first_token.record_exceeds_p99(ttft, now));
        let durations = if record.observed.is_stream {
            &mut latencies.stream_duration
        } else {
            &mut latencies.response_duration
        };
        let is_long = durations.record_exceeds_p99(record.duration(), now);
        match (is_late, is_long) {
            (true, _) => Some(SampleReason::SlowFirstToken),
            (_, true) => Some(SampleReason::Slow),
            _ => None,
        }
    }
}

/// Returns [`SampleReason::Sampled`] if head sampling selects the trace of the request. `None`: head sampling
/// does not select the trace, or the request has no trace.
///
/// Without `export_all`, a trace is selected if its `is_sampled` is true. With `export_all`, the gateway
/// exports the spans of all traces, so `is_sampled` is true for every trace unless the client decided against
/// sampling. The sampling ratio and the rate limit in `export_all` then select among these traces.
pub(super) fn sample_head(
    record: &RequestRecord,
    export_all: Option<&Propagation>,
) -> Option<SampleReason> {
    let trace = record.trace.as_ref().filter(|trace| trace.is_sampled)?;
    let ended = record.timings.end();
    export_all
        .is_none_or(|sampling| sampling.should_sample(None, trace.trace_id, ended))
        .then_some(SampleReason::Sampled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::otel::TracingSettings;
    use std::sync::Arc;
    use std::time::{Duration, Instant};
    use tokenweir_protocol::clock;
    use tokenweir_protocol::limits::rate_limiter::GcraLimiter;
    use tokenweir_protocol::trace_context::Sampler;
    use tokenweir_request::record::fixtures::{at, streamed};
    use tokenweir_request::record::{
        BackendCondition, SlowCause, SlowLimits, Stall, Termination, Timings,
    };

    /// Returns the record of a stream with typical latencies. Head sampling did not select its trace.
    fn typical_record() -> RequestRecord {
        let mut record = streamed();
        record.sample_reason = None;
        if let Some(trace) = &mut record.trace {
            trace.is_sampled = false;
        }
        record
    }

    /// Returns the sample reason of the typical record after `change` has changed it.
    fn sample_changed(change: impl FnOnce(&mut RequestRecord)) -> Option<SampleReason> {
        let mut record = typical_record();
        change(&mut record);
        TailSampler::default()
            .sample(&record)
            .or_else(|| sample_head(&record, None))
    }

    #[test]
    fn failed_and_shed_requests_are_sampled() {
        for (outcome, expected) in [
            (Outcome::UpstreamError, SampleReason::Error),
            (Outcome::StreamError, SampleReason::Error),
            (Outcome::Truncated, SampleReason::Error),
            (Outcome::Aborted, SampleReason::Error),
            (Outcome::Timeout, SampleReason::Error),
            (Outcome::Shutdown, SampleReason::Error),
            (Outcome::Rejected, SampleReason::Error),
            (Outcome::ClientError, SampleReason::Error),
            (Outcome::Cancelled, SampleReason::Aborted),
        ] {
            let reason = sample_changed(|record| record.outcome = outcome);
            assert_eq!(reason, Some(expected), "{outcome:?}");
        }
        for refusal in SHED_REASONS {
            let shed = |record: &mut RequestRecord| {
                record.outcome = Outcome::Rejected;
                record.refusal = Some(refusal);
                record.attempts.clear();
                record.end = Termination::LocalReply;
            };
            assert_eq!(sample_changed(shed), Some(SampleReason::Shed), "{refusal}");
        }
    }

    #[test]
    fn slow_requests_but_not_typical_ones_are_sampled() {
        type Change = fn(&mut RequestRecord);
        let cases: [(&str, Change, Option<SampleReason>); 6] = [
            ("typical", |_| {}, None),
            (
                "sampled by the client",
                |it| it.trace.as_mut().unwrap().is_sampled = true,
                Some(SampleReason::Sampled),
            ),
            (
                "slow",
                |it| it.slow = Some(SlowCause::LongPrompt),
                Some(SampleReason::Slow),
            ),
            (
                "retried",
                |it| it.attempts.push(it.attempts[0].clone()),
                Some(SampleReason::Retried),
            ),
            (
                "stalled",
                |it| {
                    it.observed.stalls = vec![Stall {
                        last_output_at: it.timings.accepted,
                        detected_at: it.timings.accepted,
                        ended_at: None,
                        condition: BackendCondition::default(),
                    }];
                },
                Some(SampleReason::Stalled),
            ),
            (
                "unknown path",
                |it| {
                    (it.outcome, it.status) = (Outcome::ClientError, Some(404));
                    (it.refusal, it.api) = (Some("not_found"), None);
                    it.attempts.clear();
                },
                None,
            ),
        ];
        for (name, change, expected) in cases {
            assert_eq!(sample_changed(change), expected, "{name}");
        }
    }

    #[test]
    fn ratio_and_rate_limit_select_traces() {
        let sampled = streamed();
        let sample_with = |ratio, per_second: Option<u32>| {
            let sampler = Sampler {
                is_parent_based: true,
                ratio,
            };
            let default = TracingSettings::default().propagation;
            let rate_limit = per_second.map(|rate| Arc::new(GcraLimiter::new(rate)));
            let export_all = Propagation {
                sampler,
                rate_limit,
                ..default
            };
            move |record: &RequestRecord| sample_head(record, Some(&export_all))
        };
        assert_eq!(
            sample_with(1.0, None)(&sampled),
            Some(SampleReason::Sampled)
        );
        assert_eq!(sample_with(0.0, None)(&sampled), None);
        assert_eq!(
            sample_with(1.0, None)(&typical_record()),
            None,
            "the client has decided"
        );
        assert_eq!(
            sample_with(1.0, Some(0))(&sampled),
            None,
            "over the rate limit"
        );
    }

    /// Returns the record of a stream whose first token and end are this many milliseconds after
    /// `begin`.
    fn record_with_timings(first: u64, end: u64, begin: Instant) -> RequestRecord {
        let record = typical_record();
        let timings = Timings {
            first_event: Some(at(begin, first)),
            first_output: Some(at(begin, first)),
            first_answer: Some(at(begin, first)),
            last_output: Some(at(begin, end - 5)),
            ended: Some(at(begin, end)),
            sent: Some(at(begin, 1)),
            ..Timings::begin(begin)
        };
        RequestRecord { timings, ..record }
    }

    #[test]
    fn requests_above_the_p99_are_sampled() {
        let (tail, begin) = (TailSampler::default(), clock::now());
        for _ in 0..1_000 {
            assert_eq!(tail.sample(&record_with_timings(100, 500, begin)), None);
        }
        let late = record_with_timings(300, 500, begin);
        assert_eq!(tail.sample(&late), Some(SampleReason::SlowFirstToken));
        assert_eq!(
            tail.sample(&record_with_timings(100, 900, begin)),
            Some(SampleReason::Slow)
        );
        let other_model = ModelLabel::Known("large".into());
        let other_record = RequestRecord {
            model: other_model,
            ..record_with_timings(300, 900, begin)
        };
        assert_eq!(tail.sample(&other_record), None);
    }

    #[test]
    fn the_number_of_models_is_bounded() {
        let tail = TailSampler::default();
        for n in 0..1_000 {
            let model = ModelLabel::Known(format!("model-{n}").into());
            tail.sample(&RequestRecord {
                model,
                ..typical_record()
            });
        }
        assert_eq!(
            tail.latencies_by_model.lock().unwrap().len(),
            MAX_TRACKED_MODELS
        );
    }

    /// The test samples 100,000 requests: 1 % fail and 2 % are slow.
    #[test]
    fn a_configured_share_of_other_requests_is_sampled() {
        const SAMPLING_RATIO: f64 = 0.05;
        let sampler = Sampler {
            is_parent_based: true,
            ratio: SAMPLING_RATIO,
        };
        let (tail, limits) = (TailSampler::default(), SlowLimits::default());
        let mut random = fastrand::Rng::with_seed(7);
        let mut begin = clock::now();
        let (mut missed, mut sampled, mut ordinary) = (0, 0_u32, 0_u32);
        for _ in 0..100_000 {
            begin += Duration::from_millis(random.u64(0..20));
            let percentile = random.u32(0..100);
            let first = if percentile < 2 {
                random.u64(2_001..9_000)
            } else {
                random.u64(50..200)
            };
            let mut record = record_with_timings(first, first + random.u64(200..2_000), begin);
            if percentile == 2 {
                record.outcome = Outcome::Truncated;
            }
            record.slow = SlowCause::from_record(&record, &limits);
            if let Some(trace) = &mut record.trace {
                trace.trace_id = random.u128(1..);
                trace.is_sampled = sampler.should_sample(None, trace.trace_id);
            }
            match (
                tail.sample(&record).or_else(|| sample_head(&record, None)),
                percentile,
            ) {
                (reason, 2) => missed += u32::from(reason != Some(SampleReason::Error)),
                (Some(SampleReason::SlowFirstToken | SampleReason::Slow), ..2) => {}
                (_, ..2) => missed += 1,
                (reason, _) => {
                    ordinary += 1;
                    sampled += u32::from(reason.is_some());
                }
            }
        }
        assert_eq!(missed, 0);
        // The number of sampled requests may differ from its mean by up to four standard deviations
        // of the binomial distribution.
        let (mean, spread) = (
            f64::from(ordinary) * SAMPLING_RATIO,
            (f64::from(ordinary) * SAMPLING_RATIO * (1.0 - SAMPLING_RATIO)).sqrt(),
        );
        assert!(
            (f64::from(sampled) - mean).abs() < 4.0 * spread,
            "{sampled} of {ordinary}"
        );
    }
}
