//! Where the time from sending a request to its first output went: it waited in the queue of the
//! engine, its prompt was computed, or the backend did not respond. Decided when the request has
//! ended, because the queue of a burst is not there yet when its requests are routed.

use super::{Phase, Phases, RequestRecord, UsageSource};
use std::time::Duration;

/// The parts of the wait for a first output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FirstWait {
    /// In the queue of the engine.
    pub(super) queue: Duration,
    /// The prompt was computed.
    pub(super) prefill: Duration,
    /// Neither explains it: a frozen engine or host, the network, or something that the backend does
    /// not report.
    pub(super) unexplained: Duration,
}

/// A prompt explains a wait of this many times what its size and the learned speed give: other
/// sequences are computed beside it.
const GENEROUS: f64 = 3.0;
/// A shorter wait that nothing explains is no sign of a backend that does not respond.
const LEAST_UNEXPLAINED: Duration = Duration::from_secs(1);

// === impl FirstWait ===

impl FirstWait {
    /// The parts of the wait of a request that has ended.
    pub(super) fn of(record: &RequestRecord, phases: &Phases) -> Self {
        let timings = &record.timings;
        let (Some(sent), Some(until)) = (timings.sent, timings.first_output.or(timings.ended))
        else {
            return Self::default();
        };
        let wait = until.saturating_duration_since(sent);
        let [queue, prefill] = [Phase::Queue, Phase::Prefill].map(|phase| phases.get(phase));
        let is_told = prefill.is_some_and(|span| !span.is_estimated);
        let [queue, prefill] =
            [queue, prefill].map(|span| span.map_or(Duration::ZERO, |span| span.took));
        if is_told {
            let unexplained = wait.saturating_sub(queue + prefill);
            return Self { queue, prefill, unexplained };
        }
        let Cost { prompt, before } = Cost::of(record);
        // What other requests took is no evidence that a short prompt took as long.
        let prefill = prompt.mul_f64(GENEROUS).min(wait);
        let rest = wait.saturating_sub(prefill);
        let queue = if was_queued(record) { rest } else { queue.max(before).min(rest) };
        Self { queue, prefill, unexplained: rest.saturating_sub(queue) }
    }

    /// The longest part, as a phase of a request that has had no output.
    pub(super) fn phase(self) -> &'static str {
        let Self { queue, prefill, unexplained } = self;
        if unexplained > LEAST_UNEXPLAINED && unexplained > queue.max(prefill) {
            "unresponsive"
        } else if queue > prefill {
            "engine_queue"
        } else {
            "prefill"
        }
    }
}

/// What the learned speed of the backend predicts.
#[derive(Default)]
struct Cost {
    /// Time to compute the prompt.
    prompt: Duration,
    /// Time to compute the prompts that were before it.
    before: Duration,
}

impl Cost {
    fn of(record: &RequestRecord) -> Self {
        let Some(predicted) = record.predicted() else { return Self::default() };
        let candidate = predicted.candidate;
        let usage = &record.observed.usage;
        let is_exact = record.observed.usage_source == UsageSource::Exact;
        let counted = usage.input.filter(|_| is_exact);
        let counted = counted.map(|input| input.saturating_sub(usage.cached.unwrap_or(0)) as f64);
        let tokens = counted.unwrap_or(candidate.prompt - candidate.cached);
        let seconds = |tokens: f64| {
            let seconds = (tokens * candidate.prefill.per_token).max(0.0);
            Duration::try_from_secs_f64(seconds).unwrap_or_default()
        };
        Self { prompt: seconds(tokens), before: seconds(candidate.backlog) }
    }
}

