//! The inference span. Each request has at most one. It covers all attempts and the complete response.
//!
//! Only the inference span has GenAI attributes, so that a trace counts tokens once. Attribute names are those
//! of the GenAI conventions. Names of values that the conventions do not define begin with `tokenweir.`.
//! Durations are in seconds, unless the name ends with `_ms`.

use super::attributes::{
    SpanAttributes, count, host, integers, reals, seconds, text, texts, words,
};
use super::conventions::{Semconv, SpanConventions};
use super::record_values::{attempt_failure, error_type, to_wall_clock};
use super::viewer_profiles;
use opentelemetry::Value;
use opentelemetry::trace::Event;
use std::time::Instant;
use tokenweir_protocol::openai::{Api, FinishReason};
use tokenweir_request::record::{
    Attempt, NoteAttribute, NoteValue, Outcome, RecordNote, RequestIdentity, RequestPhase,
    RequestRecord, SlowCause, UninspectedReason,
};

/// Value of `gen_ai.provider.name` for a request without an attempt.
const DEFAULT_PROVIDER: &str = "vllm";
/// Maximum number of candidates with predictions in the event of the routing decision.
const MAX_RECORDED_CANDIDATES: usize = 5;

/// Whether the request has an inference span. True for an API request with an attempt or with a known model.
pub(super) fn has_inference(record: &RequestRecord) -> bool {
    let is_known = record.model.is_known();
    record.api.is_some() && (!record.attempts.is_empty() || is_known)
}

/// Returns the name of the inference span of a request.
pub(super) fn span_name(record: &RequestRecord) -> String {
    // Clients choose the names of unknown models, but the set of span names must be closed.
    format!("{} {}", operation_name(record), record.model.known_name())
}

/// Returns the attributes of the inference span of a request.
pub(super) fn span_attributes(
    record: &RequestRecord,
    conventions: &SpanConventions,
) -> SpanAttributes {
    let attributes = add_request(SpanAttributes::default(), record, conventions.semconv);
    let attributes = add_response(attributes, record, conventions.semconv);
    let attributes = add_phases(add_routing(attributes, record), record);
    let attributes = add_latency(attributes, record)
        .put_some("error.type", error_type(record).map(text))
        .put("tokenweir.outcome", record.outcome.as_str())
        .put("tokenweir.termination", record.ending())
        .put("tokenweir.closed_by", record.end.initiator().as_str())
        .put_some("tokenweir.slow_cause", record.slow.map(SlowCause::as_str))
        .put_some(
            "tokenweir.uninspected_reason",
            record
                .observed
                .uninspected_reason
                .map(UninspectedReason::as_str),
        )
        .put_some(
            "tokenweir.tier",
            Some(record.tier.as_str())
                .filter(|tier| !tier.is_empty())
                .map(text),
        )
        .put_some(
            "tokenweir.backend_wait",
            record
                .backend_wait()
                .map(|wait| Value::F64(wait.as_secs_f64())),
        )
        .put_some(
            "tokenweir.last_phase",
            is_cancelled(record).then(|| record.phase()),
        );
    let profiles = conventions.profiles.iter();
    profiles.fold(attributes, |attributes, profile| {
        viewer_profiles::attributes(*profile, attributes, record)
    })
}

/// Returns the events of the inference span of a request, ordered by time.
pub(super) fn span_events(record: &RequestRecord, conventions: &SpanConventions) -> Vec<Event> {
    let timings = &record.timings;
    let moments = [
        ("tokenweir.queued", timings.queued),
        ("tokenweir.dequeued", timings.dequeued),
        ("tokenweir.upstream_headers", timings.headers),
        ("gen_ai.first_chunk", timings.first_output),
        (
            "tokenweir.client_disconnect",
            if is_cancelled(record) {
                timings.ended
            } else {
                None
            },
        ),
    ];
    let reached = moments
        .into_iter()
        .filter_map(|(name, at)| Some((name, at?)));
    let timing_events =
        reached.map(|(name, at)| new_event(record, name, at, SpanAttributes::default()));
    let profile_events = conventions
        .profiles
        .iter()
        .filter_map(|profile| viewer_profiles::event(*profile, record));
    let gateway_events = decision_events(record)
        .chain(retry_events(record))
        .chain(timing_events)
        .chain(stall_events(record))
        .chain(chunk_timings_event(record));
    let mut events: Vec<Event> = gateway_events.chain(profile_events).collect();
    events.sort_by_key(|event| event.timestamp);
    events
}

