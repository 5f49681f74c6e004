//! Determines the cause of a slow request: the cause that took the most time.

use super::first_output_wait::FirstOutputWait;
use crate::record::{
    Outcome, RequestPhase, RequestPhases, RequestRecord, SlowCause, SlowLimits, Timings,
};
use std::time::{Duration, Instant};

impl SlowCause {
    /// The cause of a finished request. `None`: the request was not slow.
    pub fn from_record(record: &RequestRecord, limits: &SlowLimits) -> Option<Self> {
        if !is_slow(record, limits) {
            return None;
        }
        let times = time_by_cause(record, limits);
        // Among equal times, `max_by_key` returns the last cause of the list.
        let longest = times.into_iter().max_by_key(|(_, took)| *took);
        longest
            .filter(|(_, took)| !took.is_zero())
            .map(|(cause, _)| cause)
    }
}

/// Whether the request exceeded a limit or its stream stalled.
fn is_slow(record: &RequestRecord, limits: &SlowLimits) -> bool {
    let observed = &*record.observed;
    // A rejected or invalid request does not count as slow.
    if record.attempts.is_empty() || record.outcome == Outcome::ClientError {
        return false;
    }
    let exceeds = |took: Option<Duration>, limit| took.is_some_and(|took| took > limit);
    // A stream without output waited for its first token until its end.
    let waited = record
        .ttft()
        .or_else(|| record.options.stream.then(|| record.duration()));
    exceeds(waited, limits.ttft)
        || exceeds(record.reasoning_wait(), limits.first_answer)
        || exceeds(record.tpot(), limits.tpot)
        || (!record.options.stream && record.duration() > limits.duration)
        || observed.write_stall > limits.write_stall
        || !observed.stalls.is_empty()
}

/// Returns how much of the time of the request each cause took.
fn time_by_cause(record: &RequestRecord, limits: &SlowLimits) -> [(SlowCause, Duration); 13] {
    let timings = &record.timings;
    let phases = RequestPhases::from_record(record);
    let took = |phase| phases.get(phase).map_or(Duration::ZERO, |span| span.took);
    let upload = elapsed_between(Some(timings.accepted), timings.received);
    let backend_wait = record.backend_wait().unwrap_or_default();
    let gateway_queue = took(RequestPhase::GatewayQueue).saturating_sub(backend_wait);
    let wait = FirstOutputWait::from_record(record);
    let stall_time = total_stall_time(timings, record);
    let is_preempted = record
        .preemptions()
        .is_some_and(|preemptions| preemptions > 0);
    let when = |applies, took| if applies { took } else { Duration::ZERO };
    let is_slow_decode = record.tpot().is_some_and(|tpot| tpot > limits.tpot);
    let decode = took(RequestPhase::Decode).saturating_sub(stall_time);
    let decode = when(is_slow_decode, decode);
    let is_late_answer = record
        .reasoning_wait()
        .is_some_and(|wait| wait > limits.first_answer);
    let answered = timings.first_answer.or(timings.ended);
    let reasoning = elapsed_between(timings.first_reasoning, answered);
    let reasoning = when(is_late_answer, reasoning);
    // At a lower clock, the GPU's own work takes longer.
    let is_throttled = record.was_gpu_throttled();
    let long_prompt = wait.long_prompt();
    [
        (SlowCause::Retry, took(RequestPhase::FailedAttempts)),
        (SlowCause::GatewayQueue, gateway_queue),
        (SlowCause::NoBackend, backend_wait),
        (SlowCause::Gateway, took(RequestPhase::Gateway)),
        (SlowCause::EngineQueue, wait.queue),
        (
            SlowCause::LongPrompt,
            when(!is_throttled, long_prompt) + took(RequestPhase::RemotePrefill),
        ),
        (SlowCause::Reasoning, reasoning.saturating_sub(stall_time)),
        (SlowCause::Unresponsive, wait.unresponsive()),
        (SlowCause::Preempted, when(is_preempted, stall_time)),
        (SlowCause::Stalled, when(!is_preempted, stall_time)),
        (SlowCause::SlowDecode, when(!is_throttled, decode)),
        (
            SlowCause::GpuThrottled,
            when(is_throttled, long_prompt + decode),
        ),
        (SlowCause::SlowClient, upload + record.observed.write_stall),
    ]
}

