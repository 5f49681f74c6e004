//! The record of one request, and the figures that follow from its fields.

use super::answer::Answer;
use super::labels::ModelLabel;
use super::notes::{RecordNote, RecordNotes};
use super::phases::FinishedPhases;
use super::request::{
    ClientIdentity, RequestHeadAttributes, RequestOptions, ShortName, TextConsumers, Tier,
};
use super::response::{
    ChunkTimings, Outcome, RecordedObservations, Termination, TerminationReason, UsageSource,
};
use super::routing::{
    Attempt, BackendCondition, FailoverDenialReason, PredictedCandidate, RoutingDecision,
    WaitReports,
};
use super::sample_reason::SampleReason;
use super::slow_cause::SlowCause;
use super::span_ids::SpanIds;
use super::timings::Timings;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::headers::RequestId;
use tokenweir_protocol::openai::{Api, FinishReason, InBandError, TextExcerpt};
use tokenweir_protocol::trace_context::TraceContext;
use tokenweir_routing::PromptFingerprint;

/// All data about one request and its response that sinks report.
#[derive(Debug, Clone)]
pub struct RequestRecord {
    /// The `x-request-id`, from the client or generated.
    pub request_id: RequestId,
    /// The trace that the request belongs to. `None`: tracing is off.
    pub trace: Option<TraceContext>,
    /// Ids of the server span and the inference span.
    pub spans: SpanIds,
    /// Attributes of the request head, if tracing is on.
    pub head: RequestHeadAttributes,
    /// The address at the other end of the connection.
    pub client: IpAddr,
    /// The program of the client: the first word of its `user-agent`. `None`: it sent none.
    pub program: Option<ShortName>,
    /// The HTTP method, or `_OTHER` for an unknown one.
    pub method: &'static str,
    /// The served path, with placeholders for ids. `None`: the gateway does not serve the path.
    pub route: Option<&'static str>,
    /// The inference API of the path. `None`: the path is no inference API.
    pub api: Option<Api>,
    /// The options in its body, such as `stream` and `max_tokens`.
    pub options: RequestOptions,
    /// The requested model as a label, or the version of it that serves the request. The label value is the
    /// name of the model if a backend serves it or the configuration names it. For other models it is `_other`.
    pub model: ModelLabel,
    /// The name of the model at the backends. `None`: the name in the request.
    pub served_as: Option<Arc<str>>,
    /// The tier, from the tenant or the tier header.
    pub tier: Tier,
    /// Tenant and key of the request. `None`: no keys are configured, or the request has no known
    /// key.
    pub caller: Option<Arc<ClientIdentity>>,
    /// Why the admission [gate](crate::observe::Admission) admitted the request, from a closed set. `None`: no
    /// gate is set, or the request was not admitted.
    pub admission: Option<&'static str>,
    /// The routing decision of the last attempt. `None`: no backend was selected.
    pub decision: Option<Arc<RoutingDecision>>,
    /// All attempts on backends, in order.
    pub attempts: Vec<Attempt>,
    /// Why no failover followed the last attempt. `None`: the last attempt did not fail.
    pub not_retried: Option<FailoverDenialReason>,
    /// Requests that the gateway derived from this one before an attempt, such as prefill legs, in order.
    pub attempts_apart: Vec<Attempt>,
    /// Whether another backend than the one of the last attempt has computed the prompt.
    pub has_remote_prompt: bool,
    /// Data that options write, such as continuations.
    pub notes: RecordNotes,
    /// HTTP status that the client received. `None`: the client disconnected before the response
    /// head.
    pub status: Option<u16>,
    /// Why the gateway answered the request itself, from a closed set. `None`: a backend answered, or nobody
    /// did.
    pub refusal: Option<&'static str>,
    /// How the request ended.
    pub outcome: Outcome,
    /// How the response ended, and which side ended it.
    pub end: Termination,
    /// Wall-clock time of the start, for reports.
    pub started: SystemTime,
    /// Monotonic instants of the request.
    pub timings: Timings,
    /// Counts, times and errors of the response.
    pub observed: RecordedObservations,
    /// Condition of the backend when the response ended.
    pub condition: BackendCondition,
    /// Facts about the wait for the first output, from the scraped load of the backend and its recent outputs.
    pub wait_reports: WaitReports,
    /// The result that the client got. `None`: not judged yet, or the request is no inference request.
    pub answer: Option<Answer>,
    /// Whether the client ended the request because it got the answer to an equal request that it had sent
    /// meanwhile.
    pub is_hedge: bool,
    /// Whether the client had ended an equal request a moment before: it tries again.
    pub is_repeat: bool,
    /// The cause that took longest. `None`: the request was not slow.
    pub slow: Option<SlowCause>,
    /// Why the trace of the request is exported. `None`: the trace is not exported, or tracing is
    /// off.
    pub sample_reason: Option<SampleReason>,
    /// Length and block hashes of the prompt. The hashes must not leave the process unchanged: the hash of a
    /// block seeds the hash of the next block, so anyone who has the hashes could verify guesses of the prompt.
    /// `None`: the gateway did not read the prompt.
    pub fingerprint: Option<Arc<PromptFingerprint>>,
    /// Hash of the session. It must not leave the process unchanged either. `None`: the request names no
    /// session, or the gateway did not read the prompt.
    pub session_hash: Option<u64>,
    /// Beginning of the prompt. `None`: the text of this request is not retained.
    pub prompt: Option<TextExcerpt>,
    /// The consumers for which the text of the prompt and of the response is retained.
    pub text_for: TextConsumers,
    /// Length of the request body, in bytes.
    pub bytes_in: u64,
    /// Length of the response body, in bytes.
    pub bytes_out: u64,
    /// The phases, computed once for all sinks.
    pub phases: FinishedPhases,
}

