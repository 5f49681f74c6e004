//! Builds the [`Delta`] of one event from the fields that the JSON scanner reports.

use super::choice_delta::ChoiceDelta;
use super::response_summary::ResponseSummary;
use crate::json::JsonValue;
use crate::json::members::{self, visit_members};
use crate::openai::shapes::{ERROR_EVENT_TYPE, EventOutput, ResponseField};
use crate::openai::{Delta, FinishReason, OutputKind, OutputKinds, Usage};

/// The state of the event that is being parsed.
#[derive(Debug, Default)]
pub(super) struct DeltaBuilder {
    /// The content of the event, as far as it has been read.
    delta: Delta,
    current_choice: ChoiceDelta,
    /// Number of choices in the event.
    choice_count: u32,
    /// Whether the event has a `choices` array, which may be empty.
    has_choices: bool,
    total_tokens: Option<u64>,
    status: ResponseStatus,
    /// The event type that the data states. `None`: the data states no event type.
    pub(super) event_type: Option<Box<str>>,
    /// Whether the content part that is being parsed is reasoning.
    is_reasoning: bool,
    /// Whether the event has text of a model refusal.
    is_refusal: bool,
    /// Whether an unknown field of a delta or a content block has a value.
    has_unknown_output: bool,
    /// Whether an unknown field outside deltas and content blocks has a value.
    has_unknown_field: bool,
    /// Whether the event has the first `role` member of a choice, so that it begins the choice.
    has_first_role: bool,
    /// Whether an earlier event of the response had output.
    pub(super) has_earlier_output: bool,
    /// Whether a field shows that a complete response has an answer, although the answer may be empty.
    pub(super) has_document_answer: bool,
    /// Whether the object is an error itself.
    is_error_object: bool,
    /// The code of an error whose object has no `error` field around it.
    flat_error_code: Option<Box<str>>,
}

/// The `status` of a Responses response. The reason of an incomplete response can come before or
/// after `status`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ResponseStatus {
    #[default]
    Unknown,
    Completed,
    Incomplete(Option<FinishReason>),
    /// Any other status, such as `in_progress`.
    Unfinished,
}

/// Longest id, model name or event type that is stored, in bytes.
const MAX_ID_BYTES: usize = 256;
/// Greatest token count that the gateway accepts in a response. A greater number is an error of the
/// backend and would make all later sums and means wrong.
pub const MAX_TOKEN_COUNT: u64 = 100_000_000;

// === impl DeltaBuilder ===

