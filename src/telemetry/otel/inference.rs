//! The span of the inference: one for a request, over all attempts and the whole stream. It alone
//! has GenAI attributes, so that tokens are counted once in a trace. Names are those of the GenAI
//! conventions, and `tokenweir.*` for what they have no name for; durations are in seconds.

use super::attributes::{Attributes, count, host, reals, seconds, text, texts, words};
use super::profiles;
use super::spans::{error_type, failure, moment};
use super::style::{Semconv, Style};
use opentelemetry::Value;
use opentelemetry::trace::Event;
use std::time::Instant;
use tokenweir_core::openai::{Api, Finish};
use tokenweir_core::record::{Lost, Outcome, Phase, Phases, RequestRecord, SlowCause};

/// The kind of server that is asked, if none was.
const PROVIDER: &str = "vllm";
/// Most replicas whose predictions stand in a span.
const SCORES: usize = 5;

/// Whether a request got so far that there is an inference to tell of.
pub(super) fn is_one(record: &RequestRecord) -> bool {
    let is_known = record.model.is_known();
    record.api.is_some() && (!record.attempts.is_empty() || is_known)
}

/// The name of the span.
pub(super) fn name(record: &RequestRecord) -> String {
    format!("{} {}", operation(record), record.model.name())
}

/// The attributes of the span.
pub(super) fn attributes(record: &RequestRecord, style: &Style) -> Attributes {
    let attributes = request(Attributes::default(), record, style.semconv);
    let attributes = response(attributes, record, style.semconv);
    let attributes = phases(routing(attributes, record), record);
    let attributes = latency(attributes, record)
        .put_some("error.type", error_type(record).map(text))
        .put("tokenweir.outcome", record.outcome.as_str())
        .put("tokenweir.ending", record.ending())
        .put("tokenweir.closed_by", record.end.by().as_str())
        .put_some("tokenweir.slow_cause", record.slow.map(SlowCause::as_str))
        .put_some("tokenweir.lost", record.observed.lost.map(Lost::as_str))
        .put_some(
            "tokenweir.tier",
            Some(record.tier.as_str()).filter(|tier| !tier.is_empty()).map(text),
        )
        .put_some("tokenweir.phase", is_cancelled(record).then(|| record.phase()));
    let profiles = style.profiles.iter();
    profiles.fold(attributes, |put, profile| profiles::attributes(*profile, put, record))
}

/// The events of the span, in the order of time.
pub(super) fn events(record: &RequestRecord, style: &Style) -> Vec<Event> {
    let timings = &record.timings;
    let moments = [
        ("tokenweir.queued", timings.queued),
        ("tokenweir.dequeued", timings.dequeued),
        ("tokenweir.upstream_headers", timings.headers),
        ("gen_ai.first_chunk", timings.first_output),
        ("tokenweir.client_disconnect", timings.ended.filter(|_| is_cancelled(record))),
    ];
    let happened = moments.into_iter().filter_map(|(name, at)| Some((name, at?)));
    let plain = happened.map(|(name, at)| event(record, name, at, Attributes::default()));
    let wanted = style.profiles.iter().filter_map(|profile| profiles::event(*profile, record));
    let own = decision(record).chain(retries(record)).chain(plain).chain(stalls(record));
    let mut events: Vec<Event> = own.chain(wanted).collect();
    events.sort_by_key(|event| event.timestamp);
    events
}

fn request(attributes: Attributes, record: &RequestRecord, semconv: Semconv) -> Attributes {
    let asked = &record.asked;
    let last = record.attempts.last();
    let address = last.map(|attempt| &attempt.address);
    parameters(attributes, record, semconv)
        .put("gen_ai.operation.name", operation(record))
        .put("gen_ai.provider.name", last.map_or(PROVIDER, |attempt| attempt.provider))
        .put("gen_ai.request.model", text(record.model.name()))
        .put_some("gen_ai.request.stream", asked.stream.then_some(true))
        .put_some("gen_ai.request.max_tokens", asked.max_tokens.map(count))
        .put_some("gen_ai.request.choice.count", asked.n.filter(|n| *n != 1).map(count))
        .put_some("server.address", address.map(|(name, _)| host(name)))
        .put_some("server.port", address.map(|(_, port)| i64::from(*port)))
}

