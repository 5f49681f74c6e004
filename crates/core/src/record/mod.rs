//! The record of one request: the value that metrics, spans, logs and the router read when it has
//! ended. Derived figures are methods with their formulas, so that all sinks report the same.

mod attempt;
mod backend_condition;
mod captured_prompt;
mod client_identity;
mod decision;
mod first_output_wait;
#[cfg(any(test, feature = "testing"))]
pub mod fixtures;
mod head_attributes;
mod labels;
mod observed_response;
mod outcome;
mod payload_consumers;
mod phases;
mod request_options;
mod sample_reason;
mod slow_cause;
mod tier;
mod timings;

pub use attempt::{Attempt, FailoverDenialReason};
pub use backend_condition::{BackendCondition, RecentEngineTimes, Stall};
pub use captured_prompt::CapturedPrompt;
pub use client_identity::ClientIdentity;
pub use decision::{PredictedCandidate, RoutingDecision, ShadowDecision};
pub use head_attributes::RequestHeadAttributes;
pub use labels::{BackendId, ModelLabel};
pub use observed_response::{ObservedResponse, ResponseBuckets};
pub use outcome::{
    Outcome, TERMINATION_REASONS, Termination, TerminationInitiator, UninspectedReason,
    UsageEventOutcome, UsageSource,
};
pub use payload_consumers::PayloadConsumers;
pub use phases::{PhaseDuration, RequestPhase, RequestPhases};
pub use request_options::RequestOptions;
pub use sample_reason::SampleReason;
pub use slow_cause::{SlowCause, SlowLimits};
pub use tier::{Tier, TierResolver};
pub use timings::Timings;

use crate::headers::RequestId;
use crate::openai::{Api, FinishReason, TextExcerpt};
use crate::trace_context::TraceContext;
use first_output_wait::FirstOutputWait;
use outcome::termination_reason;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// One request, from its first byte to its last.
#[derive(Debug, Clone)]
pub struct RequestRecord {
    /// The `x-request-id`, from the client or generated.
    pub request_id: RequestId,
    /// The trace that the request belongs to. `None`: tracing is off.
    pub trace: Option<TraceContext>,
    /// Span ids: the server span of the request, and the inference span.
    pub spans: [u64; 2],
    /// Attributes of the request head, if tracing is on.
    pub head: RequestHeadAttributes,
    /// IP address of the client's connection.
    pub client: IpAddr,
    /// The HTTP method, or `_OTHER` for an unknown one.
    pub method: &'static str,
    /// The path, if the gateway serves it.
    pub route: Option<&'static str>,
    /// The API, if the request is an inference request.
    pub api: Option<Api>,
    /// The options of the request.
    pub options: RequestOptions,
    /// The model as a label: one that a backend serves or the configuration names, or `_other`.
    pub model: ModelLabel,
    /// The tier of the request.
    pub tier: Tier,
    /// Tenant and key. `None`: no keys are configured, or the request has no known key.
    pub caller: Option<Arc<ClientIdentity>>,
    /// The routing decision of the last attempt.
    pub decision: Option<Arc<RoutingDecision>>,
    /// All attempts, in order.
    pub attempts: Vec<Attempt>,
    /// Why there was no failover after the last attempt had failed.
    pub not_retried: Option<FailoverDenialReason>,
    /// The status that the client received. `None`: it disconnected before.
    pub status: Option<u16>,
    /// Why the gateway answered the request itself, from a closed set.
    pub refusal: Option<&'static str>,
    /// The outcome.
    pub outcome: Outcome,
    /// How the response ended.
    pub end: Termination,
    /// Wall-clock time of the start, for reports.
    pub started: SystemTime,
    /// Monotonic instants of the request.
    pub timings: Timings,
    /// Observations of the response.
    pub observed: ObservedResponse,
    /// Condition of the backend when the response ended.
    pub condition: BackendCondition,
    /// Recent mean engine times of other requests on that backend.
    pub recent: RecentEngineTimes,
    /// Why the request was slow. `None`: it was not.
    pub slow: Option<SlowCause>,
    /// Why its trace is exported. `None`: it is not, or tracing is off.
    pub sample_reason: Option<SampleReason>,
    /// The prompt hashes of a trace capture. `None`: the request is not captured.
    pub captured: Option<Arc<CapturedPrompt>>,
    /// Beginning of the prompt, if the text of this request is retained.
    pub prompt: Option<TextExcerpt>,
    /// The consumers that the text is retained for.
    pub text_for: PayloadConsumers,
    /// Bytes of the request body.
    pub bytes_in: u64,
    /// Bytes of the response body.
    pub bytes_out: u64,
}

/// Most tokens per character: each of them has at least one of its UTF-8 bytes.
const MAX_TOKENS_PER_CHARACTER: u32 = 4;

// === impl RequestRecord ===

