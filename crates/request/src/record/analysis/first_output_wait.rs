//! Splits the time from sending a request to its first output into the engine's front end, its queue, the
//! prefill, and an unexplained rest.
//!
//! The split is determined at the end of the request, because the queue of a burst does not exist yet when the
//! burst is routed.

use crate::record::{RequestRecord, Timings, UsageSource};
use std::time::{Duration, Instant};
use tokenweir_routing::Candidate;

/// The parts of the time from sending a request to its first output, or to its end without output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FirstOutputWait {
    /// Time from sending the request to the head of the response, if the engine sends the head
    /// before it computes anything. In this time the network transfers the request, and the API
    /// server of the engine reads the prompt.
    pub(super) front_end: Duration,
    pub(super) queue: Duration,
    pub(super) prefill: Duration,
    /// Time that no other part explains: an engine or host without progress, the network on the way back to the
    /// gateway, or a cause that the backend does not report.
    pub(super) unexplained: Duration,
    /// The part of `unexplained` that may belong to a prefill longer than expected.
    tolerated: Duration,
    /// Source of `queue`: the engine, an estimate, or none.
    pub(super) queue_accuracy: Accuracy,
    /// Source of `prefill`: the engine, an estimate, or none.
    pub(super) prefill_accuracy: Accuracy,
    /// Whether the prompt is known to be too short for a long prefill.
    is_short_prompt: bool,
}

/// The source of a time of the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Accuracy {
    /// Nothing is known.
    #[default]
    Unknown,
    Estimated,
    /// The engine reported the time for this request.
    Measured,
}

/// Number of computed tokens below which a prompt counts as short.
const MIN_LONG_PROMPT_TOKENS: f64 = 256.0;
/// Multiple of the predicted prefill time up to which a wait counts as prefill, because the engine computes
/// other sequences in the same batches.
const PREFILL_TOLERANCE_FACTOR: f64 = 3.0;
/// Maximum unexplained wait that does not count as an unresponsive backend.
const MIN_UNRESPONSIVE_WAIT: Duration = Duration::from_secs(1);
/// Prompt tokens that an engine computes in one batch: the smallest default of vLLM's
/// `--max-num-batched-tokens`. Engines do not report their number.
const BATCH_TOKENS: f64 = 2_048.0;
/// Minimum time from the head of a response to its first output if the engine sends the head before the
/// prefill.
const MIN_TIME_AFTER_EARLY_HEAD: Duration = Duration::from_millis(1);
/// Minimum share of the requests in flight that the engine answers at the same time if it has no free slot. A
/// smaller share means short responses, which end before the next ones begin.
const MIN_ANSWERING_SHARE: f64 = 0.5;
/// Minimum number of requests answered at the same time from which the number of sequence slots can be
/// inferred.
const MIN_ANSWERING: f64 = 4.0;

impl Accuracy {
    /// The accuracy of a time. `measured`: the time that the engine reported. `is_estimated`: whether the
    /// gateway has an estimate.
    fn of(measured: Option<Duration>, is_estimated: bool) -> Self {
        match (measured, is_estimated) {
            (Some(_), _) => Self::Measured,
            (None, true) => Self::Estimated,
            (None, false) => Self::Unknown,
        }
    }
}

