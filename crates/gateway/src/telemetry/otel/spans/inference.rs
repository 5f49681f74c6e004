//! The inference span. Each request has at most one. It covers all attempts and the complete response.
//!
//! Only the inference span has GenAI attributes, so that a trace counts tokens once. Attribute names are those
//! of the GenAI conventions. Names of values that the conventions do not define begin with `tokenweir.`.
//! Durations are in seconds, unless the name ends with `_ms`.

use super::attributes::{SpanAttributes, host, integers, put_all, reals, text, texts, words};
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
    let mut attributes = SpanAttributes::default();
    add_parameters(&mut attributes, record, conventions.semconv);
    add_request(&mut attributes, record);
    add_response(&mut attributes, record, conventions.semconv);
    add_routing(&mut attributes, record);
    add_phases(&mut attributes, record);
    add_latency(&mut attributes, record);
    add_end(&mut attributes, record);
    for profile in &conventions.profiles {
        viewer_profiles::add(*profile, &mut attributes, record);
    }
    attributes
}

fn add_end(attributes: &mut SpanAttributes, record: &RequestRecord) {
    let tier = record.tier.as_str();
    let uninspected = record.observed.uninspected_reason;
    put_all!(attributes, {
        "error.type" => error_type(record).map(text),
        "tokenweir.outcome" => record.outcome.as_str(),
        "tokenweir.termination" => record.ending(),
        "tokenweir.closed_by" => record.end.initiator().as_str(),
        "tokenweir.slow_cause" => record.slow.map(SlowCause::as_str),
        "tokenweir.uninspected_reason" => uninspected.map(UninspectedReason::as_str),
        "tokenweir.tier" => (!tier.is_empty()).then(|| text(tier)),
        "tokenweir.backend_wait" => record.backend_wait(),
        "tokenweir.last_phase" => is_cancelled(record).then(|| record.phase()),
    });
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

fn add_request(attributes: &mut SpanAttributes, record: &RequestRecord) {
    let options = &record.options;
    let RequestIdentity {
        user,
        session,
        conversation,
    } = &options.identity;
    let last = record.attempts.last();
    let address = last.map(|attempt| &attempt.address);
    put_all!(attributes, {
        "gen_ai.operation.name" => operation_name(record),
        "gen_ai.provider.name" => last.map_or(DEFAULT_PROVIDER, |attempt| attempt.provider),
        "gen_ai.request.model" => text(record.model.name()),
        "tokenweir.requested_model" => record.notes.requested_model().map(text),
        "gen_ai.request.stream" => options.stream.then_some(true),
        "gen_ai.request.max_tokens" => options.max_tokens,
        "gen_ai.request.choice.count" => options.n.filter(|n| *n != 1),
        "gen_ai.conversation.id" => conversation.as_deref().map(text),
        "session.id" => session.as_deref().map(text),
        "user.id" => user.as_deref().map(text),
        "server.address" => address.map(|(name, _)| host(name)),
        "server.port" => address.map(|(_, port)| *port),
    });
}

/// Adds the sampling parameters of the request, such as the temperature, to the attributes of the
/// inference span.
fn add_parameters(attributes: &mut SpanAttributes, record: &RequestRecord, semconv: Semconv) {
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
    let stop_sequences = (!stop_sequences.is_empty())
        .then(|| texts(stop_sequences.iter().map(|sequence| &**sequence)));
    put_all!(attributes, {
        "gen_ai.request.temperature" => parameters.temperature,
        "gen_ai.request.top_p" => parameters.top_p,
        "gen_ai.request.top_k" => top_k,
        "gen_ai.request.frequency_penalty" => parameters.frequency_penalty,
        "gen_ai.request.presence_penalty" => parameters.presence_penalty,
        "gen_ai.request.seed" => parameters.seed,
        "gen_ai.request.stop_sequences" => stop_sequences,
        "gen_ai.output.type" => parameters.output,
    });
    if is_latest {
        let previous = parameters.previous_response.as_deref();
        put_all!(attributes, {
            "gen_ai.request.reasoning.level" => parameters.reasoning,
            "gen_ai.request.previous_response.id" => previous.map(text),
        });
    }
}

fn add_response(attributes: &mut SpanAttributes, record: &RequestRecord, semconv: Semconv) {
    let observed = &*record.observed;
    let usage = &observed.usage;
    let reasons = observed.finish_reasons.iter();
    let reasons = reasons.map(|reason| reason.map_or("error", FinishReason::as_str));
    let has_head = record.timings.headers.is_some();
    put_all!(attributes, {
        "gen_ai.response.id" => observed.response_id.as_deref().map(text),
        "gen_ai.response.model" => observed.response_model.as_deref().map(text),
        "gen_ai.response.finish_reasons" => words(reasons),
        "gen_ai.usage.input_tokens" => usage.input,
        "gen_ai.usage.output_tokens" => record.reported_output(),
        "gen_ai.usage.cache_read.input_tokens" => usage.cached,
        semconv.cache_write_attribute() => usage.cache_created,
        "gen_ai.usage.reasoning.output_tokens" => usage.reasoning,
        "tokenweir.usage.source" => has_head.then(|| observed.usage_source.as_str()),
        "tokenweir.output_events" => observed.is_stream.then_some(observed.output_events),
    });
}

fn add_routing(attributes: &mut SpanAttributes, record: &RequestRecord) {
    let of_options = record.notes.iter().filter_map(RecordNote::span_attribute);
    add_notes(attributes, of_options);
    put_all!(attributes, {
        "tokenweir.attempts" => record.attempts.len(),
        "tokenweir.backend.id" => record.backend().map(|backend| text(backend.as_str())),
    });
    let Some(decision) = &record.decision else {
        return;
    };
    let chosen = decision.selected();
    let condition = &decision.backend_condition;
    put_all!(attributes, {
        "tokenweir.route.policy" => decision.policy(),
        "tokenweir.route.reason" => decision.reason(),
        "tokenweir.route.candidates" => decision.candidate_count(),
        "tokenweir.route.predicted_ttft" => chosen.ttft,
        "tokenweir.route.cached_tokens" => chosen.candidate.cached,
        "tokenweir.route.cached_source" => chosen.candidate.cached_source.as_str(),
        "tokenweir.route.freshness" => chosen.candidate.certainty,
        "tokenweir.route.kv_usage" => condition.kv_usage,
        "tokenweir.route.waiting" => condition.waiting,
        "tokenweir.scrape_age" => condition.age,
    });
}

fn add_latency(attributes: &mut SpanAttributes, record: &RequestRecord) {
    let timings = &record.timings;
    let between =
        |from: Option<Instant>, to: Option<Instant>| Some(to?.saturating_duration_since(from?));
    let gaps = &record.observed.inter_chunk_latency;
    let write_stall = record.observed.write_stall;
    put_all!(attributes, {
        "gen_ai.response.time_to_first_chunk" => between(timings.sent, timings.first_event),
        "tokenweir.ttfb" => between(Some(timings.accepted), timings.headers),
        "tokenweir.ttft" => record.ttft(),
        "tokenweir.ttft_answer" => record.stream_time_to(timings.first_answer),
        "tokenweir.ttft_reasoning" => record.stream_time_to(timings.first_reasoning),
        "tokenweir.ttft_text" => record.stream_time_to(timings.first_text),
        "tokenweir.ttft_tool_call" => record.stream_time_to(timings.first_tool_call),
        "tokenweir.tpot" => record.tpot(),
        "tokenweir.gap.mean" => gaps.mean(),
        "tokenweir.gap.p95" => gaps.quantile(0.95),
        "tokenweir.gap.max" => gaps.max(),
        "tokenweir.itl" => record.observed.inter_token_latency.mean(),
        "tokenweir.client_write_stall" => (!write_stall.is_zero()).then_some(write_stall),
    });
}

/// Adds the durations of the known phases of the request to the attributes of the inference span.
fn add_phases(attributes: &mut SpanAttributes, record: &RequestRecord) {
    let phases = record.phases();
    for span in phases.iter() {
        attributes.put(span.phase.span_attribute(), span.took);
    }
    let unexplained = phases
        .get(RequestPhase::Unexplained)
        .or(phases.get(RequestPhase::Prefill));
    attributes.put(
        "tokenweir.phase.estimated",
        unexplained.map(|span| span.is_estimated),
    );
}

/// Returns the span event of the routing decision. It lists the backend and the predicted TTFT of the
/// candidates with the lowest costs, lowest first.
fn decision_events(record: &RequestRecord) -> impl Iterator<Item = Event> {
    let decision = record.decision.as_ref().zip(record.timings.routed);
    decision.into_iter().map(|(decision, at)| {
        let mut candidates = decision.ranked_candidates();
        candidates.truncate(MAX_RECORDED_CANDIDATES);
        let backends = candidates
            .iter()
            .map(|candidate| candidate.backend.as_str());
        let ttfts = candidates.iter().map(|candidate| candidate.ttft);
        let mut attributes = SpanAttributes::default();
        put_all!(attributes, {
            "tokenweir.route.scores.backend" => texts(backends),
            "tokenweir.route.scores.ttft" => reals(ttfts),
        });
        new_event(record, "tokenweir.route_decision", at, attributes)
    })
}

/// Returns up to two span events per stall of the stream: the detection of the stall, and its end
/// if the stall ended.
fn stall_events(record: &RequestRecord) -> impl Iterator<Item = Event> {
    record.observed.stalls.iter().flat_map(|stall| {
        let condition = &stall.condition;
        let since_output = |at: Instant| at.saturating_duration_since(stall.last_output_at);
        let mut detected = SpanAttributes::default();
        put_all!(detected, {
            "tokenweir.stall.last_output_age" => since_output(stall.detected_at),
            "tokenweir.backend.kv_usage" => condition.kv_usage,
            "tokenweir.backend.running" => condition.running,
            "tokenweir.backend.waiting" => condition.waiting,
            "tokenweir.backend.preemptions" => condition.preemptions,
        });
        let detected = new_event(record, "tokenweir.stall", stall.detected_at, detected);
        let ended = stall.ended_at.map(|ended_at| {
            let mut attributes = SpanAttributes::default();
            attributes.put("tokenweir.stall.duration", since_output(ended_at));
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
    let mut attributes = SpanAttributes::default();
    put_all!(attributes, {
        "tokenweir.chunks.count" => timings.chunks(),
        "tokenweir.chunks.stride" => timings.stride(),
        "tokenweir.chunks.samples_ms" => integers(timings.samples_ms().iter().copied()),
        "tokenweir.chunks.gaps_ms" => integers(gaps().map(|gap| gap.gap_ms)),
        "tokenweir.chunks.gap_ends_ms" => integers(gaps().map(|gap| gap.ended_ms)),
    });
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
        let mut attributes = SpanAttributes::default();
        add_notes(&mut attributes, event.attributes);
        new_event(record, event.name, event.at, attributes)
    });
    events.collect()
}

/// Adds the attributes from the notes of options.
fn add_notes(attributes: &mut SpanAttributes, notes: impl IntoIterator<Item = NoteAttribute>) {
    for NoteAttribute { name, value } in notes {
        match value {
            NoteValue::Text(text) => attributes.put(name, text),
            NoteValue::Foreign(text) => attributes.put(name, text),
            NoteValue::Count(count) => attributes.put(name, count),
            NoteValue::Seconds(seconds) => attributes.put(name, seconds),
        }
    }
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
        let mut attributes = SpanAttributes::default();
        put_all!(attributes, {
            "tokenweir.backend.id" => text(attempt.backend.as_str()),
            "error.type" => attempt_failure(attempt),
        });
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
