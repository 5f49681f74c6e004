//! Why a slow request was slow: one cause from a closed set, the one that took the most time.

use super::wait::FirstWait;
use super::{Outcome, Phase, Phases, RequestRecord, Timings};
use crate::units;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// What made a request slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlowCause {
    /// It was sent to a replica that failed, and then to another.
    Retry,
    /// It waited in the gateway for a replica with room.
    GatewayQueue,
    /// The gateway itself was slow.
    Gateway,
    /// It waited in the engine's queue.
    EngineQueue,
    /// Its prompt took long to compute.
    LongPrompt,
    /// The backend gave no output, and neither its queue nor the prompt explains that: its engine or its
    /// host is frozen, or the cause cannot be seen from here.
    Unresponsive,
    /// The engine took its KV cache away for others, and computed it again.
    Preempted,
    /// The engine fell silent in the middle of the answer.
    Stalled,
    /// The engine made each token slowly: a large batch, or long contexts.
    SlowDecode,
    /// The client was slow to send the request, or to take the answer.
    SlowReader,
}

/// A request that takes longer than any of these is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SlowLimits {
    /// Time to first token, of streams.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub ttft: Duration,
    /// Time per output token, of streams.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub tpot: Duration,
    /// Duration, of answers that are no stream.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub whole: Duration,
    /// How long the client holds an answer up.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub write_stall: Duration,
}

impl Default for SlowLimits {
    /// 2 s to the first token, 200 ms a token, 60 s for a whole answer, 1 s of a slow client.
    fn default() -> Self {
        Self {
            ttft: Duration::from_secs(2),
            tpot: Duration::from_millis(200),
            whole: Duration::from_mins(1),
            write_stall: Duration::from_secs(1),
        }
    }
}

// === impl SlowCause ===

impl SlowCause {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Retry,
        Self::GatewayQueue,
        Self::Gateway,
        Self::EngineQueue,
        Self::LongPrompt,
        Self::Unresponsive,
        Self::Preempted,
        Self::Stalled,
        Self::SlowDecode,
        Self::SlowReader,
    ];

    /// The name in metrics, logs and spans.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::GatewayQueue => "gateway_queue",
            Self::Gateway => "gateway",
            Self::EngineQueue => "engine_queue",
            Self::LongPrompt => "long_prompt",
            Self::Unresponsive => "unresponsive",
            Self::Preempted => "preempted",
            Self::Stalled => "stalled",
            Self::SlowDecode => "slow_decode",
            Self::SlowReader => "slow_reader",
        }
    }

    /// The cause of a request that has ended, if it was slow.
    pub fn of(record: &RequestRecord, limits: &SlowLimits) -> Option<Self> {
        if !is_slow(record, limits) {
            return None;
        }
        let costs = costs(record, limits);
        // The last of equals: the order of the list is that of the request.
        let longest = costs.into_iter().max_by_key(|(_, took)| *took);
        longest.filter(|(_, took)| !took.is_zero()).map(|(cause, _)| cause)
    }
}

fn is_slow(record: &RequestRecord, limits: &SlowLimits) -> bool {
    let observed = &record.observed;
    // Refused, or without an answer for reasons that are not slowness.
    if record.attempts.is_empty() || record.outcome == Outcome::ClientError {
        return false;
    }
    let is_over = |took: Option<Duration>, limit| took.is_some_and(|took| took > limit);
    // One that never had a first token has waited for it until its end.
    let waited = record.ttft().or_else(|| record.asked.stream.then(|| record.duration()));
    is_over(waited, limits.ttft)
        || is_over(record.tpot(), limits.tpot)
        || (!record.asked.stream && record.duration() > limits.whole)
        || observed.write_stall > limits.write_stall
        || !observed.stalls.is_empty()
}

