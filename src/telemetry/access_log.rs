//! One line for each request, from its record: never a prompt, an answer or a key. Under load the
//! lines of ordinary requests are limited; those of all others are not.

use super::tame::{self, Field};
use serde::Serialize;
use std::fmt::{self, Display, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokenweir_core::observe::Sink;
use tokenweir_core::rate::Rate;
use tokenweir_core::record::{Kept, Lost, Outcome, Phase, Phases, RequestRecord, SlowCause};

/// The sink that writes the lines.
pub struct AccessLog {
    is_json: bool,
    write: Write,
    rate: Option<Rate>,
    /// Lines that have been left out since the last one that was written.
    since: AtomicU64,
    tally: Arc<Tally>,
}

/// Takes lines with their endings. It must not block.
pub type Write = Box<dyn Fn(String) + Send + Sync>;

/// Lines so far, before it is known which of them the writer had no room for.
#[derive(Debug, Default)]
struct Tally {
    given: AtomicU64,
    left_out: AtomicU64,
}

/// Counts what became of lines, while they are written.
#[derive(Debug, Clone)]
pub struct Counter(Arc<Tally>);

/// What became of lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// On their way to the reader, or there.
    pub written: u64,
    /// Of ordinary requests, beyond the limit.
    pub left_out: u64,
    /// The reader was too slow.
    pub dropped: u64,
}

/// The fields of a line, in its order.
#[derive(Debug, Serialize)]
struct Line<'a> {
    ts: String,
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
    /// Why its trace is kept; absent if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<&'static str>,
    client: String,
    method: &'a str,
    route: &'a str,
    status: Option<u16>,
    outcome: &'static str,
    /// The outcome, more exactly.
    ending: &'static str,
    closed_by: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    /// Why it was slow.
    #[serde(skip_serializing_if = "Option::is_none")]
    slow: Option<&'static str>,
    /// Why the numbers below may be wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<&'static str>,
    model: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    tier: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a str>,
    /// The name of the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    backend: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<&'static str>,
    /// Why that replica was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    predicted_ttft_ms: Option<f64>,
    /// Prompt tokens that were believed to be cached.
    predicted_cached: Option<f64>,
    attempts: usize,
    /// Lines of ordinary requests that were left out before this one.
    #[serde(skip_serializing_if = "is_none")]
    left_out: u64,
    stream: bool,
    finish: Vec<&'static str>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    reasoning_tokens: Option<u64>,
    /// How far `output_tokens` can be trusted.
    usage: &'static str,
    output_events: u64,
    comments: u64,
    headers_ms: Option<f64>,
    first_event_ms: Option<f64>,
    ttft_ms: Option<f64>,
    first_answer_ms: Option<f64>,
    tpot_ms: Option<f64>,
    itl_mean_ms: Option<f64>,
    gap_mean_ms: Option<f64>,
    gap_max_ms: Option<f64>,
    stalls: usize,
    write_stall_ms: f64,
    duration_ms: Option<f64>,
    overhead_us: Option<u128>,
    /// How long it waited for a replica with room.
    #[serde(skip_serializing_if = "Option::is_none")]
    queued_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    phases: Option<PhaseTimes>,
    bytes_in: u64,
    bytes_out: u64,
}

/// Queue and prefill in the engine, in milliseconds.
#[derive(Debug, Serialize)]
struct PhaseTimes {
    queue_ms: f64,
    prefill_ms: f64,
    network_ms: Option<f64>,
    estimated: bool,
}

impl AccessLog {
    /// Lines for machines, or for people.
    pub fn new(is_json: bool, write: Write) -> Self {
        Self { is_json, write, rate: None, since: AtomicU64::new(0), tally: Arc::default() }
    }

    /// Writes at most so many lines of ordinary requests in a second, from `epoch` on, and a burst
    /// of one second at once.
    pub fn with_limit(self, per_second: Option<u32>, epoch: Instant) -> Self {
        Self { rate: per_second.map(|per_second| Rate::new(per_second, epoch)), ..self }
    }

    /// What counts the lines.
    pub fn counter(&self) -> Counter {
        Counter(self.tally.clone())
    }

    /// Writes the lines of those of the records that are not left out.
    fn write<'a>(&self, records: impl Iterator<Item = &'a RequestRecord>) {
        let mut lines = String::new();
        for record in records {
            if self.is_left_out(record) {
                self.since.fetch_add(1, Ordering::Relaxed);
                self.tally.left_out.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let left_out = self.since.swap(0, Ordering::Relaxed);
            let line = Line { left_out, ..Line::of(record) };
            if self.is_json {
                // A struct of texts and numbers always has a JSON form.
                lines += &tame::json(serde_json::to_string(&line).unwrap_or_default());
            } else {
                // Writing to a string cannot fail.
                let _ = write!(lines, "{line}");
            }
            lines.push('\n');
            self.tally.given.fetch_add(1, Ordering::Relaxed);
        }
        if !lines.is_empty() {
            (self.write)(lines);
        }
    }

    fn is_left_out(&self, record: &RequestRecord) -> bool {
        let ended = record.timings.ended.unwrap_or(record.timings.accepted);
        is_ordinary(record) && self.rate.as_ref().is_some_and(|rate| !rate.take(ended))
    }
}

impl Sink for AccessLog {
    fn finished(&self, record: &RequestRecord) {
        self.write(std::iter::once(record));
    }

    fn finished_all(&self, records: &[Box<RequestRecord>]) {
        self.write(records.iter().map(|record| &**record));
    }
}

/// It went well, at once and in time: its line is missed least.
fn is_ordinary(record: &RequestRecord) -> bool {
    record.outcome == Outcome::Ok
        && record.slow.is_none()
        && record.observed.stalls.is_empty()
        && record.attempts.len() <= 1
}

