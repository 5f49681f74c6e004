//! Everything that is known of one request when it has ended: one plain value that metrics,
//! spans, logs and the router all read. Derived figures are methods here, with their formula, so
//! that no sink computes its own.

mod asked;
mod attempt;
mod caller;
mod captured;
mod decision;
mod engine;
mod head;
mod kept;
mod labels;
mod observed;
mod outcome;
mod phases;
#[cfg(any(test, feature = "testing"))]
pub mod sample;
mod slow;
mod text_for;
mod tier;
mod timings;
mod wait;

pub use asked::Asked;
pub use attempt::{Attempt, NotRetried};
pub use caller::Caller;
pub use captured::Captured;
pub use decision::{Considered, Decision, Shadow};
pub use engine::{Condition, RecentTimes, Stall};
pub use head::Head;
pub use kept::Kept;
pub use labels::{BackendId, ModelLabel};
pub use observed::{Observed, Scales};
pub use outcome::{ENDINGS, End, EndedBy, Lost, Outcome, UsageEvent, UsageSource};
pub use phases::{Phase, Phases, Span};
pub use slow::{SlowCause, SlowLimits};
pub use text_for::TextFor;
pub use tier::{Tier, Tiers};
pub use timings::Timings;

use crate::headers::RequestId;
use crate::openai::{Api, Excerpt, Finish};
use crate::trace_context::TraceContext;
use outcome::ending;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use wait::FirstWait;

/// One request, from its first byte to its last.
#[derive(Debug, Clone)]
pub struct RequestRecord {
    /// The `x-request-id`, the client's or ours.
    pub request_id: RequestId,
    /// The trace it belongs to. `None` if traces are off.
    pub trace: Option<TraceContext>,
    /// Our span for the request as the client sees it, and the one for the inference.
    pub spans: [u64; 2],
    /// What is told of its head, if there are traces.
    pub head: Head,
    /// The peer.
    pub client: IpAddr,
    /// The method; `_OTHER` if it is not one of HTTP's.
    pub method: &'static str,
    /// The path, if it is one that is served.
    pub route: Option<&'static str>,
    /// The shape, if the request is inference.
    pub api: Option<Api>,
    /// What the client asked for.
    pub asked: Asked,
    /// The model as a label: one that a replica serves or the configuration names, or `_other`.
    pub model: ModelLabel,
    /// The client's tier.
    pub tier: Tier,
    /// Whose key it came with. `None` if nobody needs one, or it has none that is known.
    pub caller: Option<Arc<Caller>>,
    /// Why the last attempt went where it went.
    pub decision: Option<Arc<Decision>>,
    /// Every time the request was sent to a replica, in order.
    pub attempts: Vec<Attempt>,
    /// Why no other replica was asked after the last one had failed.
    pub not_retried: Option<NotRetried>,
    /// The status that the client got. `None` if it left before.
    pub status: Option<u16>,
    /// Why the gateway answered itself, as one word of a closed set.
    pub refusal: Option<&'static str>,
    /// How it ended.
    pub outcome: Outcome,
    /// How its bytes ended.
    pub end: End,
    /// When it began, for people.
    pub started: SystemTime,
    /// When its moments were.
    pub timings: Timings,
    /// What was seen of the answer.
    pub observed: Observed,
    /// The replica when the answer ended.
    pub condition: Condition,
    /// What other requests lately took in its engine.
    pub recent: RecentTimes,
    /// Why it was slow, if it was.
    pub slow: Option<SlowCause>,
    /// Why its trace is kept. `None` if it is not, or there are no traces.
    pub kept: Option<Kept>,
    /// What a capture keeps of it. `None` if there is no capture, or it leaves this one out.
    pub captured: Option<Arc<Captured>>,
    /// The beginning of its prompt, if the text of this request is kept.
    pub prompt: Option<Excerpt>,
    /// For whom it is kept.
    pub text_for: TextFor,
    /// Body bytes from the client.
    pub bytes_in: u64,
    /// Body bytes of the answer.
    pub bytes_out: u64,
}

/// Most tokens of one character: each has at least one of its bytes.
const TOKENS_OF_CHARACTER: u32 = 4;

// === impl RequestRecord ===