/// Maximum number of tokens per character. A character has at most four UTF-8 bytes, and each of its tokens has
/// at least one of them.
const MAX_TOKENS_PER_CHARACTER: u32 = 4;

impl RequestRecord {
    /// The record of a request whose head was read at `accepted`. The outcome is [`Outcome::Cancelled`] until
    /// the caller changes it. The record is created directly on the heap, because a move would copy up to 1,400
    /// bytes for each request.
    pub fn begin(
        request_id: RequestId,
        client: IpAddr,
        method: &'static str,
        started: SystemTime,
        accepted: Instant,
    ) -> Box<Self> {
        Box::write(
            Box::new_uninit(),
            Self {
                request_id,
                trace: None,
                spans: SpanIds {
                    server: 1,
                    inference: 2,
                },
                head: RequestHeadAttributes::default(),
                client,
                program: None,
                method,
                route: None,
                api: None,
                options: RequestOptions::default(),
                model: ModelLabel::Unknown,
                served_as: None,
                tier: Tier::default(),
                caller: None,
                admission: None,
                decision: None,
                attempts: Vec::new(),
                not_retried: None,
                attempts_apart: Vec::new(),
                has_remote_prompt: false,
                notes: RecordNotes::default(),
                status: None,
                refusal: None,
                outcome: Outcome::Cancelled,
                end: Termination::ClientDisconnected,
                started,
                timings: Timings::begin(accepted),
                observed: RecordedObservations::default(),
                condition: BackendCondition::default(),
                wait_reports: WaitReports::default(),
                answer: None,
                is_hedge: false,
                is_repeat: false,
                slow: None,
                sample_reason: None,
                fingerprint: None,
                session_hash: None,
                prompt: None,
                text_for: TextConsumers::default(),
                bytes_in: 0,
                bytes_out: 0,
                phases: FinishedPhases::default(),
            },
        )
    }

    /// Time to first token as the client sees it: request head read → first generated output.
    /// `None`: the response is not a stream, or it had no output.
    pub fn ttft(&self) -> Option<Duration> {
        self.elapsed_since_accepted(self.timings.first_output)
    }

    /// Time in which the client sent the body: request head read → body received. `None`: the body was not read,
    /// or not completely.
    pub fn upload_time(&self) -> Option<Duration> {
        self.elapsed_since_accepted(self.timings.received)
    }

    /// Time to first token as the backend sees it: request sent → first generated output. `None`:
    /// the response is not a stream, or it had no output.
    pub fn upstream_ttft(&self) -> Option<Duration> {
        let sent = self.timings.sent?;
        Some(self.timings.first_output?.saturating_duration_since(sent))
    }

    /// Time from the request head to a stream's first output that is not reasoning. A stream with only
    /// reasoning waited until its end. `None`: the response is no stream, or had no output.
    pub fn time_to_first_answer(&self) -> Option<Duration> {
        let Timings {
            first_answer,
            first_reasoning,
            ended,
            ..
        } = self.timings;
        self.stream_time_to(first_answer.or(first_reasoning.and(ended)))
    }

    /// [`RequestRecord::time_to_first_answer`] of a stream that had reasoning. `None`: the stream
    /// had no reasoning.
    pub fn reasoning_wait(&self) -> Option<Duration> {
        self.timings
            .first_reasoning
            .and_then(|_| self.time_to_first_answer())
    }

