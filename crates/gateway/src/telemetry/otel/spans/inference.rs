//! The inference span. Each request has at most one. It covers all attempts and the complete response.
//!
//! Only the inference span has GenAI attributes, so that a trace counts tokens once. Attribute names are those
//! of the GenAI conventions. Names of values that the conventions do not define begin with `tokenweir.`.
//! Durations are in seconds, unless the name ends with `_ms`.

use super::attributes::{SpanAttributes, host, put_all, text, texts, words};
use super::conventions::{Semconv, SpanConventions};
use super::record_values::error_type;
use super::viewer_profiles;
use opentelemetry::Value;
use std::time::Instant;
use tokenweir_protocol::openai::{Api, FinishReason};
use tokenweir_request::record::{
    NoteAttribute, NoteValue, Outcome, RecordNote, RequestIdentity, RequestPhase, RequestRecord,
    SlowCause, UninspectedReason,
};

/// Value of `gen_ai.provider.name` for a request without an attempt.
const DEFAULT_PROVIDER: &str = "vllm";

/// Whether the request has an inference span. True for an API request with an attempt or with a known model.
pub(super) fn has_inference(record: &RequestRecord) -> bool {
    let is_known = record.model.is_known();
    record.api.is_some() && (!record.attempts.is_empty() || is_known)
}

pub(super) fn span_name(record: &RequestRecord) -> String {
    // Clients choose the names of unknown models, but the set of span names must be closed.
    format!("{} {}", operation_name(record), record.model.known_name())
}

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

pub(super) fn add_notes(
    attributes: &mut SpanAttributes,
    notes: impl IntoIterator<Item = NoteAttribute>,
) {
    for NoteAttribute { name, value } in notes {
        match value {
            NoteValue::Text(text) => attributes.put(name, text),
            NoteValue::Foreign(text) => attributes.put(name, text),
            NoteValue::Count(count) => attributes.put(name, count),
            NoteValue::Seconds(seconds) => attributes.put(name, seconds),
        }
    }
}

fn operation_name(record: &RequestRecord) -> &'static str {
    record.api.unwrap_or(Api::Other).operation()
}

pub(super) fn is_cancelled(record: &RequestRecord) -> bool {
    record.outcome == Outcome::Cancelled
}