impl RequestRecord {
    /// A request of which only this much is known: until somebody says otherwise, its client has
    /// left.
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
            head: Head::default(),
            client,
            method,
            route: None,
            api: None,
            asked: Asked::default(),
            model: ModelLabel::other(),
            tier: Tier::default(),
            caller: None,
            decision: None,
            attempts: Vec::new(),
            not_retried: None,
            status: None,
            refusal: None,
            outcome: Outcome::Cancelled,
            end: End::Left,
            started,
            timings: Timings::begin(accepted),
            observed: Observed::default(),
            condition: Condition::default(),
            recent: RecentTimes::default(),
            slow: None,
            kept: None,
            captured: None,
            prompt: None,
            text_for: TextFor::default(),
            bytes_in: 0,
            bytes_out: 0,
        }
    }

    /// Time to first token in the client's view: request head read → first generated output.
    /// Only streams have one.
    pub fn ttft(&self) -> Option<Duration> {
        self.since_accepted(self.timings.first_output)
    }

    /// Time to first token in the replica's view: request sent → first generated output.
    pub fn upstream_ttft(&self) -> Option<Duration> {
        let (sent, first) = (self.timings.sent?, self.timings.first_output?);
        Some(first.saturating_duration_since(sent))
    }

    /// Of a stream, in the client's view: time to the response head, to the first event of any
    /// kind (for chat the role), and to the first output that is not reasoning.
    pub fn marks(&self) -> [Option<Duration>; 3] {
        let timings = &self.timings;
        let marks = [timings.headers, timings.first_event, timings.first_answer];
        marks.map(|mark| self.since_accepted(mark.filter(|_| self.observed.is_stream)))
    }

    /// Time per output token after the first: (last output − first token) ÷ (n − 1), with n the
    /// engine's exact count. Absent for fewer than two tokens, for several choices (their counts
    /// are a sum), where the count is not exact, and where the client held up the last output by
    /// more than a hundredth of the time: then it was not the engine's.
    pub fn tpot(&self) -> Option<Duration> {
        let observed = &self.observed;
        let steps = u32::try_from(observed.usage.output?.checked_sub(1)?).ok()?;
        let is_exact = observed.usage_source == UsageSource::Exact;
        let is_held_up = observed.last_output_held > self.decode()? / 100;
        if !is_exact || is_held_up || observed.finish_reasons.len() > 1 {
            return None;
        }
        let last = self.timings.last_output?;
        last.saturating_duration_since(self.first_token(steps)?).checked_div(steps)
    }

    /// When the first of `steps + 1` tokens was made. It has no text if it ends inside a
    /// character; vLLM holds the role event back until then. So it is the first event, if a few
    /// tokens have no event of their own (many: the events have several tokens each), and if the
    /// time between is not more than those of one character would take; else the first output.
    fn first_token(&self, steps: u32) -> Option<Instant> {
        let Timings { first_event, first_output, .. } = self.timings;
        let (first_event, first_output) = (first_event?, first_output?);
        let pace = self.decode()?.checked_div(steps)?;
        let shown = u32::try_from(self.observed.estimated_tokens).ok()?;
        let hidden = steps.saturating_add(1).saturating_sub(shown);
        let silent = first_output.saturating_duration_since(first_event);
        let is_first = (1..=steps / 4).contains(&hidden)
            && silent <= pace.saturating_mul(hidden.min(TOKENS_OF_CHARACTER) + 1);
        Some(if is_first { first_event } else { first_output })
    }

    /// First output → last output.
    pub fn decode(&self) -> Option<Duration> {
        let (first, last) = (self.timings.first_output?, self.timings.last_output?);
        Some(last.saturating_duration_since(first))
    }

    /// Duration as the client sees it: request head read → end of the exchange.
    pub fn duration(&self) -> Duration {
        self.since_accepted(self.timings.ended).unwrap_or_default()
    }

    /// What the gateway took before the replica had the request: (sent − accepted) less the time
    /// in which the client was still sending its body, and less the wait for a replica with room.
    pub fn overhead(&self) -> Option<Duration> {
        let received = self.timings.received?;
        let took = self.timings.sent?.saturating_duration_since(received);
        Some(took.saturating_sub(self.queue_wait().unwrap_or_default()))
    }

    /// How long it waited in the gateway for a replica with room. `None`: it did not have to.
    pub fn queue_wait(&self) -> Option<Duration> {
        let Timings { queued, dequeued, ended, .. } = self.timings;
        Some(dequeued.or(ended)?.saturating_duration_since(queued?))
    }

    /// Output tokens after which the client left, if it did so before its answer was whole.
    pub fn left_after(&self) -> Option<u64> {
        let has_left = self.outcome == Outcome::Cancelled && self.end == End::Left;
        has_left.then(|| self.output_tokens().unwrap_or(0))
    }

    /// Generated tokens, as exactly as they are known: see [`Observed::usage_source`].
    pub fn output_tokens(&self) -> Option<u64> {
        let observed = &self.observed;
        match observed.usage_source {
            UsageSource::Exact => observed.usage.output,
            UsageSource::Continuous => observed.usage.output.or(Some(observed.tokens_in_events)),
            UsageSource::Estimated => Some(observed.estimated_tokens),
            UsageSource::Missing => None,
        }
    }

    /// Tokens as the engine counted them: input, output, cached input, reasoning. Nothing that was
    /// estimated.
    pub fn counted_tokens(&self) -> [Option<u64>; 4] {
        let usage = &self.observed.usage;
        let is_estimated = self.observed.usage_source == UsageSource::Estimated;
        let output = self.output_tokens().filter(|_| !is_estimated);
        [usage.input, output, usage.cached, usage.reasoning]
    }

    /// Output tokens of an answer that nobody received whole, although the engine made them.
    pub fn wasted_tokens(&self) -> Option<u64> {
        let is_wasted = self.outcome != Outcome::Ok;
        self.output_tokens().filter(|tokens| is_wasted && *tokens > 0)
    }

    /// Output tokens ÷ the limit that the client set. Absent without either, and for several
    /// choices: each may use the limit.
    pub fn output_to_limit(&self) -> Option<f64> {
        let limit = self.asked.max_tokens.filter(|limit| *limit > 0)?;
        let is_single = self.observed.finish_reasons.len() == 1;
        let is_known = self.observed.usage_source == UsageSource::Exact;
        let tokens = self.observed.usage.output.filter(|_| is_single && is_known)?;
        Some(tokens as f64 / limit as f64)
    }

    /// The engine ended the answer without an error and without any answer in it.
    pub fn is_empty_answer(&self) -> bool {
        let observed = &self.observed;
        let generates = self.api.is_some_and(Api::generates);
        let is_read = observed.lost.is_none() && !observed.finish_reasons.is_empty();
        self.outcome == Outcome::Ok && generates && is_read && !observed.has_answer
    }

    /// The model refused, or a filter ended the answer, or it has a phrase that the configuration
    /// calls a refusal. Nothing else is guessed from its text.
    pub fn is_refused_answer(&self) -> bool {
        let observed = &self.observed;
        let is_filtered = observed.finish_reasons.contains(&Some(Finish::ContentFilter));
        observed.is_refusal || observed.has_refusal_phrase || is_filtered
    }

    /// Preemptions in the replica's engine between its choice and the end of the answer, of
    /// whatever request.
    pub fn preemptions(&self) -> Option<u64> {
        let before = self.decision.as_ref()?.condition.preemptions?;
        self.condition.preemptions?.checked_sub(before)
    }

    /// The replica of the last attempt.
    pub fn backend(&self) -> Option<&BackendId> {
        self.attempts.last().map(|attempt| &attempt.backend)
    }

    /// `error.type` of OpenTelemetry for this request: low in cardinality, `None` for a success
    /// and for a client that left.
    pub fn error_type(&self) -> Option<&str> {
        match self.outcome {
            Outcome::Ok | Outcome::Cancelled => None,
            _ if self.refusal.is_some() => self.refusal,
            Outcome::ClientError | Outcome::UpstreamError => {
                Some(self.status.and_then(status_name).unwrap_or("_OTHER"))
            }
            Outcome::StreamError => Some("stream_error"),
            Outcome::Truncated => Some("incomplete_stream"),
            Outcome::Aborted => Some("aborted"),
            Outcome::Timeout => Some("timeout"),
            Outcome::Shutdown => Some("shutdown"),
            Outcome::Rejected => Some("rejected"),
        }
    }

    /// How it ended, in one word of [`ENDINGS`]: the outcome, and who closed first.
    pub fn ending(&self) -> &'static str {
        match self.refusal {
            Some("first_output_timeout") => "timeout_first_output",
            _ => ending(self.outcome, self.end),
        }
    }

    /// Where the request was when it ended: of interest when the client left. A backend sends the head
    /// of a stream before it has computed anything, so from then on it is judged by what was waited for.
    pub fn phase(&self) -> &'static str {
        let timings = &self.timings;
        match timings {
            Timings { terminal: Some(_), .. } => "done",
            Timings { first_output: Some(_), .. } => "decode",
            Timings { headers: Some(_), .. } => FirstWait::of(self, &Phases::of(self)).phase(),
            Timings { sent: Some(_), .. } => "headers",
            Timings { queued: Some(_), dequeued: None, .. } => "queued",
            Timings { received: Some(_), .. } => "routing",
            _ => "upload",
        }
    }

    fn since_accepted(&self, moment: Option<Instant>) -> Option<Duration> {
        Some(moment?.saturating_duration_since(self.timings.accepted))
    }
}

/// Status codes as text, without allocating, for those that servers of this kind send.
fn status_name(status: u16) -> Option<&'static str> {
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