impl RequestRecord {
    /// The record of a request whose head has been read. Until it is changed, the outcome is that
    /// the client disconnected.
    pub fn begin(
        request_id: RequestId,
        client: IpAddr,
        method: &'static str,
        started: SystemTime,
        accepted: Instant,
    ) -> Self {
        Self {
            request_id,
            trace: None,
            spans: [1, 2],
            head: RequestHeadAttributes::default(),
            client,
            method,
            route: None,
            api: None,
            options: RequestOptions::default(),
            model: ModelLabel::unknown(),
            tier: Tier::default(),
            caller: None,
            decision: None,
            attempts: Vec::new(),
            not_retried: None,
            status: None,
            refusal: None,
            outcome: Outcome::Cancelled,
            end: Termination::ClientDisconnected,
            started,
            timings: Timings::begin(accepted),
            observed: ObservedResponse::default(),
            condition: BackendCondition::default(),
            recent: RecentEngineTimes::default(),
            slow: None,
            sample_reason: None,
            captured: None,
            prompt: None,
            text_for: PayloadConsumers::default(),
            bytes_in: 0,
            bytes_out: 0,
        }
    }

    /// Time to first token as the client sees it: request head read → first generated output.
    /// `None` unless the response is a stream.
    pub fn ttft(&self) -> Option<Duration> {
        self.elapsed_since_accepted(self.timings.first_output)
    }

    /// Time to first token as the backend sees it: request sent → first generated output.
    pub fn upstream_ttft(&self) -> Option<Duration> {
        let (sent, first) = (self.timings.sent?, self.timings.first_output?);
        Some(first.saturating_duration_since(sent))
    }

    /// Times of a stream as the client sees it: to the response head, to the first event of any
    /// kind (for chat, the role), and to the first output that is not reasoning.
    pub fn stream_times(&self) -> [Option<Duration>; 3] {
        let timings = &self.timings;
        [timings.headers, timings.first_event, timings.first_answer]
            .map(|at| self.stream_time_to(at))
    }

    /// Time from the request head to an event of a stream. `None` if the response is not a stream.
    pub fn stream_time_to(&self, at: Option<Instant>) -> Option<Duration> {
        self.elapsed_since_accepted(at.filter(|_| self.observed.is_stream))
    }

    /// Time per output token after the first: (last output − first token) ÷ (n − 1), where n is the
    /// engine's exact count. `None` for fewer than two tokens, for several choices (their counts
    /// are a sum), without an exact count, and if write stalls of the client delayed the last
    /// output by more than 1% of the decode time.
    pub fn tpot(&self) -> Option<Duration> {
        let observed = &self.observed;
        let steps = u32::try_from(observed.usage.output?.checked_sub(1)?).ok()?;
        let is_exact = observed.usage_source == UsageSource::Exact;
        let is_delayed_by_client = observed.last_output_write_stall > self.decode()? / 100;
        if !is_exact || is_delayed_by_client || observed.finish_reasons.len() > 1 {
            return None;
        }
        let last = self.timings.last_output?;
        last.saturating_duration_since(self.first_token_at(steps)?).checked_div(steps)
    }

    /// The instant of the first of `steps + 1` tokens.
    ///
    /// A first token that ends inside a character has no text yet, but vLLM sends the role event
    /// when it generates that token. So the instant is that of the first event if few tokens have
    /// no event of their own (with many, events have several tokens each) and the time between
    /// first event and first output is not more than the tokens of one character take. Otherwise it
    /// is that of the first output.
    fn first_token_at(&self, steps: u32) -> Option<Instant> {
        let Timings { first_event, first_output, .. } = self.timings;
        let (first_event, first_output) = (first_event?, first_output?);
        let pace = self.decode()?.checked_div(steps)?;
        let visible = u32::try_from(self.observed.estimated_tokens).ok()?;
        let hidden = steps.saturating_add(1).saturating_sub(visible);
        let delay = first_output.saturating_duration_since(first_event);
        let began_with_first_event = (1..=steps / 4).contains(&hidden)
            && delay <= pace.saturating_mul(hidden.min(MAX_TOKENS_PER_CHARACTER) + 1);
        Some(if began_with_first_event { first_event } else { first_output })
    }

    /// Decode time: first output → last output.
    pub fn decode(&self) -> Option<Duration> {
        let (first, last) = (self.timings.first_output?, self.timings.last_output?);
        Some(last.saturating_duration_since(first))
    }

    /// End-to-end duration as the client sees it: request head read → end of the exchange.
    pub fn duration(&self) -> Duration {
        self.elapsed_since_accepted(self.timings.ended).unwrap_or_default()
    }

    /// Gateway overhead: (sent − request body received) − time in the admission queue.
    pub fn overhead(&self) -> Option<Duration> {
        let received = self.timings.received?;
        let elapsed = self.timings.sent?.saturating_duration_since(received);
        Some(elapsed.saturating_sub(self.gateway_queue_wait().unwrap_or_default()))
    }

    /// Time in the admission queue. `None`: the request was not queued.
    pub fn gateway_queue_wait(&self) -> Option<Duration> {
        let Timings { queued, dequeued, ended, .. } = self.timings;
        Some(dequeued.or(ended)?.saturating_duration_since(queued?))
    }