impl DeltaBuilder {
    /// Applies the next field of the event.
    pub(super) fn read(
        &mut self,
        field: ResponseField,
        value: JsonValue<'_>,
        summary: &mut ResponseSummary,
    ) {
        match field {
            ResponseField::Id => set_if_absent(&mut summary.id, value),
            ResponseField::Model => set_if_absent(&mut summary.model, value),
            ResponseField::EventType => set_if_absent(&mut self.event_type, value),
            ResponseField::Choices => {
                self.has_choices |= value == JsonValue::Array;
                self.has_unknown_output |= value.is_scalar_with_content();
            }
            ResponseField::Choice => self.read_choice(value, summary),
            ResponseField::Index => {
                self.current_choice.index = value.as_count().unwrap_or(0) as usize;
            }
            ResponseField::Role => self.current_choice.has_role |= value != JsonValue::Null,
            ResponseField::Output(kind @ (OutputKind::Text | OutputKind::ToolCall)) => {
                self.record_answer(kind, value, summary);
            }
            ResponseField::Output(kind) => self.current_choice.record_output(kind, value),
            ResponseField::Transcript => {
                self.has_document_answer |= matches!(value, JsonValue::Text(_));
                self.record_answer(OutputKind::Text, value, summary);
            }
            ResponseField::Answer => self.has_document_answer |= value.is_answer(),
            ResponseField::Refusal => {
                self.is_refusal |= matches!(value, JsonValue::Text(text) if !text.is_empty());
                self.record_answer(OutputKind::Text, value, summary);
            }
            ResponseField::Arguments => {
                self.current_choice.record_output(OutputKind::ToolCall, value);
                summary.search(self.current_choice.index, value);
            }
            ResponseField::Text => {
                self.has_unknown_output |= value.has_content();
                summary.capture(value);
            }
            ResponseField::Delta => {
                self.has_unknown_output |=
                    value == JsonValue::Array || value.is_scalar_with_content();
            }
            ResponseField::UnknownOutput => self.has_unknown_output |= value.has_content(),
            ResponseField::Unknown => self.has_unknown_field |= value.has_content(),
            ResponseField::ContentPart => {
                let is_reasoning = std::mem::take(&mut self.is_reasoning);
                let is_end = matches!(value, JsonValue::End { .. });
                summary.commit_or_discard_text(!(is_reasoning && is_end));
            }
            ResponseField::ContentPartType => {
                self.is_reasoning =
                    value.as_text().is_some_and(|kind| kind.starts_with("reasoning"));
            }
            ResponseField::Tokens if value == JsonValue::Array => {
                self.current_choice.tokens = Some(0);
            }
            ResponseField::Token if !matches!(value, JsonValue::End { .. }) => {
                self.current_choice.tokens = self.current_choice.tokens.map(|tokens| tokens + 1);
            }
            ResponseField::Tokens | ResponseField::Token => {}
            ResponseField::FinishReason => {
                self.current_choice.is_present = true;
                self.current_choice.finish_reason = FinishReason::of_value(value);
            }
            ResponseField::Status => {
                self.status = self.status.updated_with(value);
                let is_failed = matches!(value.as_text().as_deref(), Some("failed" | "error"));
                self.has_document_answer |= !is_failed && self.status != ResponseStatus::Unknown;
            }
            ResponseField::IncompleteReason => {
                self.status = ResponseStatus::Incomplete(FinishReason::of_value(value));
            }
            ResponseField::Usage => self.read_usage(value),
            ResponseField::Input => self.record_count(value, |usage| &mut usage.input),
            ResponseField::OutputTokens => self.record_count(value, |usage| &mut usage.output),
            ResponseField::TotalTokens => self.total_tokens = token_count(value),
            ResponseField::Cached => self.record_count(value, |usage| &mut usage.cached),
            ResponseField::CacheCreated => {
                self.record_count(value, |usage| &mut usage.cache_created);
            }
            ResponseField::Reasoning => self.record_count(value, |usage| &mut usage.reasoning),
            ResponseField::EngineMillis(place) => {
                *place(self.delta.engine.get_or_insert_default()) = value.as_millis();
            }
            ResponseField::Error => {
                // Some servers write an empty error into each event.
                if value.has_content() {
                    self.delta.error.get_or_insert_default();
                }
            }
            ResponseField::ObjectType => {
                self.is_error_object |= value.as_text().as_deref() == Some(ERROR_EVENT_TYPE);
            }
            ResponseField::FlatErrorCode => self.flat_error_code = scalar_text(value),
            ResponseField::ErrorText(place) => {
                *place(self.delta.error.get_or_insert_default()) = scalar_text(value);
            }
        }
    }

    /// Applies an element of the choices.
    fn read_choice(&mut self, value: JsonValue<'_>, summary: &mut ResponseSummary) {
        match value {
            JsonValue::Object => {
                self.current_choice = ChoiceDelta { is_present: true, ..ChoiceDelta::default() }
            }
            JsonValue::End { .. } => self.finish_choice(summary),
            // An element that is no object counts as a choice, so the array is not empty.
            _ => {
                self.choice_count += 1;
                self.has_unknown_output |= value != JsonValue::Null;
            }
        }
    }

    fn read_usage(&mut self, value: JsonValue<'_>) {
        match value {
            JsonValue::Object => drop(self.delta.usage.get_or_insert_default()),
            JsonValue::Null => self.delta.has_null_usage = true,
            JsonValue::End { .. } => {}
            _ => self.delta.malformed = true,
        }
    }