/// How the answer was to be generated.
fn parameters(attributes: Attributes, record: &RequestRecord, semconv: Semconv) -> Attributes {
    let asked = &record.asked.parameters;
    let is_latest = semconv == Semconv::Latest;
    let top_k = asked.top_k.map(|k| if is_latest { Value::I64(k as i64) } else { k.into() });
    let previous = asked.previous_response.as_deref();
    attributes
        .put_some("gen_ai.request.temperature", asked.temperature)
        .put_some("gen_ai.request.top_p", asked.top_p)
        .put_some("gen_ai.request.top_k", top_k)
        .put_some("gen_ai.request.frequency_penalty", asked.frequency_penalty)
        .put_some("gen_ai.request.presence_penalty", asked.presence_penalty)
        .put_some("gen_ai.request.seed", asked.seed)
        .put_some("gen_ai.output.type", asked.output)
        .put_some("gen_ai.request.reasoning.level", asked.reasoning.filter(|_| is_latest))
        .put_some("gen_ai.request.previous_response.id", previous.filter(|_| is_latest).map(text))
}

fn response(attributes: Attributes, record: &RequestRecord, semconv: Semconv) -> Attributes {
    let observed = &record.observed;
    let usage = &observed.usage;
    let finish_reasons = observed.finish_reasons.iter();
    let has_head = record.timings.headers.is_some();
    attributes
        .put_some("gen_ai.response.id", observed.response_id.as_deref().map(text))
        .put_some("gen_ai.response.model", observed.response_model.as_deref().map(text))
        .put_some(
            "gen_ai.response.finish_reasons",
            words(finish_reasons.map(|reason| reason.map_or("error", Finish::as_str))),
        )
        .put_some("gen_ai.usage.input_tokens", usage.input.map(count))
        .put_some("gen_ai.usage.output_tokens", usage.output.map(count))
        .put_some("gen_ai.usage.cache_read.input_tokens", usage.cached.map(count))
        .put_some(semconv.cache_written(), usage.cache_created.map(count))
        .put_some("gen_ai.usage.reasoning.output_tokens", usage.reasoning.map(count))
        .put_some("tokenweir.usage.source", has_head.then(|| observed.usage_source.as_str()))
        .put_some(
            "tokenweir.output_events",
            observed.is_stream.then(|| count(observed.output_events)),
        )
}

fn routing(attributes: Attributes, record: &RequestRecord) -> Attributes {
    let attributes = attributes
        .put("tokenweir.attempts", count(record.attempts.len() as u64))
        .put_some("tokenweir.backend.id", record.backend().map(|backend| text(backend.as_str())));
    let Some(decision) = &record.decision else { return attributes };
    let chosen = decision.chosen();
    attributes
        .put("tokenweir.route.policy", decision.policy())
        .put("tokenweir.route.reason", decision.reason())
        .put("tokenweir.route.candidates", count(decision.candidates() as u64))
        .put("tokenweir.route.predicted_ttft", chosen.ttft)
        .put("tokenweir.route.cached_tokens", chosen.candidate.cached)
        .put("tokenweir.route.certainty", chosen.candidate.certainty)
        .put_some("tokenweir.route.kv_usage", decision.condition.kv_usage)
        .put_some("tokenweir.route.waiting", decision.condition.waiting.map(i64::from))
        .put_some(
            "tokenweir.snapshot_age_ms",
            decision.condition.age.map(|age| age.as_secs_f64() * 1_000.0),
        )
}