/// Whether requests waited in the engine while this one was open, as far as the backend reported it.
/// A backend that has gone down since reports nothing that holds.
fn was_queued(record: &RequestRecord) -> bool {
    let at_first = record.decision.as_ref().and_then(|decision| decision.condition.waiting);
    let had_no_slot = record.predicted().is_some_and(|chosen| chosen.candidate.slot_wait > 0.0);
    let was_seen = record.condition.queued_at >= record.timings.sent;
    !record.condition.is_down
        && (at_first.is_some_and(|waiting| waiting > 0)
            || had_no_slot
            || (was_seen && record.condition.queued_at.is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample::{at, decision, streamed};
    use crate::record::{Condition, Outcome, RecentTimes, SlowCause, SlowLimits};
    use crate::routing::{Candidate, Prefill};
    use std::sync::Arc;

    /// A stream of a prompt of this many tokens without output, which ended after so many
    /// milliseconds. The backend computes 10,000 tokens a second, and reported no queue.
    fn without_output(tokens: f64, millis: u64) -> RequestRecord {
        let mut record = streamed();
        let accepted = record.timings.accepted;
        record.timings.first_output = None;
        record.timings.last_output = None;
        record.timings.terminal = None;
        record.timings.ended = Some(at(accepted, millis));
        record.observed = crate::record::Observed::default();
        record.outcome = Outcome::Cancelled;
        record.condition = Condition::default();
        record.decision = Some(Arc::new(decision(
            |candidate| Candidate {
                prompt: tokens,
                cached: 0.0,
                backlog: 0.0,
                prefill: Prefill { base: 0.02, per_token: 1e-4 },
                ..candidate
            },
            Condition { waiting: Some(0), ..Condition::default() },
        )));
        record
    }

    fn told(record: &RequestRecord) -> (Option<SlowCause>, &'static str) {
        (SlowCause::of(record, &SlowLimits::default()), record.phase())
    }

    #[test]
    fn a_burst_that_waits_for_slots_is_queued_although_nothing_waited_when_it_was_routed() {
        let mut record = without_output(30.0, 3_300);
        record.condition.queued_at = record.timings.sent.map(|sent| sent + Duration::from_secs(1));
        assert_eq!(told(&record), (Some(SlowCause::EngineQueue), "engine_queue"));
        // The mean of other requests explains little of it, and is no reason to blame the prompt.
        record.timings.first_output = record.timings.ended;
        record.recent = RecentTimes {
            queue: Some(Duration::from_millis(1)),
            prefill: Some(Duration::from_millis(12)),
        };
        assert_eq!(told(&record).0, Some(SlowCause::EngineQueue));
    }

    #[test]
    fn a_queue_that_was_seen_before_the_request_was_sent_says_nothing_of_it() {
        let mut record = without_output(30.0, 3_300);
        record.condition.queued_at =
            record.timings.sent.and_then(|sent| sent.checked_sub(Duration::from_millis(1)));
        assert_eq!(told(&record), (Some(SlowCause::Unresponsive), "unresponsive"));
    }

    #[test]
    fn a_short_prompt_on_a_frozen_engine_is_not_blamed() {
        let mut record = without_output(30.0, 10_000);
        assert_eq!(told(&record), (Some(SlowCause::Unresponsive), "unresponsive"));
        // The engine goes on after ten seconds.
        record.timings.first_output = record.timings.ended;
        record.recent =
            RecentTimes { queue: Some(Duration::ZERO), prefill: Some(Duration::from_secs(9)) };
        assert_eq!(told(&record).0, Some(SlowCause::Unresponsive));
    }

    #[test]
    fn a_request_on_a_frozen_host_timed_out_because_the_backend_went_down() {
        let mut record = without_output(30.0, 60_000);
        record.timings.headers = None;
        record.outcome = Outcome::Timeout;
        record.condition.is_down = true;
        record.condition.queued_at = record.timings.sent.map(|sent| sent + Duration::from_secs(1));
        assert_eq!(told(&record), (Some(SlowCause::Unresponsive), "headers"));
    }

    #[test]
    fn a_prompt_is_long_if_its_size_explains_the_wait() {
        let record = without_output(20_000.0, 3_000);
        assert_eq!(told(&record), (Some(SlowCause::LongPrompt), "prefill"));
        let shorter = without_output(2_000.0, 3_000);
        assert_eq!(told(&shorter).0, Some(SlowCause::Unresponsive));
    }

    #[test]
    fn a_client_that_leaves_early_was_in_prefill() {
        assert_eq!(without_output(30.0, 300).phase(), "prefill");
    }

    #[test]
    fn a_request_that_nothing_is_known_of_has_an_unexplained_wait() {
        let mut record = without_output(30.0, 3_000);
        record.decision = None;
        assert_eq!(told(&record).0, Some(SlowCause::Unresponsive));
    }
}