/// What each cause has cost.
fn costs(record: &RequestRecord, limits: &SlowLimits) -> [(SlowCause, Duration); 10] {
    let timings = &record.timings;
    let phases = Phases::of(record);
    let took = |phase| phases.get(phase).map_or(Duration::ZERO, |span| span.took);
    let first = record.attempts.first().map(|attempt| attempt.started);
    let retries = between(first, timings.sent);
    let upload = between(Some(timings.accepted), timings.received);
    let wait = FirstWait::of(record, &phases);
    let silent = silences(timings, record);
    let is_preempted = record.preemptions().is_some_and(|preemptions| preemptions > 0);
    let (preempted, stalled) =
        if is_preempted { (silent, Duration::ZERO) } else { (Duration::ZERO, silent) };
    let is_dragging = record.tpot().is_some_and(|tpot| tpot > limits.tpot);
    let decode = took(Phase::Decode).saturating_sub(silent);
    [
        (SlowCause::Retry, retries),
        (SlowCause::GatewayQueue, took(Phase::GatewayQueue)),
        (SlowCause::Gateway, took(Phase::Gateway).saturating_sub(retries)),
        (SlowCause::EngineQueue, wait.queue),
        (SlowCause::LongPrompt, wait.prefill),
        (SlowCause::Unresponsive, wait.unexplained),
        (SlowCause::Preempted, preempted),
        (SlowCause::Stalled, stalled),
        (SlowCause::SlowDecode, if is_dragging { decode } else { Duration::ZERO }),
        (SlowCause::SlowReader, upload + record.observed.write_stall),
    ]
}

fn silences(timings: &Timings, record: &RequestRecord) -> Duration {
    let stalls = record.observed.stalls.iter();
    stalls.map(|stall| between(Some(stall.since), stall.until.or(timings.ended))).sum()
}