fn add_request(
    attributes: SpanAttributes,
    record: &RequestRecord,
    semconv: Semconv,
) -> SpanAttributes {
    let options = &record.options;
    let RequestIdentity {
        user,
        session,
        conversation,
    } = &options.identity;
    let last = record.attempts.last();
    let address = last.map(|attempt| &attempt.address);
    add_parameters(attributes, record, semconv)
        .put("gen_ai.operation.name", operation_name(record))
        .put(
            "gen_ai.provider.name",
            last.map_or(DEFAULT_PROVIDER, |attempt| attempt.provider),
        )
        .put("gen_ai.request.model", text(record.model.name()))
        .put_some(
            "tokenweir.requested_model",
            record.notes.requested_model().map(text),
        )
        .put_some("gen_ai.request.stream", options.stream.then_some(true))
        .put_some("gen_ai.request.max_tokens", options.max_tokens.map(count))
        .put_some(
            "gen_ai.request.choice.count",
            options.n.filter(|n| *n != 1).map(count),
        )
        .put_some("gen_ai.conversation.id", conversation.as_deref().map(text))
        .put_some("session.id", session.as_deref().map(text))
        .put_some("user.id", user.as_deref().map(text))
        .put_some("server.address", address.map(|(name, _)| host(name)))
        .put_some("server.port", address.map(|(_, port)| i64::from(*port)))
}

/// Adds the sampling parameters of the request, such as the temperature, to the attributes of the
/// inference span.
fn add_parameters(
    attributes: SpanAttributes,
    record: &RequestRecord,
    semconv: Semconv,
) -> SpanAttributes {
    let parameters = &record.options.parameters;
    let is_latest = semconv == Semconv::Latest;
    let top_k = parameters.top_k.map(|k| {
        if is_latest {
            Value::I64(k as i64)
        } else {
            k.into()
        }
    });
    let stop_sequences = &parameters.stop_sequences;
    let attributes = attributes
        .put_some("gen_ai.request.temperature", parameters.temperature)
        .put_some("gen_ai.request.top_p", parameters.top_p)
        .put_some("gen_ai.request.top_k", top_k)
        .put_some(
            "gen_ai.request.frequency_penalty",
            parameters.frequency_penalty,
        )
        .put_some(
            "gen_ai.request.presence_penalty",
            parameters.presence_penalty,
        )
        .put_some("gen_ai.request.seed", parameters.seed)
        .put_some(
            "gen_ai.request.stop_sequences",
            (!stop_sequences.is_empty())
                .then(|| texts(stop_sequences.iter().map(|sequence| &**sequence))),
        )
        .put_some("gen_ai.output.type", parameters.output);
    if !is_latest {
        return attributes;
    }
    let previous = parameters.previous_response.as_deref();
    attributes
        .put_some("gen_ai.request.reasoning.level", parameters.reasoning)
        .put_some("gen_ai.request.previous_response.id", previous.map(text))
}

fn add_response(
    attributes: SpanAttributes,
    record: &RequestRecord,
    semconv: Semconv,
) -> SpanAttributes {
    let observed = &*record.observed;
    let usage = &observed.usage;
    let finish_reasons = observed.finish_reasons.iter();
    let has_head = record.timings.headers.is_some();
    attributes
        .put_some(
            "gen_ai.response.id",
            observed.response_id.as_deref().map(text),
        )
        .put_some(
            "gen_ai.response.model",
            observed.response_model.as_deref().map(text),
        )
        .put_some(
            "gen_ai.response.finish_reasons",
            words(finish_reasons.map(|reason| reason.map_or("error", FinishReason::as_str))),
        )
        .put_some("gen_ai.usage.input_tokens", usage.input.map(count))
        .put_some(
            "gen_ai.usage.output_tokens",
            record.reported_output().map(count),
        )
        .put_some(
            "gen_ai.usage.cache_read.input_tokens",
            usage.cached.map(count),
        )
        .put_some(
            semconv.cache_write_attribute(),
            usage.cache_created.map(count),
        )
        .put_some(
            "gen_ai.usage.reasoning.output_tokens",
            usage.reasoning.map(count),
        )
        .put_some(
            "tokenweir.usage.source",
            has_head.then(|| observed.usage_source.as_str()),
        )
        .put_some(
            "tokenweir.output_events",
            observed.is_stream.then(|| count(observed.output_events)),
        )
}

