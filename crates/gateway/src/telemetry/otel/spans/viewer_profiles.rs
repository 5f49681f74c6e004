//! Additional span attributes and events for some trace viewers. The viewers read from them the time to first
//! token, the numbers of tokens, the user and the session.
//!
//! Langfuse reads spans in `packages/shared/src/server/otel/OtelIngestionProcessor.ts` of `langfuse/langfuse`,
//! commit 0030ed8fe732.

use super::attributes::{SpanAttributes, put_all, text};
use super::conventions::{SpanConventions, ViewerProfile};
use super::record_values::to_wall_clock;
use tokenweir_request::record::{RequestIdentity, RequestRecord};

pub(super) fn add(profile: ViewerProfile, attributes: &mut SpanAttributes, record: &RequestRecord) {
    match profile {
        ViewerProfile::Langfuse => add_langfuse(attributes, record),
        ViewerProfile::OpenInference => add_open_inference(attributes, record),
    }
}

/// Adds the user and the session to a span of any kind. Langfuse reads both from each span, and a span without
/// them is missing in the Langfuse views of a user or a session. For a span with a parent, Langfuse ignores
/// `gen_ai.conversation.id` (`hasTraceUpdates`). So for a request without a session, the conversation is
/// written as the session.
pub(super) fn add_identity(
    conventions: &SpanConventions,
    attributes: &mut SpanAttributes,
    record: &RequestRecord,
) {
    if !conventions.profiles.contains(&ViewerProfile::Langfuse) {
        return;
    }
    let RequestIdentity {
        user,
        session,
        conversation,
    } = &record.options.identity;
    let session = session.as_deref().or(conversation.as_deref());
    put_all!(attributes, {
        "langfuse.user.id" => user.as_deref().map(text),
        "langfuse.session.id" => session.map(text),
    });
}

fn add_langfuse(attributes: &mut SpanAttributes, record: &RequestRecord) {
    // Older versions of Langfuse parse the start time as JSON, so it is quoted. Newer versions accept both
    // forms.
    let start_time = record
        .timings
        .first_output
        .map(|first| to_wall_clock(record, first));
    let start_time = start_time.map(|at| format!("\"{}\"", humantime::format_rfc3339_micros(at)));
    put_all!(attributes, {
        "langfuse.observation.type" => "generation",
        "langfuse.observation.completion_start_time" => start_time,
        "langfuse.observation.usage_details" => langfuse_usage(record),
    });
}

/// Returns the numbers of tokens as Langfuse expects them: each token belongs to one number only, so `input`
/// does not include cached tokens. From the attributes of the GenAI conventions alone, Langfuse would count
/// cached and reasoning tokens twice. `None`: the engine did not report the input tokens or the output tokens.
fn langfuse_usage(record: &RequestRecord) -> Option<String> {
    let usage = &record.observed.usage;
    let input = usage.input?;
    let output = usage.output?;
    let cached = usage.cached.unwrap_or_default();
    let created = usage.cache_created.unwrap_or_default();
    let reasoning = usage.reasoning.unwrap_or_default();
    let parts = [
        (
            "input",
            input.saturating_sub(cached.saturating_add(created)),
        ),
        ("input_cached_tokens", cached),
        ("input_cache_creation", created),
        ("output", output.saturating_sub(reasoning)),
        ("output_reasoning_tokens", reasoning),
        ("total", input.saturating_add(output)),
    ];
    let parts = parts.into_iter().filter(|(_, tokens)| *tokens > 0);
    Some(parts.collect::<serde_json::Value>().to_string())
}

fn add_open_inference(attributes: &mut SpanAttributes, record: &RequestRecord) {
    let usage = &record.observed.usage;
    let total = usage
        .input
        .zip(usage.output)
        .map(|(input, output)| input + output);
    let model = record
        .observed
        .response_model
        .as_deref()
        .unwrap_or(record.model.name());
    put_all!(attributes, {
        "openinference.span.kind" => "LLM",
        "llm.model_name" => text(model),
        "llm.token_count.prompt" => usage.input,
        "llm.token_count.completion" => usage.output,
        "llm.token_count.total" => total,
        "llm.token_count.prompt_details.cache_read" => usage.cached,
        "llm.token_count.prompt_details.cache_write" => usage.cache_created,
        "llm.token_count.completion_details.reasoning" => usage.reasoning,
    });
}
