//! Splits the time from sending a request to its first output: the engine's queue, the prefill, or
//! a backend that did not respond.
//!
//! The split is determined when the request has ended, because the queue of a burst does not exist
//! yet when the requests of the burst are routed.

use super::phases::{RequestPhase, RequestPhases};
use crate::record::{RequestRecord, Timings, UsageSource};
use std::time::Duration;

/// The parts of the time from sending a request to its first output, or to its end without output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FirstOutputWait {
    /// Time in the engine's queue.
    pub(super) queue: Duration,
    /// Time of the prefill.
    pub(super) prefill: Duration,
    /// Time that neither the queue nor the prefill explains: an engine or host without progress,
    /// the network, or a cause that the backend does not report.
    pub(super) unexplained: Duration,
    /// The prompt is known to be too short for a long prefill.
    is_short_prompt: bool,
}

/// A prompt with fewer tokens to compute is short.
const MIN_LONG_PROMPT_TOKENS: f64 = 256.0;

/// Multiple of the predicted prefill time up to which a wait counts as prefill: other sequences are
/// computed in the same batches.
const PREFILL_TOLERANCE_FACTOR: f64 = 3.0;
/// An unexplained wait up to this duration does not count as an unresponsive backend.
const MIN_UNRESPONSIVE_WAIT: Duration = Duration::from_secs(1);

impl FirstOutputWait {
    /// Determines the parts for a request that has ended.
    pub(super) fn from_record(record: &RequestRecord, phases: &RequestPhases) -> Self {
        let timings = &record.timings;
        let (Some(sent), Some(end)) = (timings.sent, timings.first_output.or(timings.ended)) else {
            return Self::default();
        };
        let wait = end.saturating_duration_since(sent);
        let [queue, prefill] =
            [RequestPhase::EngineQueue, RequestPhase::Prefill].map(|phase| phases.get(phase));
        let is_measured = prefill.is_some_and(|span| !span.is_estimated);
        let tokens = computed_tokens(record);
        let is_short_prompt = tokens.is_some_and(|tokens| tokens < MIN_LONG_PROMPT_TOKENS);
        let [queue, prefill] =
            [queue, prefill].map(|span| span.map_or(Duration::ZERO, |span| span.took));
        if is_measured {
            let unexplained = wait.saturating_sub(queue + prefill);
            return Self { queue, prefill, unexplained, is_short_prompt };
        }
        let PredictedPrefill { prompt, backlog } = PredictedPrefill::from_record(record, tokens);
        // Mean prefill times of other requests do not show that a short prompt took as long.
        let prefill = prompt.mul_f64(PREFILL_TOLERANCE_FACTOR).min(wait);
        let after_prefill = wait.saturating_sub(prefill);
        let queue =
            if was_queued(record) { after_prefill } else { queue.max(backlog).min(after_prefill) };
        let unexplained = after_prefill.saturating_sub(queue);
        Self { queue, prefill, unexplained, is_short_prompt }
    }

    /// The time that the length of the prompt explains.
    pub(super) fn long_prompt(self) -> Duration {
        if self.is_short_prompt { Duration::ZERO } else { self.prefill }
    }

    /// The time that neither the queue nor the length of the prompt explains.
    pub(super) fn unresponsive(self) -> Duration {
        self.unexplained + self.prefill.saturating_sub(self.long_prompt())
    }

    /// Name of the longest part, as the phase of a request that ended without output.
    pub(super) fn phase(self) -> &'static str {
        let Self { queue, prefill, unexplained, .. } = self;
        if unexplained > MIN_UNRESPONSIVE_WAIT && unexplained > queue.max(prefill) {
            "unresponsive"
        } else if queue > prefill {
            "engine_queue"
        } else {
            "prefill"
        }
    }
}

impl RequestRecord {
    /// The values of [`RequestRecord::phase`] of a request that ended before its response.
    pub const UNFINISHED_PHASES: [&'static str; 8] = [
        "upload",
        "queued",
        "routing",
        "headers",
        "engine_queue",
        "prefill",
        "unresponsive",
        "decode",
    ];