impl Counter {
    /// So far, of which the writer has dropped so many.
    pub fn counts(&self, dropped: u64) -> Counts {
        Counts {
            written: self.0.given.load(Ordering::Relaxed).saturating_sub(dropped),
            left_out: self.0.left_out.load(Ordering::Relaxed),
            dropped,
        }
    }
}

impl<'a> Line<'a> {
    fn of(record: &'a RequestRecord) -> Self {
        let observed = &record.observed;
        let (decision, predicted) = (record.decision.as_ref(), record.predicted());
        let [headers, first_event, first_answer] = record.marks();
        let is_cut = record.phase() != "done" && record.status.is_none_or(|status| status < 400);
        Self {
            ts: humantime::format_rfc3339_millis(record.started).to_string(),
            request_id: record.request_id.as_str(),
            trace_id: record.trace.as_ref().map(|trace| format!("{:032x}", trace.trace_id)),
            kept: record.kept.map(Kept::as_str),
            client: record.client.to_string(),
            method: record.method,
            route: record.route.unwrap_or("-"),
            status: record.status,
            outcome: record.outcome.as_str(),
            ending: record.ending(),
            closed_by: record.end.by().as_str(),
            phase: is_cut.then(|| record.phase()),
            error: record.error_type(),
            slow: record.slow.map(SlowCause::as_str),
            lost: observed.lost.map(Lost::as_str),
            model: record.model.name(),
            tier: record.tier.as_str(),
            tenant: record.caller.as_ref().map(|caller| &*caller.tenant),
            key: record.caller.as_ref().map(|caller| &*caller.key),
            backend: record.backend().map(tokenweir_core::record::BackendId::as_str),
            policy: decision.map(|decision| decision.policy()),
            reason: decision.map(|decision| decision.reason()),
            predicted_ttft_ms: predicted.map(|predicted| seconds(predicted.ttft)),
            predicted_cached: predicted.map(|predicted| predicted.candidate.cached.round()),
            attempts: record.attempts.len(),
            left_out: 0,
            stream: observed.is_stream,
            finish: observed
                .finish_reasons
                .iter()
                .flatten()
                .map(|reason| reason.as_str())
                .collect(),
            input_tokens: observed.usage.input,
            output_tokens: record.output_tokens(),
            cached_tokens: observed.usage.cached,
            reasoning_tokens: observed.usage.reasoning,
            usage: observed.usage_source.as_str(),
            output_events: observed.output_events,
            comments: observed.comments,
            headers_ms: headers.map(millis),
            first_event_ms: first_event.map(millis),
            ttft_ms: record.ttft().map(millis),
            first_answer_ms: first_answer.map(millis),
            tpot_ms: record.tpot().map(millis),
            itl_mean_ms: observed.itl.mean().map(seconds),
            gap_mean_ms: observed.gaps.mean().map(seconds),
            gap_max_ms: observed.gaps.max().map(seconds),
            stalls: observed.stalls.len(),
            write_stall_ms: millis(observed.write_stall),
            duration_ms: Some(millis(record.duration())),
            overhead_us: record.overhead().map(|overhead| overhead.as_micros()),
            queued_ms: record.queue_wait().map(millis),
            phases: PhaseTimes::of(&Phases::of(record)),
            bytes_in: record.bytes_in,
            bytes_out: record.bytes_out,
        }
    }
}

impl PhaseTimes {
    fn of(phases: &Phases) -> Option<Self> {
        let queue = phases.get(Phase::Queue)?;
        Some(Self {
            queue_ms: millis(queue.took),
            prefill_ms: millis(phases.get(Phase::Prefill)?.took),
            network_ms: phases.get(Phase::Network).map(|network| millis(network.took)),
            estimated: queue.is_estimated,
        })
    }
}

/// The line for people: what they look for first stands first.
impl Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status.map_or("---".into(), |status| status.to_string());
        write!(f, "{} {status} {:<14} {} {}", self.ts, self.outcome, self.method, self.route)?;
        field(f, "model", Some(self.model))?;
        field(f, "tenant", self.tenant)?;
        field(f, "key", self.key)?;
        field(f, "backend", self.backend)?;
        field(f, "reason", self.reason)?;
        field(f, "error", self.error)?;
        field(f, "phase", self.phase)?;
        field(f, "slow", self.slow)?;
        field(f, "lost", self.lost)?;
        field(f, "queued_ms", self.queued_ms)?;
        field(f, "ttft_ms", self.ttft_ms)?;
        field(f, "tpot_ms", self.tpot_ms)?;
        field(f, "gap_max_ms", self.gap_max_ms)?;
        field(f, "ms", self.duration_ms)?;
        field(f, "in", self.input_tokens)?;
        field(f, "out", self.output_tokens)?;
        field(f, "finish", (!self.finish.is_empty()).then(|| self.finish.join(",")))?;
        field(f, "attempts", (self.attempts > 1).then_some(self.attempts))?;
        field(f, "left_out", (self.left_out > 0).then_some(self.left_out))?;
        field(f, "id", Some(self.request_id))?;
        field(f, "trace", self.trace_id.as_deref())
    }
}

fn field(f: &mut fmt::Formatter<'_>, name: &str, value: Option<impl Display>) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, " {name}={}", Field(value)))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes what it asks about so")]
fn is_none(count: &u64) -> bool {
    *count == 0
}

/// Milliseconds with three decimals: microseconds are what the clock is good for.
pub(super) fn millis(duration: Duration) -> f64 {
    seconds(duration.as_secs_f64())
}

/// Seconds as such milliseconds.
fn seconds(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests;