    /// Time from the request head to the instant `at` of a stream. `None`: `at` is `None`, or the
    /// response is not a stream.
    pub fn stream_time_to(&self, at: Option<Instant>) -> Option<Duration> {
        if !self.observed.is_stream {
            return None;
        }
        self.elapsed_since_accepted(at)
    }

    /// Time per output token after the first: (last output − first token) ÷ (n − 1), where n is the engine's
    /// exact count. `None` in these cases: fewer than two tokens, several choices (their counts are a sum), no
    /// exact count, or write stalls of the client that delayed the last output by more than 1% of the decode
    /// time.
    pub fn tpot(&self) -> Option<Duration> {
        let observed = &*self.observed;
        let steps = u32::try_from(observed.usage.output?.checked_sub(1)?).ok()?;
        let is_exact = observed.usage_source == UsageSource::Exact;
        let is_delayed_by_client = observed.last_output_write_stall > self.decode()? / 100;
        if !is_exact || is_delayed_by_client || observed.finish_reasons.len() > 1 {
            return None;
        }
        let last = self.timings.last_output?;
        last.saturating_duration_since(self.first_token_at(steps)?)
            .checked_div(steps)
    }

    /// The instant of the first of `steps + 1` tokens.
    ///
    /// A first token that ends inside a character has no text yet, but vLLM sends the role event when it
    /// generates that token. So the result is the instant of the first event if two conditions hold. First, at
    /// most a quarter of the tokens have no event of their own (with more, events have several tokens each).
    /// Second, the time between first event and first output is not longer than the tokens of one character
    /// take. If a condition does not hold, the result is the instant of the first output.
    fn first_token_at(&self, steps: u32) -> Option<Instant> {
        let first_event = self.timings.first_event?;
        let first_output = self.timings.first_output?;
        let time_per_token = self.decode()?.checked_div(steps)?;
        let tokens_in_events = u32::try_from(self.observed.estimated_tokens).ok()?;
        let hidden_tokens = steps.saturating_add(1).saturating_sub(tokens_in_events);
        let max_delay =
            time_per_token.saturating_mul(hidden_tokens.min(MAX_TOKENS_PER_CHARACTER) + 1);
        let has_early_token = (1..=steps / 4).contains(&hidden_tokens)
            && first_output.saturating_duration_since(first_event) <= max_delay;
        Some(if has_early_token {
            first_event
        } else {
            first_output
        })
    }

    /// Decode time: first output → last output. `None`: the response is not a stream, or it had no
    /// output.
    pub fn decode(&self) -> Option<Duration> {
        let first = self.timings.first_output?;
        Some(self.timings.last_output?.saturating_duration_since(first))
    }

    /// End-to-end duration as the client sees it: request head read → end of the exchange.
    pub fn duration(&self) -> Duration {
        self.elapsed_since_accepted(self.timings.ended)
            .unwrap_or_default()
    }

    /// Gateway overhead: request body received → request sent for the last attempt. The admission queue,
    /// earlier attempts, and requests that the gateway made before do not count. `None`: the request was not
    /// sent to a backend.
    pub fn overhead(&self) -> Option<Duration> {
        let received = self.timings.received?;
        let elapsed = self.timings.sent?.saturating_duration_since(received);
        let waits = [
            self.gateway_queue_wait(),
            self.failed_attempts(),
            self.time_apart(),
        ];
        Some(elapsed.saturating_sub(waits.into_iter().flatten().sum()))
    }

    /// Time in the attempts before the last one: each from sending the request to its failure.
    /// `None`: there was at most one attempt.
    pub fn failed_attempts(&self) -> Option<Duration> {
        let (_, earlier) = self.attempts.split_last()?;
        (!earlier.is_empty()).then(|| earlier.iter().filter_map(Attempt::took).sum())
    }

    /// Time in the requests that the gateway made before an attempt. `None`: no such requests.
    pub fn time_apart(&self) -> Option<Duration> {
        if self.attempts_apart.is_empty() {
            return None;
        }
        Some(self.attempts_apart.iter().filter_map(Attempt::took).sum())
    }

    /// The times of the chunks of a slow, stalled or failed stream. `None`: the request was none of these, or
    /// had no chunk with output.
    pub fn examined_chunk_timings(&self) -> Option<&ChunkTimings> {
        let is_broken = !matches!(self.outcome, Outcome::Ok | Outcome::Cancelled);
        let is_examined = is_broken || self.slow.is_some() || !self.observed.stalls.is_empty();
        let timings = &self.observed.chunk_timings;
        (is_examined && timings.chunks() > 0).then_some(timings)
    }

    /// Whether the request continues if its client loses the connection.
    pub fn outlives_connection(&self) -> bool {
        self.notes.iter().any(RecordNote::outlives_connection)
    }