impl FirstOutputWait {
    /// Splits the wait of a request that has ended into its parts.
    pub(super) fn from_record(record: &RequestRecord) -> Self {
        let timings = &record.timings;
        let (Some(sent), Some(end)) = (timings.sent, timings.first_output.or(timings.ended)) else {
            return Self::default();
        };
        let wait = end.saturating_duration_since(sent);
        let engine = record.observed.engine_times.unwrap_or_default();
        let tokens = computed_tokens(record);
        let predicted = PredictedPrefill::from_record(record, tokens);
        let expected = engine.prefill.or(predicted.expected);
        let at_least = expected.unwrap_or_default() + engine.queue.unwrap_or_default();
        let front_end = front_end(timings, wait, at_least);
        let engine_wait = wait.saturating_sub(front_end);
        let due_after = expected.map(|time| front_end + time.mul_f64(PREFILL_TOLERANCE_FACTOR));
        let queue_evidence = QueueEvidence::from_record(record, due_after.map(|time| sent + time));
        let was_queued = queue_evidence == QueueEvidence::Queued;
        let prefill = engine.prefill.unwrap_or_else(|| {
            let mut prefill = expected.unwrap_or_default().min(engine_wait);
            if was_queued && let Some(alone) = predicted.alone {
                prefill = prefill.min(alone);
            }
            prefill
        });
        let after_prefill = engine_wait.saturating_sub(prefill);
        let queue = engine.queue.unwrap_or_else(|| match queue_evidence {
            QueueEvidence::Queued => after_prefill,
            QueueEvidence::OthersQueued => engine_wait
                .mul_f64(predicted.backlog_share)
                .min(after_prefill),
            QueueEvidence::None => Duration::ZERO,
        });
        let unexplained = after_prefill.saturating_sub(queue);
        let longest_prefill = predicted.prompt.mul_f64(PREFILL_TOLERANCE_FACTOR);
        Self {
            front_end,
            queue,
            prefill,
            unexplained,
            tolerated: longest_prefill.saturating_sub(prefill).min(unexplained),
            queue_accuracy: Accuracy::of(engine.queue, was_queued || expected.is_some()),
            prefill_accuracy: Accuracy::of(engine.prefill, expected.is_some()),
            is_short_prompt: tokens.is_some_and(|tokens| tokens < MIN_LONG_PROMPT_TOKENS),
        }
    }

    /// The part of the wait that the length of the prompt explains.
    pub(super) fn long_prompt(self) -> Duration {
        if self.is_short_prompt {
            Duration::ZERO
        } else {
            self.prefill + self.tolerated
        }
    }

    /// The part of the wait that neither the queue nor the length of the prompt explains.
    pub(super) fn unresponsive(self) -> Duration {
        (self.front_end + self.unexplained + self.prefill).saturating_sub(self.long_prompt())
    }

    /// Name of the longest part. It is the phase of a request that ended without output.
    pub(super) fn phase(self) -> &'static str {
        let Self {
            queue, tolerated, ..
        } = self;
        let prefill = self.prefill + tolerated;
        let unexplained = (self.front_end + self.unexplained).saturating_sub(tolerated);
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
    /// The possible values of [`RequestRecord::phase`] for a request that ended before its response was
    /// complete.
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

    /// The phase in which the request ended. A backend sends the head of a stream before it computes anything.
    /// So between head and first output, the longest part of the wait is the phase.
    pub fn phase(&self) -> &'static str {
        let timings = &self.timings;
        match timings {
            Timings {
                terminal: Some(_), ..
            } => "done",
            Timings {
                first_output: Some(_),
                ..
            } => "decode",
            Timings {
                headers: Some(_), ..
            } => FirstOutputWait::from_record(self).phase(),
            Timings { sent: Some(_), .. } => "headers",
            Timings {
                queued: Some(_),
                dequeued: None,
                ..
            } => "queued",
            Timings {
                received: Some(_), ..
            } => "routing",
            _ => "upload",
        }
    }
}

/// Prefill times of a prompt, predicted from the estimated prefill speed of the backend.
#[derive(Default)]
struct PredictedPrefill {
    prompt: Duration,
    /// Share of the wait in which the engine computed earlier prompts. It excludes the batch in progress at the
    /// arrival of the request, and the batch of this prompt.
    backlog_share: f64,
    /// Prefill time of a prompt that gets the slot of an ended request. The prompt is computed in a batch in
    /// which the other sequences decode. `None`: the prefill speed is not known.
    alone: Option<Duration>,
    /// The expected prefill time: the mean of recent requests, corrected by the difference between
    /// this prompt and their mean prompt. `None`: neither a mean nor the prefill speed is known.
    expected: Option<Duration>,
}

