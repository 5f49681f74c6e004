//! Tail sampling: which traces are kept, asked when their requests are over. What is wrong or slow
//! is kept always, the rest if its head was sampled.
//!
//! ```text
//! the request failed    the client left    no room    sent twice    a stall
//! longer than one of the `slow` limits
//! longer than the moving p99 of its model: time to first token, duration of streams, of others
//! ```
//!
//! The moving p99s adapt: they never keep more than a hundredth of what is usual. The `slow` limits
//! do not, and say what is too slow whatever is usual.

use super::moving::Moving;
use super::spans;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use tokenweir_core::rate::Rate;
use tokenweir_core::record::{Kept, ModelLabel, Outcome, RequestRecord};
use tokenweir_core::trace_context::Sampler;

/// The judge of traces.
#[derive(Debug, Default)]
pub(super) struct Tail {
    models: Mutex<HashMap<ModelLabel, Usual>>,
}

/// What is kept of traces that are all sent, and that nothing speaks for.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) sampler: Sampler,
    /// How many at most. `None`: all that the sampler wants.
    pub(super) limit: Option<Rate>,
}

/// What is usual for a model.
#[derive(Debug, Default)]
struct Usual {
    first_token: Moving,
    stream: Moving,
    whole: Moving,
}

/// Most models that have a p99 of their own; the others share one.
const MAX_MODELS: usize = 64;

/// What a gateway that has no room says.
const NO_ROOM: [&str; 3] = ["saturated", "shed", "queue_timeout"];

// === impl Tail ===

impl Tail {
    /// Whether the trace of this request is kept for what became of it, and why. Learns what is
    /// usual from it.
    pub(super) fn judge(&self, record: &RequestRecord) -> Option<Kept> {
        let unusual = self.learn(record);
        let is_shed = record.refusal.is_some_and(|refusal| NO_ROOM.contains(&refusal));
        let is_failed =
            !is_shed && (spans::has_error(record) || record.outcome == Outcome::Rejected);
        let reasons = [
            (is_failed || record.outcome == Outcome::Shutdown, Kept::Error),
            (record.outcome == Outcome::Cancelled, Kept::Aborted),
            (is_shed, Kept::Shed),
            (record.attempts.len() > 1, Kept::Retried),
            (!record.observed.stalls.is_empty(), Kept::Stalled),
        ];
        let wrong = reasons.into_iter().find(|(is_so, _)| *is_so).map(|(_, kept)| kept);
        let slow = || unusual.or(record.slow.map(|_| Kept::Slow));
        wrong.or_else(slow)
    }

    /// Only whole answers of models say what is usual. The lock is held for a few additions.
    fn learn(&self, record: &RequestRecord) -> Option<Kept> {
        let now = record.timings.ended?;
        if record.outcome != Outcome::Ok || record.api.is_none() {
            return None;
        }
        let (first_token, duration) = (record.ttft(), record.duration());
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let is_own = models.len() < MAX_MODELS - 1 || models.contains_key(&record.model);
        let model = if is_own { record.model.clone() } else { ModelLabel::other() };
        let usual = models.entry(model).or_default();
        let is_late = first_token.is_some_and(|ttft| usual.first_token.add(ttft, now));
        let durations =
            if record.observed.is_stream { &mut usual.stream } else { &mut usual.whole };
        let is_long = durations.add(duration, now);
        match (is_late, is_long) {
            (true, _) => Some(Kept::SlowFirstToken),
            (_, true) => Some(Kept::Slow),
            _ => None,
        }
    }
}

/// The decision that was made when the request came. Where all that come are sampled, `share` says
/// which of them are kept.
pub(super) fn head(record: &RequestRecord, share: Option<&Share>) -> Option<Kept> {
    let trace = record.trace.as_ref().filter(|trace| trace.is_sampled)?;
    let ended = record.timings.ended.unwrap_or(record.timings.accepted);
    share.is_none_or(|share| share.takes(trace.trace_id, ended)).then_some(Kept::Sampled)
}

// === impl Share ===

