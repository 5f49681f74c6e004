//! What viewers read besides the conventions, so that their columns for the time to first token and
//! for tokens are filled from the same span.

use super::attributes::{Attributes, count, text};
use super::spans::moment;
use super::style::Profile;
use opentelemetry::trace::Event;
use tokenweir_core::record::RequestRecord;

/// The event by which `OpenInference` knows the first token.
const FIRST_TOKEN: &str = "First Token Stream Event";

/// Adds what a viewer wants on the span of the inference.
pub(super) fn attributes(
    profile: Profile,
    attributes: Attributes,
    record: &RequestRecord,
) -> Attributes {
    match profile {
        Profile::Langfuse => langfuse(attributes, record),
        Profile::OpenInference => open_inference(attributes, record),
    }
}

/// The events that a viewer wants there.
pub(super) fn event(profile: Profile, record: &RequestRecord) -> Option<Event> {
    let first = record.timings.first_output.filter(|_| profile == Profile::OpenInference)?;
    Some(Event::new(FIRST_TOKEN, moment(record, first), Vec::new(), 0))
}

fn langfuse(attributes: Attributes, record: &RequestRecord) -> Attributes {
    // In quotes: its older versions take the value for JSON, its newer ones take both.
    let first = record.timings.first_output.map(|first| moment(record, first));
    let first = first.map(|at| format!("\"{}\"", humantime::format_rfc3339_micros(at)));
    attributes
        .put("langfuse.observation.type", "generation")
        .put_some("langfuse.observation.completion_start_time", first)
}

fn open_inference(attributes: Attributes, record: &RequestRecord) -> Attributes {
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