    /// The phase in which the request ended. A backend sends the head of a stream before it
    /// computes anything. So between head and first output, the phase is the longest part of the
    /// wait.
    pub fn phase(&self) -> &'static str {
        let timings = &self.timings;
        match timings {
            Timings { terminal: Some(_), .. } => "done",
            Timings { first_output: Some(_), .. } => "decode",
            Timings { headers: Some(_), .. } => {
                FirstOutputWait::from_record(self, &RequestPhases::from_record(self)).phase()
            }
            Timings { sent: Some(_), .. } => "headers",
            Timings { queued: Some(_), dequeued: None, .. } => "queued",
            Timings { received: Some(_), .. } => "routing",
            _ => "upload",
        }
    }
}

/// Times predicted from the learned prefill speed of the backend.
#[derive(Default)]
struct PredictedPrefill {
    /// Prefill time of the prompt.
    prompt: Duration,
    /// Prefill time of the prompts that were sent to the backend before this prompt.
    backlog: Duration,
}

impl PredictedPrefill {
    /// `tokens`: the number of tokens of the prompt to compute.
    fn from_record(record: &RequestRecord, tokens: Option<f64>) -> Self {
        let (Some(predicted), Some(tokens)) = (record.selected_candidate(), tokens) else {
            return Self::default();
        };
        let candidate = predicted.candidate;
        let prefill_time = |tokens: f64| {
            let seconds = (tokens * candidate.prefill.per_token).max(0.0);
            Duration::try_from_secs_f64(seconds).unwrap_or_default()
        };
        Self { prompt: prefill_time(tokens), backlog: prefill_time(candidate.backlog) }
    }
}

/// Number of tokens of the prompt that the engine had to compute: its own count, else the
/// prediction. `None`: unknown.
fn computed_tokens(record: &RequestRecord) -> Option<f64> {
    let usage = &record.observed.usage;
    let is_exact = record.observed.usage_source == UsageSource::Exact;
    let input = usage.input.filter(|_| is_exact);
    let counted = input.map(|input| input.saturating_sub(usage.cached.unwrap_or(0)) as f64);
    let predicted = || {
        let candidate = record.selected_candidate()?.candidate;
        Some(candidate.prompt - candidate.cached)
    };
    counted.or_else(predicted)
}