    /// Finishes a complete event: commits its choices to the summary and returns its content.
    /// `event_output`: what the type of the event says about its output.
    pub(super) fn end(
        &mut self,
        summary: &mut ResponseSummary,
        event_output: EventOutput,
        input_leaves_out_cache: bool,
    ) -> Delta {
        if self.is_error_object || event_output == EventOutput::Error {
            let error = self.delta.error.get_or_insert_default();
            error.code = error.code.take().or(self.flat_error_code.take());
        }
        self.finish_choice(summary);
        summary.commit_choices();
        summary.is_refusal |= self.is_refusal;
        self.finish_status(summary);
        self.derive_tokens_from_usage(summary);
        self.complete_usage(input_leaves_out_cache);
        let has_usage_alone = self.choice_count == 0 && self.delta.usage.is_some();
        self.add_output_of(event_output, has_usage_alone && self.has_choices);
        // Without `choices`, an unknown field can be the output.
        let has_unknown = self.has_unknown_field || self.has_unknown_output;
        self.delta.is_usage_event =
            has_usage_alone && (self.has_choices || !has_unknown) && self.delta.error.is_none();
        std::mem::take(&mut self.delta)
    }

    /// Completes the kinds of output from the type of the event and from its unknown fields. In an event
    /// that begins or ends a choice, unknown fields count as output only inside the delta: such events
    /// often have other fields that are no output.
    fn add_output_of(&mut self, event_output: EventOutput, is_usage_event: bool) {
        match event_output {
            EventOutput::Kind(kind) if self.delta.error.is_none() => {
                self.delta.output = kind.into();
            }
            EventOutput::Repetition if self.has_earlier_output => {
                self.delta.output = OutputKinds::default();
                return;
            }
            _ => {}
        }
        let is_marked = is_usage_event
            || self.has_first_role
            || self.delta.finish.is_some()
            || event_output == EventOutput::Nothing;
        let is_unknown = self.has_unknown_output || (self.has_unknown_field && !is_marked);
        if self.delta.output.is_empty() && is_unknown && self.delta.error.is_none() {
            self.delta.output.add(OutputKind::Unknown);
            self.delta.tokens = None;
        }
    }

    /// Records answer text, or an object that is part of the answer, such as a tool call.
    fn record_answer(
        &mut self,
        kind: OutputKind,
        value: JsonValue<'_>,
        summary: &mut ResponseSummary,
    ) {
        self.current_choice.record_output(kind, value);
        summary.search(self.current_choice.index, value);
        summary.capture(value);
    }

    /// Records a token count. `null` counts as absent. Any other value that is not a count makes
    /// the event malformed.
    fn record_count(&mut self, value: JsonValue<'_>, field: fn(&mut Usage) -> &mut Option<u64>) {
        match token_count(value) {
            Some(count) => *field(self.delta.usage.get_or_insert_default()) = Some(count),
            None => self.delta.malformed |= value != JsonValue::Null,
        }
    }

    /// Adds cached tokens to the input if the API excludes them, and derives a missing input count
    /// from the total.
    fn complete_usage(&mut self, input_leaves_out_cache: bool) {
        let Some(usage) = &mut self.delta.usage else { return };
        let cached = usage.cached.unwrap_or(0).saturating_add(usage.cache_created.unwrap_or(0));
        if let Some(input) = usage.input.as_mut().filter(|_| input_leaves_out_cache) {
            *input = input.saturating_add(cached);
        }
        let subtract_output = |total: u64| total.checked_sub(usage.output.unwrap_or(0));
        let total = self.total_tokens.filter(|_| !self.delta.malformed);
        usage.input = usage.input.or_else(|| total.and_then(subtract_output));
    }

    /// Finishes the current choice. [`Self::end`] calls this function too, because APIs without choices
    /// have one implicit choice.
    fn finish_choice(&mut self, summary: &mut ResponseSummary) {
        let mut choice = std::mem::take(&mut self.current_choice);
        if choice.output.is_empty() && choice.has_unspecified_output() {
            choice.output.add(OutputKind::Unspecified);
        }
        self.delta.output.add(choice.output);
        if !choice.is_present {
            return;
        }
        summary.commit_or_discard_text(choice.index == 0);
        self.delta.finish = choice.finish_reason.or(self.delta.finish);
        self.delta.tokens = match (self.choice_count, self.delta.tokens, choice.tokens) {
            (0, _, tokens) => tokens,
            (_, Some(sum), Some(tokens)) => Some(sum + tokens),
            _ => None,
        };
        self.choice_count += 1;
        self.delta.choice = choice.index;
        self.has_first_role |= choice.has_role && !summary.has_role(choice.index);
        summary.stage_choice(choice.index, choice.finish_reason, choice.has_role);
    }