/// Sum of the stalls. A stall that did not end lasts until the end of the request.
fn total_stall_time(timings: &Timings, record: &RequestRecord) -> Duration {
    let stalls = record.observed.stalls.iter();
    stalls
        .map(|stall| elapsed_between(Some(stall.last_output_at), stall.ended_at.or(timings.ended)))
        .sum()
}

fn elapsed_between(from: Option<Instant>, to: Option<Instant>) -> Duration {
    match (from, to) {
        (Some(from), Some(to)) => to.saturating_duration_since(from),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::fixtures::{at, streamed};
    use crate::record::{BackendCondition, Stall};
    use std::sync::Arc;
    use tokenweir_protocol::openai::EngineTimes;

    fn slow_cause_after(
        change: impl FnOnce(&mut RequestRecord, &dyn Fn(u64) -> Instant),
    ) -> Option<SlowCause> {
        let mut record = streamed();
        let accepted = record.timings.accepted;
        change(&mut record, &|millis| at(accepted, millis));
        SlowCause::from_record(&record, &SlowLimits::default())
    }

    /// Delays the first output and all later instants by `millis` milliseconds.
    fn delay_output(record: &mut RequestRecord, millis: u64) {
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

    fn set_waiting(record: &mut RequestRecord, waiting: u32) {
        Arc::make_mut(record.decision.as_mut().unwrap())
            .backend_condition
            .waiting = Some(waiting);
    }

    fn add_stall(record: &mut RequestRecord) {
        let (since, until) = (
            record.timings.first_output.unwrap(),
            record.timings.last_output,
        );
        let stall = Stall {
            last_output_at: since,
            detected_at: since,
            ended_at: until,
            condition: BackendCondition::default(),
        };
        record.observed.stalls.push(stall);
    }

    #[test]
    fn requests_within_the_limits_have_no_cause() {
        assert_eq!(slow_cause_after(|_, _| ()), None);
        assert_eq!(
            slow_cause_after(|record, _| delay_output(record, 1_900)),
            None,
            "in time"
        );
    }

    #[test]
    fn client_errors_and_refusals_are_not_slow() {
        let delay_by_a_minute = |record: &mut RequestRecord| delay_output(record, 60_000);
        let without_backend = slow_cause_after(|record, _| {
            delay_by_a_minute(record);
            record.attempts.clear();
        });
        let client_error = slow_cause_after(|record, _| {
            delay_by_a_minute(record);
            record.outcome = Outcome::ClientError;
        });
        assert_eq!((without_backend, client_error), (None, None));
    }

    #[test]
    fn engine_times_decide_between_queue_and_prompt() {
        for (queue, prefill, expected) in [
            (2_000, 900, SlowCause::EngineQueue),
            (900, 2_000, SlowCause::LongPrompt),
        ] {
            let set_engine_times = |record: &mut RequestRecord| {
                delay_output(record, 3_000);
                record.observed.usage.input = Some(4_000);
                record.observed.engine_times = Some(EngineTimes {
                    queue: Some(Duration::from_millis(queue)),
                    prefill: Some(Duration::from_millis(prefill)),
                    decode: None,
                });
            };
            assert_eq!(
                slow_cause_after(|record, _| set_engine_times(record)),
                Some(expected)
            );
        }
    }

    #[test]
    fn the_engine_queue_needs_waiting_requests() {
        for (waiting, expected) in [(3, SlowCause::EngineQueue), (0, SlowCause::Unresponsive)] {
            let slow = slow_cause_after(|record, _| {
                delay_output(record, 3_000);
                set_waiting(record, waiting);
            });
            assert_eq!(slow, Some(expected));
        }
    }

    #[test]
    fn gpu_throttling_explains_slow_decode() {
        for is_throttled in [false, true] {
            let slow = slow_cause_after(|record, at| {
                let decision = Arc::make_mut(record.decision.as_mut().unwrap());
                decision.backend_condition.is_gpu_throttled = is_throttled;
                record.timings.last_output = Some(at(90_000));
                record.timings.terminal = Some(at(90_000));
                record.timings.ended = Some(at(90_000));
            });
            let expected = if is_throttled {
                SlowCause::GpuThrottled
            } else {
                SlowCause::SlowDecode
            };
            assert_eq!(slow, Some(expected));
        }
    }

    #[test]
    fn long_reasoning_is_slow_with_any_answer() {
        let after = |answer: Option<u64>, end: u64| {
            slow_cause_after(|record, at| {
                record.timings.first_reasoning = record.timings.first_output;
                record.timings.first_answer = answer.map(at);
                record.timings.last_output = Some(at(end));
                record.timings.ended = Some(at(end));
                record.observed.usage.output = Some(1_000);
            })
        };
        assert_eq!(after(Some(9_900), 20_000), None);
        assert_eq!(after(Some(10_100), 20_000), Some(SlowCause::Reasoning));
        assert_eq!(
            after(None, 10_100),
            Some(SlowCause::Reasoning),
            "it ended without an answer"
        );
    }

    #[test]
    fn time_before_the_last_attempt_has_causes() {
        let queued = slow_cause_after(|record, at| {
            delay_output(record, 3_000);
            record.timings.queued = Some(at(2));
            record.timings.dequeued = Some(at(3_000));
            record.timings.routed = Some(at(3_000));
            record.attempts[0].started = at(3_001);
            record.timings.sent = Some(at(3_001));
        });
        assert_eq!(queued, Some(SlowCause::GatewayQueue));
        let slow_gateway = slow_cause_after(|record, at| {
            delay_output(record, 3_000);
            record.attempts[0].started = at(3_000);
            record.timings.sent = Some(at(3_000));
        });
        assert_eq!(slow_gateway, Some(SlowCause::Gateway));
        let retried = slow_cause_after(|record, at| {
            delay_output(record, 3_000);
            let again = record.attempts[0].clone();
            record.attempts.push(again);
            record.attempts[0].ended = Some(at(2_999));
            record.timings.routed = Some(at(2_999));
            record.attempts[1].started = at(3_000);
            record.timings.sent = Some(at(3_000));
        });
        assert_eq!(retried, Some(SlowCause::Retry));
    }

    #[test]
    fn preemptions_explain_stalls() {
        assert_eq!(
            slow_cause_after(|record, _| add_stall(record)),
            Some(SlowCause::Stalled)
        );
        for (after, expected) in [(4, SlowCause::Stalled), (5, SlowCause::Preempted)] {
            let slow = slow_cause_after(|record, _| {
                add_stall(record);
                Arc::make_mut(record.decision.as_mut().unwrap())
                    .backend_condition
                    .preemptions = Some(4);
                record.condition.preemptions = Some(after);
            });
            assert_eq!(slow, Some(expected));
        }
    }

    #[test]
    fn high_tpot_is_slow_decode_without_a_stall() {
        let slow_down_decode = |record: &mut RequestRecord, at: &dyn Fn(u64) -> Instant| {
            record.timings.last_output = Some(at(100 + 15 * 300));
            record.timings.ended = Some(at(5_000));
        };
        assert_eq!(
            slow_cause_after(slow_down_decode),
            Some(SlowCause::SlowDecode)
        );
        let stalled = slow_cause_after(|record, at| {
            slow_down_decode(record, at);
            add_stall(record);
        });
        assert_eq!(stalled, Some(SlowCause::Stalled));
    }

    #[test]
    fn slow_uploads_and_readers_are_slow_clients() {
        let upload = slow_cause_after(|record, at| {
            delay_output(record, 3_000);
            record.timings.received = Some(at(3_000));
            record.timings.routed = Some(at(3_001));
            record.attempts[0].started = at(3_002);
            record.timings.sent = Some(at(3_002));
        });
        assert_eq!(upload, Some(SlowCause::SlowClient));
        let reader = slow_cause_after(|record, _| {
            record.observed.write_stall = Duration::from_secs(2);
        });
        assert_eq!(reader, Some(SlowCause::SlowClient));
    }

    #[test]
    fn whole_responses_have_their_own_limit() {
        let non_stream = |seconds: u64| {
            slow_cause_after(|record, at| {
                record.options.stream = false;
                record.timings.first_output = None;
                record.timings.last_output = None;
                record.timings.ended = Some(at(seconds * 1_000));
            })
        };
        assert_eq!(non_stream(60), None);
        assert!(non_stream(61).is_some());
    }
}