/// Whether requests waited in the engine while this request was open, according to the reports of
/// the backend. The reports are ignored if the backend has gone down since.
fn was_queued(record: &RequestRecord) -> bool {
    let at_routing =
        record.decision.as_ref().and_then(|decision| decision.backend_condition.waiting);
    let had_no_slot =
        record.selected_candidate().is_some_and(|chosen| chosen.candidate.slot_wait > 0.0);
    let has_reported_queue = record.condition.last_queued_at >= record.timings.sent;
    !record.condition.is_down
        && (at_routing.is_some_and(|waiting| waiting > 0)
            || had_no_slot
            || (has_reported_queue && record.condition.last_queued_at.is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::EngineTimes;
    use crate::record::fixtures::{at, decision, streamed};
    use crate::record::{BackendCondition, Outcome, RecentEngineTimes, SlowCause, SlowLimits};
    use crate::routing::{Candidate, PrefillCost};
    use std::sync::Arc;

    /// A streamed request with a prompt of `tokens` tokens that ended after `millis` without
    /// output. The backend computes 10,000 tokens per second and reported no queue.
    fn record_without_output(tokens: f64, millis: u64) -> RequestRecord {
        let mut record = streamed();
        let accepted = record.timings.accepted;
        record.timings.first_output = None;
        record.timings.last_output = None;
        record.timings.terminal = None;
        record.timings.ended = Some(at(accepted, millis));
        record.observed = crate::record::ObservedResponse::default();
        record.outcome = Outcome::Cancelled;
        record.condition = BackendCondition::default();
        record.decision = Some(Arc::new(decision(
            |candidate| Candidate {
                prompt: tokens,
                cached: 0.0,
                backlog: 0.0,
                prefill: PrefillCost { base: 0.02, per_token: 1e-4 },
                ..candidate
            },
            BackendCondition { waiting: Some(0), ..BackendCondition::default() },
        )));
        record
    }

    fn cause_and_phase(record: &RequestRecord) -> (Option<SlowCause>, &'static str) {
        (SlowCause::from_record(record, &SlowLimits::default()), record.phase())
    }

    #[test]
    fn a_burst_that_waits_for_slots_is_queued_although_nothing_waited_when_it_was_routed() {
        let mut record = record_without_output(30.0, 3_300);
        record.condition.last_queued_at =
            record.timings.sent.map(|sent| sent + Duration::from_secs(1));
        assert_eq!(cause_and_phase(&record), (Some(SlowCause::EngineQueue), "engine_queue"));
        // The mean prefill time of other requests explains little of the wait.
        record.timings.first_output = record.timings.ended;
        record.recent = RecentEngineTimes {
            queue: Some(Duration::from_millis(1)),
            prefill: Some(Duration::from_millis(12)),
        };
        assert_eq!(cause_and_phase(&record).0, Some(SlowCause::EngineQueue));
    }

    #[test]
    fn a_queue_reported_before_the_request_was_sent_is_ignored() {
        let mut record = record_without_output(30.0, 3_300);
        record.condition.last_queued_at =
            record.timings.sent.and_then(|sent| sent.checked_sub(Duration::from_millis(1)));
        assert_eq!(cause_and_phase(&record), (Some(SlowCause::Unresponsive), "unresponsive"));
    }

    #[test]
    fn a_short_prompt_on_a_frozen_engine_is_not_blamed() {
        let mut record = record_without_output(30.0, 10_000);
        assert_eq!(cause_and_phase(&record), (Some(SlowCause::Unresponsive), "unresponsive"));
        // The engine resumes after ten seconds.
        record.timings.first_output = record.timings.ended;
        record.recent = RecentEngineTimes {
            queue: Some(Duration::ZERO),
            prefill: Some(Duration::from_secs(9)),
        };
        assert_eq!(cause_and_phase(&record).0, Some(SlowCause::Unresponsive));
    }

    #[test]
    fn a_request_on_a_frozen_host_timed_out_because_the_backend_went_down() {
        let mut record = record_without_output(30.0, 60_000);
        record.timings.headers = None;
        record.outcome = Outcome::Timeout;
        record.condition.is_down = true;
        record.condition.last_queued_at =
            record.timings.sent.map(|sent| sent + Duration::from_secs(1));
        assert_eq!(cause_and_phase(&record), (Some(SlowCause::Unresponsive), "headers"));
    }

    #[test]
    fn a_prompt_is_long_if_its_size_explains_the_wait() {
        let record = record_without_output(20_000.0, 3_000);
        assert_eq!(cause_and_phase(&record), (Some(SlowCause::LongPrompt), "prefill"));
        let shorter = record_without_output(2_000.0, 3_000);
        assert_eq!(cause_and_phase(&shorter).0, Some(SlowCause::Unresponsive));
    }

    #[test]
    fn a_short_prompt_is_not_long_although_the_engine_reports_a_long_prefill() {
        for (tokens, expected) in [(30, SlowCause::Unresponsive), (3_000, SlowCause::LongPrompt)] {
            let mut record = streamed();
            let accepted = record.timings.accepted;
            record.timings.first_output = Some(at(accepted, 4_000));
            record.timings.ended = Some(at(accepted, 5_000));
            record.observed.usage.input = Some(tokens);
            record.observed.usage.cached = None;
            record.observed.usage_source = UsageSource::Exact;
            record.observed.engine_times = Some(EngineTimes {
                queue: Some(Duration::ZERO),
                prefill: Some(Duration::from_secs(3)),
                decode: None,
            });
            assert_eq!(cause_and_phase(&record).0, Some(expected), "{tokens} tokens");
        }
    }

    #[test]
    fn a_client_that_leaves_early_was_in_prefill() {
        assert_eq!(record_without_output(30.0, 300).phase(), "prefill");
    }

    #[test]
    fn a_request_without_a_decision_has_an_unexplained_wait() {
        let mut record = record_without_output(30.0, 3_000);
        record.decision = None;
        assert_eq!(cause_and_phase(&record).0, Some(SlowCause::Unresponsive));
    }
}