fn add_routing(attributes: SpanAttributes, record: &RequestRecord) -> SpanAttributes {
    let of_options = record.notes.iter().filter_map(RecordNote::span_attribute);
    let attributes = add_notes(attributes, of_options)
        .put("tokenweir.attempts", count(record.attempts.len() as u64))
        .put_some(
            "tokenweir.backend.id",
            record.backend().map(|backend| text(backend.as_str())),
        );
    let Some(decision) = &record.decision else {
        return attributes;
    };
    let chosen = decision.selected();
    attributes
        .put("tokenweir.route.policy", decision.policy())
        .put("tokenweir.route.reason", decision.reason())
        .put(
            "tokenweir.route.candidates",
            count(decision.candidate_count() as u64),
        )
        .put("tokenweir.route.predicted_ttft", chosen.ttft)
        .put("tokenweir.route.cached_tokens", chosen.candidate.cached)
        .put(
            "tokenweir.route.cached_source",
            chosen.candidate.cached_source.as_str(),
        )
        .put("tokenweir.route.freshness", chosen.candidate.certainty)
        .put_some(
            "tokenweir.route.kv_usage",
            decision.backend_condition.kv_usage,
        )
        .put_some(
            "tokenweir.route.waiting",
            decision.backend_condition.waiting.map(i64::from),
        )
        .put_some(
            "tokenweir.scrape_age",
            decision.backend_condition.age.map(seconds),
        )
}

fn add_latency(attributes: SpanAttributes, record: &RequestRecord) -> SpanAttributes {
    let timings = &record.timings;
    let between = |from: Option<Instant>, to: Option<Instant>| {
        Some(seconds(to?.saturating_duration_since(from?)))
    };
    let gaps = &record.observed.inter_chunk_latency;
    let stream_time = |at| record.stream_time_to(at).map(seconds);
    let write_stall = record.observed.write_stall;
    attributes
        .put_some(
            "gen_ai.response.time_to_first_chunk",
            between(timings.sent, timings.first_event),
        )
        .put_some(
            "tokenweir.ttfb",
            between(Some(timings.accepted), timings.headers),
        )
        .put_some("tokenweir.ttft", record.ttft().map(seconds))
        .put_some("tokenweir.ttft_answer", stream_time(timings.first_answer))
        .put_some(
            "tokenweir.ttft_reasoning",
            stream_time(timings.first_reasoning),
        )
        .put_some("tokenweir.ttft_text", stream_time(timings.first_text))
        .put_some(
            "tokenweir.ttft_tool_call",
            stream_time(timings.first_tool_call),
        )
        .put_some("tokenweir.tpot", record.tpot().map(seconds))
        .put_some("tokenweir.gap.mean", gaps.mean())
        .put_some("tokenweir.gap.p95", gaps.quantile(0.95))
        .put_some("tokenweir.gap.max", gaps.max())
        .put_some("tokenweir.itl", record.observed.inter_token_latency.mean())
        .put_some(
            "tokenweir.client_write_stall",
            Some(write_stall)
                .filter(|stall| !stall.is_zero())
                .map(seconds),
        )
}

/// Adds the durations of the known phases of the request to the attributes of the inference span.
fn add_phases(mut attributes: SpanAttributes, record: &RequestRecord) -> SpanAttributes {
    let phases = record.phases();
    for span in phases.iter() {
        attributes = attributes.put(span.phase.span_attribute(), seconds(span.took));
    }
    let unexplained = phases
        .get(RequestPhase::Unexplained)
        .or(phases.get(RequestPhase::Prefill));
    attributes.put_some(
        "tokenweir.phase.estimated",
        unexplained.map(|span| span.is_estimated),
    )
}

/// Returns the span event of the routing decision. It lists the backend and the predicted TTFT of the
/// candidates with the lowest costs, lowest first.
fn decision_events(record: &RequestRecord) -> impl Iterator<Item = Event> {
    let decision = record.decision.as_ref().zip(record.timings.routed);
    decision.into_iter().map(|(decision, at)| {
        let mut candidates = decision.ranked_candidates();
        candidates.truncate(MAX_RECORDED_CANDIDATES);
        let backends = texts(
            candidates
                .iter()
                .map(|candidate| candidate.backend.as_str()),
        );
        let ttfts = reals(candidates.iter().map(|candidate| candidate.ttft));
        let attributes = SpanAttributes::default()
            .put("tokenweir.route.scores.backend", backends)
            .put("tokenweir.route.scores.ttft", ttfts);
        new_event(record, "tokenweir.route_decision", at, attributes)
    })
}