    fn finish_status(&mut self, summary: &mut ResponseSummary) {
        let finish = match self.status {
            ResponseStatus::Unknown => return,
            ResponseStatus::Completed => Some(FinishReason::Stop),
            ResponseStatus::Incomplete(reason) => reason,
            ResponseStatus::Unfinished => None,
        };
        self.delta.finish = finish;
        if let Some(choice) = summary.choice(0) {
            choice.finish = finish;
        }
    }

    /// Derives the tokens of the event from continuous usage, which reports the output tokens so far with
    /// every event. The engine counts them for the event's choice only, so the output of the response is
    /// the sum over its choices.
    fn derive_tokens_from_usage(&mut self, summary: &mut ResponseSummary) {
        let Delta { choice, tokens, usage, .. } = &mut self.delta;
        if let (1, Some(Usage { output: Some(output), .. })) = (self.choice_count, usage) {
            summary.record_output_tokens(*choice, output, tokens);
        }
    }
}

// === impl ResponseStatus ===

impl ResponseStatus {
    fn updated_with(self, value: JsonValue<'_>) -> Self {
        match (self, value.as_text().as_deref()) {
            (_, None | Some("")) => self,
            (_, Some("completed")) => Self::Completed,
            (Self::Incomplete(reason), Some("incomplete")) => Self::Incomplete(reason),
            (_, Some("incomplete")) => Self::Incomplete(None),
            (_, Some(_)) => Self::Unfinished,
        }
    }
}

/// The counts in the `usage` object of a chat completion or a completion, and in the objects in it, such as
/// `prompt_tokens_details`. `null` counts as absent. Another value that is no count is stored as `None`.
pub fn read_usage(object: &[u8]) -> Usage {
    let mut usage = Usage::default();
    let mut on_member = |name: &[u8], value: &[u8]| {
        let field = match name {
            _ if value == b"null" => return,
            b"prompt_tokens" => &mut usage.input,
            b"completion_tokens" => &mut usage.output,
            b"cached_tokens" => &mut usage.cached,
            b"created_cache_tokens" => &mut usage.cache_created,
            b"reasoning_tokens" => &mut usage.reasoning,
            _ => return,
        };
        *field = members::count(value).filter(|count| *count <= MAX_TOKEN_COUNT);
    };
    let _ = visit_members(object, |member| {
        let value = &object[member.value];
        on_member(&object[member.name], value);
        let _ = visit_members(value, |detail| on_member(&value[detail.name], &value[detail.value]));
    });
    usage
}

/// The value as a token count. `None`: the value is no number from 0 to [`MAX_TOKEN_COUNT`].
fn token_count(value: JsonValue<'_>) -> Option<u64> {
    value.as_count().filter(|count| *count <= MAX_TOKEN_COUNT)
}

/// Stores a string of 1 to [`MAX_ID_BYTES`] bytes, unless a string is stored already.
fn set_if_absent(stored: &mut Option<Box<str>>, value: JsonValue<'_>) {
    if stored.is_none() {
        let is_storable =
            |text: &std::borrow::Cow<'_, str>| (1..=MAX_ID_BYTES).contains(&text.len());
        *stored = value.as_text().filter(is_storable).map(Into::into);
    }
}

fn scalar_text(value: JsonValue<'_>) -> Option<Box<str>> {
    match value {
        JsonValue::Number(raw) => Some(String::from_utf8_lossy(raw).into()),
        JsonValue::Text(_) => value.as_text().map(Into::into),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_null_in_details_replaces_no_count() {
        let usage = br#"{"cached_tokens": 5, "prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": null}}"#;
        let expected = Usage { input: Some(9), cached: Some(5), ..Usage::default() };
        assert_eq!(read_usage(usage), expected);
    }
}