impl PredictedPrefill {
    /// Predicts the prefill times of a request. `tokens`: the number of prompt tokens to compute.
    fn from_record(record: &RequestRecord, tokens: Option<f64>) -> Self {
        let reports = &record.wait_reports;
        let mean = reports.mean_prefill;
        let (Some(predicted), Some(tokens)) = (record.selected_candidate(), tokens) else {
            return Self {
                expected: mean,
                ..Self::default()
            };
        };
        let Candidate {
            backlog, prefill, ..
        } = *predicted.candidate;
        let prompt = seconds(tokens * prefill.per_token);
        let gap = record.observed.inter_chunk_latency.mean();
        // The batch of this prompt begins with earlier prompts: half a batch on average.
        let batches_between = (backlog / BATCH_TOKENS - 1.5).max(0.0);
        // Without progress of the engine, the mean prefill time grows beyond what any prompt explains.
        let most = prompt
            .mul_f64(PREFILL_TOLERANCE_FACTOR)
            .max(MIN_UNRESPONSIVE_WAIT);
        let corrected = |mean: Duration| {
            let longer_by = (tokens - reports.mean_prompt_tokens) * prefill.per_token;
            seconds(mean.as_secs_f64() + longer_by)
                .max(prompt.min(mean))
                .min(most)
        };
        Self {
            prompt,
            backlog_share: batches_between / (2.0 + batches_between),
            alone: gap.map(|gap| prompt + seconds(gap)),
            expected: Some(mean.map_or(prompt, corrected)),
        }
    }
}

/// The duration of this many seconds. Zero if `seconds` is negative or not finite.
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()
}

/// Time of the front end, from sending the request to the head of the response. Zero if the backend sends the
/// head with its first output. In that case the time after the head is too short for `engine_time`, the time of
/// the queue and the prefill.
fn front_end(timings: &Timings, wait: Duration, engine_time: Duration) -> Duration {
    let (Some(sent), Some(head)) = (timings.sent, timings.headers) else {
        return Duration::ZERO;
    };
    let front_end = head.saturating_duration_since(sent);
    let is_early =
        wait.saturating_sub(front_end) >= (engine_time / 2).max(MIN_TIME_AFTER_EARLY_HEAD);
    if is_early { front_end } else { Duration::ZERO }
}

/// Number of prompt tokens that the engine had to compute: the engine's count or, without one, the prediction.
/// `None`: unknown.
fn computed_tokens(record: &RequestRecord) -> Option<f64> {
    let usage = &record.observed.usage;
    if let Some(input) = usage.input
        && record.observed.usage_source == UsageSource::Exact
    {
        return Some(input.saturating_sub(usage.cached.unwrap_or(0)) as f64);
    }
    let candidate = record.selected_candidate()?.candidate;
    Some(candidate.prompt - candidate.cached)
}

/// Whether requests waited in the engine's queue during the wait of a request, as far as the gateway can tell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum QueueEvidence {
    /// The request waited until another request ended.
    Queued,
    /// Other requests waited, but this one found a free slot, so it waited at most for the prefill of earlier
    /// prompts.
    OthersQueued,
    /// Nothing shows that a request waited in the queue.
    None,
}

impl QueueEvidence {
    /// Determines what the load reports of the backend show about the queue of its engine. The engine's slots
    /// or its KV cache limit the number of running requests. A request that found fewer requests than this
    /// limit did not wait for the end of another request. If the backend has gone down since, its load reports
    /// are ignored.
    ///
    /// `due`: when the first output would have come if the engine had begun at once.
    fn from_record(record: &RequestRecord, due: Option<Instant>) -> Self {
        if record.condition.is_down {
            return Self::None;
        }
        let reports = &record.wait_reports;
        let at_routing = record
            .decision
            .as_ref()
            .map(|decision| decision.backend_condition);
        let queued_at_routing = at_routing.filter(|condition| condition.waiting > Some(0));
        let running_at_routing = || queued_at_routing?.running.map(f64::from);
        let limit = reports.running_while_queued.or_else(running_at_routing);
        let found = record.selected_candidate().map(|chosen| *chosen.candidate);
        let is_beyond_limit = found
            .zip(limit)
            .map(|(found, limit)| found.running + found.waiting + 1.0 > limit);
        let is_reported = reports.running_while_queued.is_some() || queued_at_routing.is_some();
        let was_queued = is_beyond_limit.unwrap_or(is_reported)
            || found.is_some_and(|found| is_beyond_answering(&found, reports.max_answering))
            || due.is_some_and(|due| is_passed_over(record, due));
        match (was_queued, is_reported) {
            (true, _) => Self::Queued,
            (false, true) => Self::OthersQueued,
            (false, false) => Self::None,
        }
    }
}

