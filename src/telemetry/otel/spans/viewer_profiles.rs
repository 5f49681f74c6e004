//! Additional span attributes and events for some trace viewers. The viewers take the time to first
//! token and the numbers of tokens from them.

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

/// The additional event of the inference span for a viewer. `None`: the viewer has no such event,
/// or the response had no output.
pub(super) fn event(profile: ViewerProfile, record: &RequestRecord) -> Option<Event> {
    let is_open_inference = profile == ViewerProfile::OpenInference;
    let first_output = record.timings.first_output.filter(|_| is_open_inference)?;
    Some(Event::new(FIRST_TOKEN_EVENT_NAME, to_wall_clock(record, first_output), Vec::new(), 0))
}

fn add_langfuse(attributes: SpanAttributes, record: &RequestRecord) -> SpanAttributes {
    // The start time is quoted, because older versions of Langfuse parse it as JSON. Newer versions
    // accept both forms.
    let start_time = record.timings.first_output.map(|first| to_wall_clock(record, first));
    let start_time = start_time.map(|at| format!("\"{}\"", humantime::format_rfc3339_micros(at)));
    attributes
        .put("langfuse.observation.type", "generation")
        .put_some("langfuse.observation.completion_start_time", start_time)
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