fn between(from: Option<Instant>, to: Option<Instant>) -> Duration {
    match (from, to) {
        (Some(from), Some(to)) => to.saturating_duration_since(from),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::EngineTimes;
    use crate::record::sample::{at, streamed};
    use crate::record::{Condition, Stall};
    use std::sync::Arc;

    /// The cause of a stream that is like the sample but for this.
    fn cause(
        change: impl FnOnce(&mut RequestRecord, &dyn Fn(u64) -> Instant),
    ) -> Option<SlowCause> {
        let mut record = streamed();
        let accepted = record.timings.accepted;
        change(&mut record, &|millis| at(accepted, millis));
        SlowCause::of(&record, &SlowLimits::default())
    }

    /// Moves all moments from the first output on to so many milliseconds later.
    fn delay(record: &mut RequestRecord, millis: u64) {
        let timings = &mut record.timings;
        let moments = [
            &mut timings.first_output,
            &mut timings.first_answer,
            &mut timings.last_output,
            &mut timings.terminal,
            &mut timings.ended,
        ];
        for moment in moments.into_iter().flatten() {
            *moment += Duration::from_millis(millis);
        }
    }

    fn queue(record: &mut RequestRecord, waiting: u32) {
        Arc::make_mut(record.decision.as_mut().unwrap()).condition.waiting = Some(waiting);
    }

    fn silence(record: &mut RequestRecord) {
        let (since, until) = (record.timings.first_output.unwrap(), record.timings.last_output);
        let stall = Stall { since, seen: since, until, condition: Condition::default() };
        record.observed.stalls.push(stall);
    }

    #[test]
    fn a_request_within_its_limits_has_no_cause() {
        assert_eq!(cause(|_, _| ()), None);
        assert_eq!(cause(|record, _| delay(record, 1_900)), None, "just in time");
    }

    #[test]
    fn a_request_that_met_no_replica_or_was_wrong_itself_is_not_slow() {
        let late = |record: &mut RequestRecord| delay(record, 60_000);
        let nobody = cause(|record, _| {
            late(record);
            record.attempts.clear();
        });
        let wrong = cause(|record, _| {
            late(record);
            record.outcome = Outcome::ClientError;
        });
        assert_eq!((nobody, wrong), (None, None));
    }

    #[test]
    fn the_engine_tells_whether_a_late_first_token_was_queued_or_computed() {
        for (queue, prefill, expected) in
            [(2_000, 900, SlowCause::EngineQueue), (900, 2_000, SlowCause::LongPrompt)]
        {
            let told = |record: &mut RequestRecord| {
                delay(record, 3_000);
                record.observed.engine = Some(EngineTimes {
                    queue: Some(Duration::from_millis(queue)),
                    prefill: Some(Duration::from_millis(prefill)),
                    decode: None,
                });
            };
            assert_eq!(cause(|record, _| told(record)), Some(expected));
        }
    }

    #[test]
    fn a_late_first_token_was_queued_where_there_was_a_queue() {
        for (waiting, expected) in [(3, SlowCause::EngineQueue), (0, SlowCause::Unresponsive)] {
            let slow = cause(|record, _| {
                delay(record, 3_000);
                queue(record, waiting);
            });
            assert_eq!(slow, Some(expected));
        }
    }

    #[test]
    fn a_stream_without_a_first_token_has_waited_until_its_end() {
        let slow = cause(|record, at| {
            record.timings.first_output = None;
            record.timings.last_output = None;
            record.timings.ended = Some(at(5_000));
            record.outcome = Outcome::Cancelled;
            queue(record, 1);
        });
        assert_eq!(slow, Some(SlowCause::EngineQueue));
    }

    #[test]
    fn time_before_the_replica_had_it_is_the_gateways_or_that_of_replicas_that_failed() {
        let queued = cause(|record, at| {
            delay(record, 3_000);
            record.timings.queued = Some(at(2));
            record.timings.dequeued = Some(at(3_000));
            record.timings.routed = Some(at(3_000));
            record.attempts[0].started = at(3_001);
            record.timings.sent = Some(at(3_001));
        });
        assert_eq!(queued, Some(SlowCause::GatewayQueue));
        let busy = cause(|record, at| {
            delay(record, 3_000);
            record.attempts[0].started = at(3_000);
            record.timings.sent = Some(at(3_000));
        });
        assert_eq!(busy, Some(SlowCause::Gateway));
        let retried = cause(|record, at| {
            delay(record, 3_000);
            let again = record.attempts[0].clone();
            record.attempts.push(again);
            record.timings.routed = Some(at(2_999));
            record.attempts[1].started = at(3_000);
            record.timings.sent = Some(at(3_000));
        });
        assert_eq!(retried, Some(SlowCause::Retry));
    }

    #[test]
    fn a_silence_is_a_preemption_where_the_engine_has_preempted() {
        assert_eq!(cause(|record, _| silence(record)), Some(SlowCause::Stalled));
        for (after, expected) in [(4, SlowCause::Stalled), (5, SlowCause::Preempted)] {
            let slow = cause(|record, _| {
                silence(record);
                Arc::make_mut(record.decision.as_mut().unwrap()).condition.preemptions = Some(4);
                record.condition.preemptions = Some(after);
            });
            assert_eq!(slow, Some(expected));
        }
    }

    #[test]
    fn slow_tokens_are_a_slow_decode_unless_they_were_one_silence() {
        let slow = |record: &mut RequestRecord, at: &dyn Fn(u64) -> Instant| {
            record.timings.last_output = Some(at(100 + 15 * 300));
            record.timings.ended = Some(at(5_000));
        };
        assert_eq!(cause(slow), Some(SlowCause::SlowDecode));
        let silent = cause(|record, at| {
            slow(record, at);
            silence(record);
        });
        assert_eq!(silent, Some(SlowCause::Stalled));
    }

    #[test]
    fn a_client_is_slow_to_send_or_to_take() {
        let upload = cause(|record, at| {
            delay(record, 3_000);
            record.timings.received = Some(at(3_000));
            record.timings.routed = Some(at(3_001));
            record.attempts[0].started = at(3_002);
            record.timings.sent = Some(at(3_002));
        });
        assert_eq!(upload, Some(SlowCause::SlowReader));
        let reader = cause(|record, _| record.observed.write_stall = Duration::from_secs(2));
        assert_eq!(reader, Some(SlowCause::SlowReader));
    }

    #[test]
    fn a_whole_answer_has_a_limit_of_its_own() {
        let whole = |seconds: u64| {
            cause(|record, at| {
                record.asked.stream = false;
                record.timings.first_output = None;
                record.timings.last_output = None;
                record.timings.ended = Some(at(seconds * 1_000));
            })
        };
        assert_eq!(whole(60), None);
        assert!(whole(61).is_some());
    }
}