    /// Time in the admission queue, on all backends. `None`: the request was not queued.
    pub fn gateway_queue_wait(&self) -> Option<Duration> {
        let Timings {
            queued,
            dequeued,
            ended,
            ..
        } = self.timings;
        Some(dequeued.or(ended)?.saturating_duration_since(queued?))
    }

    /// Time in the admission queue during which no backend could serve the model. `None`: a backend could serve
    /// it all the time.
    pub fn backend_wait(&self) -> Option<Duration> {
        let Timings {
            backend_missed,
            without_backend,
            ended,
            ..
        } = self.timings;
        let ongoing = ended
            .zip(backend_missed)
            .map(|(to, from)| to.saturating_duration_since(from));
        Some(without_backend + ongoing.unwrap_or_default()).filter(|wait| !wait.is_zero())
    }

    /// Whether the end of the request shows a fault of its backend.
    ///
    /// A body that ended regularly shows no fault. When its engine dies, vLLM sends an error event or breaks
    /// the connection, and other servers omit the last events even of whole responses.
    pub fn shows_backend_fault(&self) -> bool {
        let observed = &*self.observed;
        match (self.outcome, self.end) {
            // A request that reaches the operator's limit of its total duration shows nothing about the
            // backend.
            (_, Termination::TotalTimeout) => false,
            (Outcome::Truncated, end) => end == Termination::UpstreamReset && !observed.is_complete,
            (Outcome::StreamError, _) => !observed
                .error
                .as_ref()
                .is_some_and(InBandError::is_of_client),
            (outcome, _) => outcome.is_backend_failure(),
        }
    }

    /// Whether the response is a model refusal by its API fields, a content filter ended it, or it
    /// contains a configured refusal phrase.
    pub fn is_model_refusal(&self) -> bool {
        let observed = &*self.observed;
        let is_filtered = observed
            .finish_reasons
            .contains(&Some(FinishReason::ContentFilter));
        observed.is_refusal || observed.has_refusal_phrase || is_filtered
    }

    /// Number of preemptions of any request in the backend's engine, from the routing decision to the end of
    /// the response. `None`: unknown, for example because the backend does not report preemptions.
    pub fn preemptions(&self) -> Option<u64> {
        let before = self.decision.as_ref()?.backend_condition.preemptions?;
        self.condition.preemptions?.checked_sub(before)
    }

    /// Whether a GPU of the backend had lowered its clock because of a fault, at the routing decision or at the
    /// end of the response.
    pub fn was_gpu_throttled(&self) -> bool {
        let at_decision = self
            .decision
            .as_ref()
            .map(|decision| decision.backend_condition);
        self.condition.is_gpu_throttled
            || at_decision.is_some_and(|condition| condition.is_gpu_throttled)
    }

    /// The backend of the last attempt.
    pub fn backend(&self) -> Option<&BackendId> {
        self.attempts.last().map(|attempt| &attempt.backend)
    }

    /// The name of the [`TerminationReason`] in metrics, logs and spans.
    pub fn ending(&self) -> &'static str {
        let reason = match self.refusal {
            Some("first_output_timeout") => TerminationReason::TimeoutFirstOutput,
            Some("total_timeout") => TerminationReason::TimeoutTotal,
            _ => TerminationReason::of(self.outcome, self.end),
        };
        reason.as_str()
    }

    /// The candidate that the policy picked, with its values at the decision. `None`: no decision.
    pub fn selected_candidate(&self) -> Option<PredictedCandidate<'_>> {
        Some(self.decision.as_ref()?.selected())
    }

    /// Actual and predicted time from sending the request to the first output, in seconds. `None`: one of them
    /// is missing, or another backend computed the prompt.
    pub fn actual_and_predicted_ttft(&self) -> Option<(f64, f64)> {
        if self.has_remote_prompt {
            return None;
        }
        let actual = self.upstream_ttft()?.as_secs_f64();
        let predicted = self.selected_candidate()?.ttft;
        predicted.is_finite().then_some((actual, predicted))
    }

    /// Cached prompt tokens: the engine's count and the prediction. `None`: the engine reported no count, or
    /// another backend computed the prompt.
    pub fn reported_and_predicted_cached_tokens(&self) -> Option<(u64, f64)> {
        if self.observed.usage_source != UsageSource::Exact || self.has_remote_prompt {
            return None;
        }
        let reported = self.observed.usage.cached?;
        let predicted = self.selected_candidate()?.candidate.cached;
        predicted.is_finite().then_some((reported, predicted))
    }

    fn elapsed_since_accepted(&self, instant: Option<Instant>) -> Option<Duration> {
        Some(instant?.saturating_duration_since(self.timings.accepted))
    }
}