/// Returns up to two span events per stall of the stream: the detection of the stall, and its end
/// if the stall ended.
fn stall_events(record: &RequestRecord) -> impl Iterator<Item = Event> {
    record.observed.stalls.iter().flat_map(|stall| {
        let condition = &stall.condition;
        let last_output_age = stall
            .detected_at
            .saturating_duration_since(stall.last_output_at);
        let detected = SpanAttributes::default()
            .put("tokenweir.stall.last_output_age", seconds(last_output_age))
            .put_some("tokenweir.backend.kv_usage", condition.kv_usage)
            .put_some(
                "tokenweir.backend.running",
                condition.running.map(i64::from),
            )
            .put_some(
                "tokenweir.backend.waiting",
                condition.waiting.map(i64::from),
            )
            .put_some(
                "tokenweir.backend.preemptions",
                condition.preemptions.map(count),
            );
        let detected = new_event(record, "tokenweir.stall", stall.detected_at, detected);
        let ended = stall.ended_at.map(|ended_at| {
            let duration = seconds(ended_at.saturating_duration_since(stall.last_output_at));
            let attributes = SpanAttributes::default().put("tokenweir.stall.duration", duration);
            new_event(record, "tokenweir.stall_end", ended_at, attributes)
        });
        [Some(detected), ended].into_iter().flatten()
    })
}

/// Returns the span event with the times of the chunks of a slow or broken stream, at the end of
/// the stream. Times are in milliseconds from the request head. `None`: the stream was neither slow
/// nor broken.
fn chunk_timings_event(record: &RequestRecord) -> Option<Event> {
    let timings = record.examined_chunk_timings()?;
    let gaps = || timings.longest_gaps();
    let attributes = SpanAttributes::default()
        .put("tokenweir.chunks.count", i64::from(timings.chunks()))
        .put("tokenweir.chunks.stride", i64::from(timings.stride()))
        .put(
            "tokenweir.chunks.samples_ms",
            integers(timings.samples_ms().iter().copied()),
        )
        .put(
            "tokenweir.chunks.gaps_ms",
            integers(gaps().map(|gap| gap.gap_ms)),
        )
        .put(
            "tokenweir.chunks.gap_ends_ms",
            integers(gaps().map(|gap| gap.ended_ms)),
        );
    let ended = record.timings.ended.unwrap_or(record.timings.accepted);
    Some(new_event(
        record,
        "tokenweir.chunk_timings",
        ended,
        attributes,
    ))
}

/// Returns the events that options add to the span of an attempt.
pub(super) fn attempt_events(record: &RequestRecord, span_id: u64) -> Vec<Event> {
    let events = record
        .notes
        .iter()
        .flat_map(|note| note.attempt_events(span_id));
    let events = events.map(|event| {
        let attributes = add_notes(SpanAttributes::default(), event.attributes);
        new_event(record, event.name, event.at, attributes)
    });
    events.collect()
}

/// Adds the attributes from the notes of options.
fn add_notes(
    attributes: SpanAttributes,
    of_options: impl IntoIterator<Item = NoteAttribute>,
) -> SpanAttributes {
    of_options
        .into_iter()
        .fold(attributes, |attributes, NoteAttribute { name, value }| {
            let value = match value {
                NoteValue::Text(text) => text.into(),
                NoteValue::Foreign(text) => text.into(),
                NoteValue::Count(number) => count(number),
                NoteValue::Seconds(seconds) => Value::F64(seconds),
            };
            attributes.put(name, value)
        })
}

/// Returns one span event for each attempt after which the request was retried.
fn retry_events(record: &RequestRecord) -> impl Iterator<Item = Event> {
    let is_of_option = |attempt: &Attempt| {
        record
            .notes
            .iter()
            .any(|note| !note.attempt_events(attempt.span_id).is_empty())
    };
    let pairs = record
        .attempts
        .windows(2)
        .filter_map(|pair| pair.first().zip(pair.last()));
    let retried = pairs.filter(move |(_, next)| !is_of_option(next));
    retried.map(|(attempt, _)| {
        let attributes = SpanAttributes::default()
            .put("tokenweir.backend.id", text(attempt.backend.as_str()))
            .put_some("error.type", attempt_failure(attempt));
        let at = attempt.ended.unwrap_or(attempt.started);
        new_event(record, "tokenweir.retry", at, attributes)
    })
}

fn new_event(
    record: &RequestRecord,
    name: &'static str,
    at: Instant,
    attributes: SpanAttributes,
) -> Event {
    Event::new(name, to_wall_clock(record, at), attributes.into_vec(), 0)
}

fn operation_name(record: &RequestRecord) -> &'static str {
    record.api.unwrap_or(Api::Other).operation()
}

fn is_cancelled(record: &RequestRecord) -> bool {
    record.outcome == Outcome::Cancelled
}