impl Share {
    fn takes(&self, trace_id: u128, now: Instant) -> bool {
        self.sampler.decides(None, trace_id)
            && self.limit.as_ref().is_none_or(|limit| limit.take(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokenweir_core::clock;
    use tokenweir_core::record::sample::{at, streamed};
    use tokenweir_core::record::{Condition, End, SlowCause, SlowLimits, Stall, Timings};

    /// A stream that is as usual, and whose head was not sampled.
    fn usual() -> RequestRecord {
        let mut record = streamed();
        record.kept = None;
        if let Some(trace) = &mut record.trace {
            trace.is_sampled = false;
        }
        record
    }

    fn verdict(change: impl FnOnce(&mut RequestRecord)) -> Option<Kept> {
        let mut record = usual();
        change(&mut record);
        Tail::default().judge(&record).or_else(|| head(&record, None))
    }

    #[test]
    fn what_is_wrong_is_kept_and_says_why() {
        assert_eq!(verdict(|_| {}), None);
        for (outcome, expected) in [
            (Outcome::UpstreamError, Kept::Error),
            (Outcome::StreamError, Kept::Error),
            (Outcome::Truncated, Kept::Error),
            (Outcome::Aborted, Kept::Error),
            (Outcome::Timeout, Kept::Error),
            (Outcome::Shutdown, Kept::Error),
            (Outcome::Rejected, Kept::Error),
            (Outcome::ClientError, Kept::Error),
            (Outcome::Cancelled, Kept::Aborted),
        ] {
            assert_eq!(verdict(|record| record.outcome = outcome), Some(expected), "{outcome:?}");
        }
        for refusal in NO_ROOM {
            let refused = |record: &mut RequestRecord| {
                record.outcome = Outcome::Rejected;
                record.refusal = Some(refusal);
                record.attempts.clear();
                record.end = End::Refused;
            };
            assert_eq!(verdict(refused), Some(Kept::Shed), "{refusal}");
        }
        let retried = |record: &mut RequestRecord| record.attempts.push(record.attempts[0].clone());
        assert_eq!(verdict(retried), Some(Kept::Retried));
        let stalled = |record: &mut RequestRecord| {
            let (since, seen) = (record.timings.accepted, record.timings.accepted);
            let condition = Condition::default();
            record.observed.stalls = vec![Stall { since, seen, until: None, condition }];
        };
        assert_eq!(verdict(stalled), Some(Kept::Stalled));
        assert_eq!(verdict(|record| record.slow = Some(SlowCause::LongPrompt)), Some(Kept::Slow));
    }

    #[test]
    fn a_path_that_is_not_served_is_no_error_worth_keeping() {
        let unknown = |record: &mut RequestRecord| {
            record.outcome = Outcome::ClientError;
            record.status = Some(404);
            record.refusal = Some("not_found");
            record.api = None;
            record.attempts.clear();
        };
        assert_eq!(verdict(unknown), None);
    }

    #[test]
    fn a_head_that_was_sampled_is_kept_whatever_happens() {
        let sampled = |record: &mut RequestRecord| {
            record.trace = record.trace.take().map(|mut trace| {
                trace.is_sampled = true;
                trace
            });
        };
        assert_eq!(verdict(sampled), Some(Kept::Sampled));
    }

    #[test]
    fn where_all_are_sampled_a_share_of_them_is_kept() {
        let sampled = streamed();
        let share = |ratio, per_second: Option<u32>| {
            let sampler = Sampler { is_parent_based: true, ratio };
            let limit = per_second.map(|rate| Rate::new(rate, sampled.timings.accepted));
            move |record: &RequestRecord| head(record, Some(&Share { sampler, limit }))
        };
        assert_eq!(share(1.0, None)(&sampled), Some(Kept::Sampled));
        assert_eq!(share(0.0, None)(&sampled), None);
        assert_eq!(share(1.0, None)(&usual()), None, "its caller has decided");
        assert_eq!(share(1.0, Some(0))(&sampled), None, "no more of them in this second");
    }

    /// A stream whose first token and end come as late as this.
    fn timed(first: u64, end: u64, begin: Instant) -> RequestRecord {
        let record = usual();
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
    fn what_is_slower_than_nearly_all_of_its_model_is_kept() {
        let (tail, begin) = (Tail::default(), clock::now());
        for _ in 0..1_000 {
            assert_eq!(tail.judge(&timed(100, 500, begin)), None);
        }
        assert_eq!(tail.judge(&timed(300, 500, begin)), Some(Kept::SlowFirstToken));
        assert_eq!(tail.judge(&timed(100, 900, begin)), Some(Kept::Slow));
        let other = ModelLabel::known("large".into());
        let slow_elsewhere = RequestRecord { model: other, ..timed(300, 900, begin) };
        assert_eq!(tail.judge(&slow_elsewhere), None);
    }

    #[test]
    fn any_number_of_models_costs_the_same_memory() {
        let tail = Tail::default();
        for n in 0..1_000 {
            let model = ModelLabel::known(format!("model-{n}").into());
            tail.judge(&RequestRecord { model, ..usual() });
        }
        assert_eq!(tail.models.lock().unwrap().len(), MAX_MODELS);
    }

    /// 1 % of 100,000 requests fail, and 2 % are slow.
    #[test]
    fn everything_wrong_and_slow_is_kept_and_of_the_rest_the_rate() {
        const RATE: f64 = 0.05;
        let sampler = Sampler { is_parent_based: true, ratio: RATE };
        let (tail, limits) = (Tail::default(), SlowLimits::default());
        let mut random = fastrand::Rng::with_seed(7);
        let mut begin = clock::now();
        let (mut missed, mut kept, mut rest) = (0, 0_u32, 0_u32);
        for _ in 0..100_000 {
            begin += Duration::from_millis(random.u64(0..20));
            let luck = random.u32(0..100);
            let first = if luck < 2 { random.u64(2_001..9_000) } else { random.u64(50..200) };
            let mut record = timed(first, first + random.u64(200..2_000), begin);
            if luck == 2 {
                record.outcome = Outcome::Truncated;
            }
            record.slow = SlowCause::of(&record, &limits);
            if let Some(trace) = &mut record.trace {
                trace.trace_id = random.u128(1..);
                trace.is_sampled = sampler.decides(None, trace.trace_id);
            }
            match (tail.judge(&record).or_else(|| head(&record, None)), luck) {
                (verdict, 2) => missed += u32::from(verdict != Some(Kept::Error)),
                (Some(Kept::SlowFirstToken | Kept::Slow), ..2) => {}
                (_, ..2) => missed += 1,
                (verdict, _) => {
                    rest += 1;
                    kept += u32::from(verdict.is_some());
                }
            }
        }
        assert_eq!(missed, 0);
        // Four standard deviations of the binomial distribution.
        let (mean, spread) =
            (f64::from(rest) * RATE, (f64::from(rest) * RATE * (1.0 - RATE)).sqrt());
        assert!((f64::from(kept) - mean).abs() < 4.0 * spread, "{kept} of {rest}");
    }
}
