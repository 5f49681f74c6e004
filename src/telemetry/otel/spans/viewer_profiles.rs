//! Additional span attributes and events for some viewers, which fill their columns for time to
//! first token and tokens from them.

use super::attributes::{SpanAttributes, count, text};
use super::conventions::ViewerProfile;
use super::record_values::to_wall_clock;
use opentelemetry::trace::Event;
use tokenweir_core::record::RequestRecord;

/// The name of the first-token event in `OpenInference`.
const FIRST_TOKEN_EVENT_NAME: &str = "First Token Stream Event";

/// Adds the attributes of a viewer to the inference span.
pub(super) fn attributes(
    profile: ViewerProfile,
    attributes: SpanAttributes,
    record: &RequestRecord,
) -> SpanAttributes {
    match profile {
        ViewerProfile::Langfuse => add_langfuse(attributes, record),
        ViewerProfile::OpenInference => add_open_inference(attributes, record),
    }
}

/// The additional event of a viewer on the inference span.
pub(super) fn event(profile: ViewerProfile, record: &RequestRecord) -> Option<Event> {
    let first = record.timings.first_output.filter(|_| profile == ViewerProfile::OpenInference)?;
    Some(Event::new(FIRST_TOKEN_EVENT_NAME, to_wall_clock(record, first), Vec::new(), 0))
}

fn add_langfuse(attributes: SpanAttributes, record: &RequestRecord) -> SpanAttributes {
    // The value is quoted, because older versions of Langfuse parse it as JSON. Newer versions
    // accept both forms.
    let first = record.timings.first_output.map(|first| to_wall_clock(record, first));
    let first = first.map(|at| format!("\"{}\"", humantime::format_rfc3339_micros(at)));
    attributes
        .put("langfuse.observation.type", "generation")
        .put_some("langfuse.observation.completion_start_time", first)
}

fn add_open_inference(attributes: SpanAttributes, record: &RequestRecord) -> SpanAttributes {
    let usage = &record.observed.usage;
    let total = usage.input.zip(usage.output).map(|(input, output)| input + output);
    let model = record.observed.response_model.as_deref().unwrap_or(record.model.name());
    attributes
        .put("openinference.span.kind", "LLM")
        .put("llm.model_name", text(model))
        .put_some("llm.token_count.prompt", usage.input.map(count))
        .put_some("llm.token_count.completion", usage.output.map(count))
        .put_some("llm.token_count.total", total.map(count))
        .put_some("llm.token_count.prompt_details.cache_read", usage.cached.map(count))
        .put_some("llm.token_count.prompt_details.cache_write", usage.cache_created.map(count))
        .put_some("llm.token_count.completion_details.reasoning", usage.reasoning.map(count))
}