fn latency(attributes: Attributes, record: &RequestRecord) -> Attributes {
    let timings = &record.timings;
    let between = |from: Option<Instant>, to: Option<Instant>| {
        Some(seconds(to?.saturating_duration_since(from?)))
    };
    let gaps = &record.observed.gaps;
    let [_, _, first_answer] = record.marks();
    let write_stall = record.observed.write_stall;
    attributes
        .put_some("gen_ai.response.time_to_first_chunk", between(timings.sent, timings.first_event))
        .put_some("tokenweir.ttfb", between(Some(timings.accepted), timings.headers))
        .put_some("tokenweir.ttft", record.ttft().map(seconds))
        .put_some("tokenweir.ttft_answer", first_answer.map(seconds))
        .put_some("tokenweir.tpot", record.tpot().map(seconds))
        .put_some("tokenweir.itl.mean", gaps.mean())
        .put_some("tokenweir.itl.p95", gaps.quantile(0.95))
        .put_some("tokenweir.itl.max", gaps.max())
        .put_some("tokenweir.itl.per_token.mean", record.observed.itl.mean())
        .put_some(
            "tokenweir.client_write_stall",
            Some(write_stall).filter(|stall| !stall.is_zero()).map(seconds),
        )
}

/// Where the time went, as far as it is known.
fn phases(mut attributes: Attributes, record: &RequestRecord) -> Attributes {
    let phases = Phases::of(record);
    for span in phases.iter() {
        let name = match span.phase {
            Phase::GatewayQueue => "tokenweir.phase.gateway_queue",
            Phase::Gateway => "tokenweir.phase.gateway",
            Phase::Network => "tokenweir.phase.network",
            Phase::Queue => "tokenweir.phase.queue",
            Phase::Prefill => "tokenweir.phase.prefill",
            Phase::Decode => "tokenweir.phase.decode",
        };
        attributes = attributes.put(name, seconds(span.took));
    }
    let queue = phases.get(Phase::Queue);
    attributes.put_some("tokenweir.phase.estimated", queue.map(|queue| queue.is_estimated))
}

/// The replica was chosen: what was predicted of those that cost least, the best one first.
fn decision(record: &RequestRecord) -> impl Iterator<Item = Event> {
    let decided = record.decision.as_ref().zip(record.timings.routed);
    decided.into_iter().map(|(decision, at)| {
        let mut best = decision.ranked();
        best.truncate(SCORES);
        let backends = texts(best.iter().map(|one| one.backend.as_str()));
        let attributes = Attributes::default()
            .put("tokenweir.route.scores.backend", backends)
            .put("tokenweir.route.scores.ttft", reals(best.iter().map(|one| one.ttft)));
        event(record, "tokenweir.route_decision", at, attributes)
    })
}

/// A silence, as two events: when it was seen, and when it ended.
fn stalls(record: &RequestRecord) -> impl Iterator<Item = Event> {
    record.observed.stalls.iter().flat_map(|stall| {
        let condition = &stall.condition;
        let silent = stall.seen.saturating_duration_since(stall.since);
        let seen = Attributes::default()
            .put("tokenweir.stall.silent", seconds(silent))
            .put_some("tokenweir.backend.kv_usage", condition.kv_usage)
            .put_some("tokenweir.backend.running", condition.running.map(i64::from))
            .put_some("tokenweir.backend.waiting", condition.waiting.map(i64::from))
            .put_some("tokenweir.backend.preemptions", condition.preemptions.map(count));
        let seen = event(record, "tokenweir.stall", stall.seen, seen);
        let ended = stall.until.map(|until| {
            let whole = seconds(until.saturating_duration_since(stall.since));
            let attributes = Attributes::default().put("tokenweir.stall.duration", whole);
            event(record, "tokenweir.stall_end", until, attributes)
        });
        [Some(seen), ended].into_iter().flatten()
    })
}

/// An attempt that was followed by another.
fn retries(record: &RequestRecord) -> impl Iterator<Item = Event> {
    let failed = record.attempts.split_last().map_or(&[][..], |(_, failed)| failed);
    failed.iter().map(|attempt| {
        let attributes = Attributes::default()
            .put("tokenweir.backend.id", text(attempt.backend.as_str()))
            .put_some("error.type", failure(attempt));
        let at = attempt.ended.unwrap_or(attempt.started);
        event(record, "tokenweir.retry", at, attributes)
    })
}

fn event(record: &RequestRecord, name: &'static str, at: Instant, with: Attributes) -> Event {
    Event::new(name, moment(record, at), with.into_vec(), 0)
}

fn operation(record: &RequestRecord) -> &'static str {
    record.api.unwrap_or(Api::Other).operation()
}

fn is_cancelled(record: &RequestRecord) -> bool {
    record.outcome == Outcome::Cancelled
}