    /// Output tokens before the client disconnected. `None`: it did not disconnect early.
    pub fn tokens_before_disconnect(&self) -> Option<u64> {
        let has_left =
            self.outcome == Outcome::Cancelled && self.end == Termination::ClientDisconnected;
        has_left.then(|| self.output_tokens().unwrap_or(0))
    }

    /// Number of output tokens; [`ObservedResponse::usage_source`] states its accuracy.
    pub fn output_tokens(&self) -> Option<u64> {
        let observed = &self.observed;
        match observed.usage_source {
            UsageSource::Exact => observed.usage.output,
            UsageSource::Continuous => {
                observed.usage.output.or(Some(observed.counted_event_tokens))
            }
            UsageSource::Estimated => Some(observed.estimated_tokens),
            UsageSource::Missing => None,
        }
    }

    /// Token counts of the engine: input, output, cached input, reasoning. Estimates are `None`.
    pub fn engine_token_counts(&self) -> [Option<u64>; 4] {
        let usage = &self.observed.usage;
        let is_estimated = self.observed.usage_source == UsageSource::Estimated;
        let output = self.output_tokens().filter(|_| !is_estimated);
        [usage.input, output, usage.cached, usage.reasoning]
    }

    /// Output tokens that the engine generated for a request that did not succeed.
    pub fn wasted_tokens(&self) -> Option<u64> {
        let is_wasted = self.outcome != Outcome::Ok;
        self.output_tokens().filter(|tokens| is_wasted && *tokens > 0)
    }

    /// Output tokens ÷ the client's token limit. `None` without either, and for several choices,
    /// because each of them may use the limit.
    pub fn max_tokens_utilization(&self) -> Option<f64> {
        let limit = self.options.max_tokens.filter(|limit| *limit > 0)?;
        let is_single = self.observed.finish_reasons.len() == 1;
        let is_known = self.observed.usage_source == UsageSource::Exact;
        let tokens = self.observed.usage.output.filter(|_| is_single && is_known)?;
        Some(tokens as f64 / limit as f64)
    }

    /// Whether the engine ended the response without an error and without output other than
    /// reasoning.
    pub fn is_empty_response(&self) -> bool {
        let observed = &self.observed;
        let generates = self.api.is_some_and(Api::generates);
        let is_read = observed.uninspected_reason.is_none() && !observed.finish_reasons.is_empty();
        self.outcome == Outcome::Ok && generates && is_read && !observed.has_answer
    }

    /// Whether the model refused, a content filter ended the response, or the response contains a
    /// configured refusal phrase.
    pub fn is_model_refusal(&self) -> bool {
        let observed = &self.observed;
        let is_filtered = observed.finish_reasons.contains(&Some(FinishReason::ContentFilter));
        observed.is_refusal || observed.has_refusal_phrase || is_filtered
    }

    /// Preemptions of any request in the backend's engine, from the routing decision to the end of
    /// the response.
    pub fn preemptions(&self) -> Option<u64> {
        let before = self.decision.as_ref()?.backend_condition.preemptions?;
        self.condition.preemptions?.checked_sub(before)
    }

    /// The backend of the last attempt.
    pub fn backend(&self) -> Option<&BackendId> {
        self.attempts.last().map(|attempt| &attempt.backend)
    }

    /// The OpenTelemetry attribute `error.type`, of low cardinality. `None` for a success and for a
    /// client that disconnected.
    pub fn error_type(&self) -> Option<&str> {
        match self.outcome {
            Outcome::Ok | Outcome::Cancelled => None,
            _ if self.refusal.is_some() => self.refusal,
            Outcome::ClientError | Outcome::UpstreamError => {
                Some(self.status.and_then(status_text).unwrap_or("_OTHER"))
            }
            Outcome::StreamError => Some("stream_error"),
            Outcome::Truncated => Some("incomplete_stream"),
            Outcome::Aborted => Some("aborted"),
            Outcome::Timeout => Some("timeout"),
            Outcome::Shutdown => Some("shutdown"),
            Outcome::Rejected => Some("rejected"),
        }
    }

    /// The termination reason, one of [`TERMINATION_REASONS`]: the outcome, and who closed first.
    pub fn ending(&self) -> &'static str {
        match self.refusal {
            Some("first_output_timeout") => "timeout_first_output",
            _ => termination_reason(self.outcome, self.end),
        }
    }

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
    /// computes anything, so after the head the phase is what the request waited for.
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

    fn elapsed_since_accepted(&self, instant: Option<Instant>) -> Option<Duration> {
        Some(instant?.saturating_duration_since(self.timings.accepted))
    }
}

/// Text of the status codes that servers of this kind send, without allocation.
fn status_text(status: u16) -> Option<&'static str> {
    Some(match status {
        400 => "400",
        401 => "401",
        403 => "403",
        404 => "404",
        405 => "405",
        408 => "408",
        409 => "409",
        413 => "413",
        415 => "415",
        422 => "422",
        429 => "429",
        431 => "431",
        500 => "500",
        501 => "501",
        502 => "502",
        503 => "503",
        504 => "504",
        _ => return None,
    })
}