/// Whether a request found more requests in flight than the engine has ever answered at once. If so, the engine
/// began this request only after another one had ended. A queue that begins and ends between two reports leaves
/// no other evidence.
fn is_beyond_answering(found: &Candidate, max_answering: u32) -> bool {
    let in_flight = f64::from(found.in_flight) + 1.0;
    let limit = f64::from(max_answering);
    let least = (MIN_ANSWERING_SHARE * in_flight).max(MIN_ANSWERING);
    (least..in_flight).contains(&limit)
}

/// Whether a stream ended without output although the engine answered other requests after `due`. With
/// continuous batching, an engine begins a prompt in the next batch if it has a slot and blocks for it.
fn is_passed_over(record: &RequestRecord, due: Instant) -> bool {
    let is_unanswered = record.observed.is_stream && record.timings.first_output.is_none();
    is_unanswered
        && record
            .wait_reports
            .last_output_at
            .is_some_and(|output| output > due)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::fixtures::{at, decision, streamed};
    use crate::record::{BackendCondition, Outcome, SlowCause, SlowLimits, WaitReports};
    use std::sync::Arc;
    use tokenweir_protocol::openai::EngineTimes;
    use tokenweir_routing::PrefillCost;

    /// A streamed request with a prompt of `tokens` tokens that ended after `millis` without output. The
    /// backend computes 10,000 tokens per second and reported no queue.
    fn record_without_output(tokens: f64, millis: u64) -> RequestRecord {
        let mut record = streamed();
        let accepted = record.timings.accepted;
        record.timings.first_output = None;
        record.timings.last_output = None;
        record.timings.terminal = None;
        record.timings.ended = Some(at(accepted, millis));
        record.observed = crate::record::RecordedObservations::default();
        record.outcome = Outcome::Cancelled;
        record.condition = BackendCondition::default();
        record.decision = Some(Arc::new(decision(
            |candidate| Candidate {
                prompt: tokens,
                cached: 0.0,
                backlog: 0.0,
                prefill: PrefillCost {
                    base: 0.02,
                    per_token: 1e-4,
                },
                ..candidate
            },
            BackendCondition {
                waiting: Some(0),
                ..BackendCondition::default()
            },
        )));
        record
    }

    fn cause_and_phase(record: &RequestRecord) -> (Option<SlowCause>, &'static str) {
        (
            SlowCause::from_record(record, &SlowLimits::default()),
            record.phase(),
        )
    }

    /// Returns the scraped load of a backend whose engine ran `running` requests while others
    /// waited.
    fn queue_reports(running: f64) -> WaitReports {
        WaitReports {
            running_while_queued: Some(running),
            ..WaitReports::default()
        }
    }

    #[test]
    fn bursts_that_wait_for_slots_are_queued() {
        // The fixture found four requests at the backend.
        let mut record = record_without_output(30.0, 3_300);
        record.wait_reports = queue_reports(4.0);
        assert_eq!(
            cause_and_phase(&record),
            (Some(SlowCause::EngineQueue), "engine_queue")
        );
        // Compared with the wait, the mean prefill time of other requests is short.
        record.timings.first_output = record.timings.ended;
        record.wait_reports.mean_prefill = Some(Duration::from_millis(12));
        assert_eq!(cause_and_phase(&record).0, Some(SlowCause::EngineQueue));
    }

    #[test]
    fn later_waiting_requests_show_no_queue() {
        for (running_while_queued, is_queued) in
            [(None, false), (Some(5.0), false), (Some(4.0), true)]
        {
            let mut record = record_without_output(30.0, 3_300);
            record.wait_reports = WaitReports {
                running_while_queued,
                ..WaitReports::default()
            };
            let is_in_queue = cause_and_phase(&record).1 == "engine_queue";
            assert_eq!(is_in_queue, is_queued, "{running_while_queued:?} ran");
        }
    }

    #[test]
    fn too_many_earlier_requests_show_a_queue() {
        // No report shows a queue. The fixture found two requests in flight.
        for (in_flight, max_answering, is_queued) in [
            (16, 16, true),
            (15, 16, false),
            (30, 16, true),
            (40, 16, false),
            (3, 3, false),
        ] {
            let mut record = record_without_output(30.0, 3_300);
            let mut found = decision(
                |candidate| Candidate {
                    in_flight,
                    ..candidate
                },
                BackendCondition::default(),
            );
            found.backend_condition.waiting = Some(0);
            record.decision = Some(Arc::new(found));
            record.wait_reports = WaitReports {
                max_answering,
                ..WaitReports::default()
            };
            let case = format!("{in_flight} in flight, {max_answering} answered at once");
            assert_eq!(
                cause_and_phase(&record).1 == "engine_queue",
                is_queued,
                "{case}"
            );
        }
    }

    #[test]
    fn answers_to_others_show_a_queue() {
        // The expected prefill takes 20 ms and 0.1 ms for each of 30 tokens. The output is overdue after three times
        // that time.
        for (is_stream, others_at, is_queued) in
            [(true, 290, true), (true, 40, false), (false, 290, false)]
        {
            let mut record = record_without_output(30.0, 300);
            let sent = record.timings.sent.unwrap();
            record.observed.is_stream = is_stream;
            record.wait_reports.last_output_at = Some(at(sent, others_at));
            let case = format!("stream: {is_stream}, others after {others_at} ms");
            assert_eq!(
                cause_and_phase(&record).1 == "engine_queue",
                is_queued,
                "{case}"
            );
        }
    }

    #[test]
    fn early_heads_do_not_end_the_front_end() {
        for (head, prefill, expected) in [(60, 30, 50), (60, 80, 50), (60, 81, 0), (99, 30, 0)] {
            let mut record = streamed();
            let accepted = record.timings.accepted;
            record.timings.headers = Some(at(accepted, head));
            record.observed.engine_times = Some(EngineTimes {
                prefill: Some(Duration::from_millis(prefill)),
                ..EngineTimes::default()
            });
            let front_end = FirstOutputWait::from_record(&record).front_end;
            assert_eq!(
                front_end.as_millis(),
                expected,
                "head at {head}, prefill of {prefill}"
            );
        }
    }

    #[test]
    fn standstill_with_short_prompts_is_unresponsive() {
        let mut record = record_without_output(30.0, 10_000);
        assert_eq!(
            cause_and_phase(&record),
            (Some(SlowCause::Unresponsive), "unresponsive")
        );
        // The engine resumes after ten seconds.
        record.timings.first_output = record.timings.ended;
        record.wait_reports.mean_prefill = Some(Duration::from_secs(9));
        assert_eq!(cause_and_phase(&record).0, Some(SlowCause::Unresponsive));
    }

    #[test]
    fn timeouts_at_down_backends_are_unresponsive() {
        let mut record = record_without_output(30.0, 60_000);
        record.timings.headers = None;
        record.outcome = Outcome::Timeout;
        record.condition.is_down = true;
        record.wait_reports = queue_reports(4.0);
        assert_eq!(
            cause_and_phase(&record),
            (Some(SlowCause::Unresponsive), "headers")
        );
    }

    #[test]
    fn only_long_prompts_explain_missing_first_output() {
        let record = record_without_output(20_000.0, 3_000);
        assert_eq!(
            cause_and_phase(&record),
            (Some(SlowCause::LongPrompt), "prefill")
        );
        let shorter = record_without_output(2_000.0, 3_000);
        assert_eq!(cause_and_phase(&shorter).0, Some(SlowCause::Unresponsive));
    }

    #[test]
    fn slow_prefills_do_not_lengthen_short_prompts() {
        for (tokens, expected) in [
            (30, SlowCause::Unresponsive),
            (3_000, SlowCause::LongPrompt),
        ] {
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
            assert_eq!(
                cause_and_phase(&record).0,
                Some(expected),
                "{tokens} tokens"
            );
        }
    }

    #[test]
    fn early_disconnects_end_in_the_prefill() {
        assert_eq!(record_without_output(30.0, 300).phase(), "prefill");
    }

    #[test]
    fn slow_requests_without_decision_are_unresponsive() {
        let mut record = record_without_output(30.0, 3_000);
        record.decision = None;
        assert_eq!(cause_and_phase(&record).0, Some(SlowCause::Unresponsive));
    }
}
