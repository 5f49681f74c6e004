//! Builds the [`Delta`] of one event from the fields that the JSON scanner reports.

use super::choice_delta::ChoiceDelta;
use super::response_summary::ResponseSummary;
use super::usage::token_count;
use crate::json::JsonValue;
use crate::openai::shapes::{ERROR_EVENT_TYPE, EventOutput, ResponseField};
use crate::openai::{
    Delta, EngineError, FinishReason, InBandError, OutputKind, OutputKinds, Usage,
};

/// The state of the event that is being parsed.
#[derive(Debug, Default)]
pub(super) struct DeltaBuilder {
    /// The content of the event that was read so far.
    delta: Delta,
    current_choice: ChoiceDelta,
    choice_count: u32,
    /// Whether the event has a `choices` array, which may be empty.
    has_choices: bool,
    total_tokens: Option<u64>,
    status: ResponseStatus,
    /// The event type that the data states. `None`: the data states no event type.
    pub event_type: Option<Box<str>>,
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
    pub has_earlier_output: bool,
    /// Whether a field shows that a complete response has an answer, even if the answer is empty.
    pub has_document_answer: bool,
    /// Whether the type of the whole object says that it is an error.
    is_error_object: bool,
    /// The error code, if the event has an error without an enclosing `error` object.
    flat_error_code: Option<Box<str>>,
    /// The topic of an error message.
    error_about: Option<EngineError>,
}

/// The `status` of a Responses response. The reason of an incomplete response can precede or follow `status`,
/// so both are stored.
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

impl DeltaBuilder {
    /// Applies the next field of the event.
    pub(super) fn read(
        &mut self,
        field: ResponseField,
        value: JsonValue<'_>,
        summary: &mut ResponseSummary,
    ) {
        match field {
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
            ResponseField::Transcript => self.read_transcript(value, summary),
            ResponseField::Answer => self.has_document_answer |= value.is_answer(),
            ResponseField::Refusal => self.read_refusal(value, summary),
            ResponseField::Arguments => {
                self.current_choice
                    .record_output(OutputKind::ToolCall, value);
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
            ResponseField::ContentPart => self.read_content_part(value, summary),
            ResponseField::ContentPartType => self.is_reasoning = is_reasoning_type(value),
            ResponseField::Tokens => self.current_choice.begin_tokens(value),
            ResponseField::Token => self.current_choice.count_token(value),
            ResponseField::FinishReason => self.current_choice.finish(value),
            _ => self.read_metadata(field, value, summary),
        }
    }

    /// Applies a field with metadata of the response.
    fn read_metadata(
        &mut self,
        field: ResponseField,
        value: JsonValue<'_>,
        summary: &mut ResponseSummary,
    ) {
        match field {
            ResponseField::Id => set_if_absent(&mut summary.id, value),
            ResponseField::Model => set_if_absent(&mut summary.model, value),
            ResponseField::EventType => set_if_absent(&mut self.event_type, value),
            ResponseField::Status => self.read_status(value),
            ResponseField::IncompleteReason => {
                self.status = ResponseStatus::Incomplete(FinishReason::of_value(value));
            }
            ResponseField::Usage => self.read_usage(value),
            ResponseField::InputTokens
            | ResponseField::OutputTokens
            | ResponseField::CachedTokens
            | ResponseField::CacheCreatedTokens
            | ResponseField::ReasoningTokens => self.read_usage_count(field, value),
            ResponseField::TotalTokens => self.total_tokens = token_count(value),
            ResponseField::QueueMillis
            | ResponseField::PrefillMillis
            | ResponseField::DecodeMillis => self.read_engine_time(field, value),
            ResponseField::Error => self.read_error(value),
            ResponseField::ObjectType => {
                self.is_error_object |= value.as_text().as_deref() == Some(ERROR_EVENT_TYPE);
            }
            ResponseField::FlatErrorCode => self.flat_error_code = scalar_text(value),
            ResponseField::ErrorCode => self.error().code = scalar_text(value),
            ResponseField::ErrorType => self.error().kind = scalar_text(value),
            ResponseField::ErrorMessage => {
                if let JsonValue::Text(text) = value {
                    self.error_about = EngineError::of_message(text.prefix());
                }
            }
            // `read` applies the content.
            _ => {}
        }
    }

    fn read_transcript(&mut self, value: JsonValue<'_>, summary: &mut ResponseSummary) {
        self.has_document_answer |= matches!(value, JsonValue::Text(_));
        self.record_answer(OutputKind::Text, value, summary);
    }

    fn read_refusal(&mut self, value: JsonValue<'_>, summary: &mut ResponseSummary) {
        self.is_refusal |= matches!(value, JsonValue::Text(text) if !text.is_empty());
        self.record_answer(OutputKind::Text, value, summary);
    }

    /// Applies an element of the choices.
    fn read_choice(&mut self, value: JsonValue<'_>, summary: &mut ResponseSummary) {
        match value {
            JsonValue::Object => {
                self.current_choice = ChoiceDelta {
                    is_present: true,
                    ..ChoiceDelta::default()
                }
            }
            JsonValue::End { .. } => self.finish_choice(summary),
            // The array is not empty even if its element is not an object.
            _ => {
                self.choice_count += 1;
                self.has_unknown_output |= value != JsonValue::Null;
            }
        }
    }

    /// Applies the beginning or the end of a content part.
    fn read_content_part(&mut self, value: JsonValue<'_>, summary: &mut ResponseSummary) {
        let is_reasoning = std::mem::take(&mut self.is_reasoning);
        let is_end = matches!(value, JsonValue::End { .. });
        summary.commit_or_discard_text(!(is_reasoning && is_end));
    }

    fn read_status(&mut self, value: JsonValue<'_>) {
        self.status = self.status.updated_with(value);
        let is_failed = matches!(value.as_text().as_deref(), Some("failed" | "error"));
        self.has_document_answer |= !is_failed && self.status != ResponseStatus::Unknown;
    }

    fn read_usage(&mut self, value: JsonValue<'_>) {
        match value {
            JsonValue::Object => drop(self.delta.usage.get_or_insert_default()),
            JsonValue::Null => self.delta.has_null_usage = true,
            JsonValue::End { .. } => {}
            _ => self.delta.malformed = true,
        }
    }

    /// Records a token count. `null` counts as absent. The event is malformed if the value is neither `null`
    /// nor a count.
    fn read_usage_count(&mut self, field: ResponseField, value: JsonValue<'_>) {
        let Some(tokens) = token_count(value) else {
            self.delta.malformed |= value != JsonValue::Null;
            return;
        };
        let usage = self.delta.usage.get_or_insert_default();
        let stored = match field {
            ResponseField::InputTokens => &mut usage.input,
            ResponseField::OutputTokens => &mut usage.output,
            ResponseField::CachedTokens => &mut usage.cached,
            ResponseField::CacheCreatedTokens => &mut usage.cache_created,
            _ => &mut usage.reasoning,
        };
        *stored = Some(tokens);
    }

    fn read_engine_time(&mut self, field: ResponseField, value: JsonValue<'_>) {
        let times = self.delta.engine.get_or_insert_default();
        let stored = match field {
            ResponseField::QueueMillis => &mut times.queue,
            ResponseField::PrefillMillis => &mut times.prefill,
            _ => &mut times.decode,
        };
        *stored = value.as_millis();
    }

    fn read_error(&mut self, value: JsonValue<'_>) {
        // Some servers write an empty error into each event, which is not an error.
        if value.has_content() {
            self.error();
        }
    }

    fn error(&mut self) -> &mut InBandError {
        self.delta.error.get_or_insert_default()
    }

    /// Finishes a complete event: commits its choices to the summary and returns its content. `event_output`:
    /// the output that the type of the event implies.
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
        let about = self.error_about.take();
        if let Some(error) = &mut self.delta.error {
            error.about = about;
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

    /// Completes the kinds of output from the type of the event and from its unknown fields. An event that
    /// begins or ends a choice often has further fields without output, so unknown fields outside its delta do
    /// not count.
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

    /// Records a text of the answer, or an object that is part of the answer, such as a tool call.
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

    /// Adds cached tokens to the input count if the API excludes them from it. Derives a missing input count
    /// from the total.
    fn complete_usage(&mut self, input_leaves_out_cache: bool) {
        let Some(usage) = &mut self.delta.usage else {
            return;
        };
        let cached = usage
            .cached
            .unwrap_or(0)
            .saturating_add(usage.cache_created.unwrap_or(0));
        if input_leaves_out_cache && let Some(input) = &mut usage.input {
            *input = input.saturating_add(cached);
        }
        if usage.input.is_none()
            && !self.delta.malformed
            && let Some(total) = self.total_tokens
        {
            usage.input = total.checked_sub(usage.output.unwrap_or(0));
        }
    }

    /// Finishes the current choice. [`Self::end`] also calls this function, because an API without choices has
    /// one implicit choice.
    fn finish_choice(&mut self, summary: &mut ResponseSummary) {
        let mut choice = std::mem::take(&mut self.current_choice);
        let has_output = !choice.output.is_empty() || choice.has_tokens();
        if choice.output.is_empty() && (has_output || choice.may_hold_text_back()) {
            choice.output.add(OutputKind::Unspecified);
        }
        if !choice.output.is_empty() {
            let is_first = self.delta.output.is_empty();
            self.delta.is_empty_text = !has_output && (is_first || self.delta.is_empty_text);
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

    /// Derives the tokens of the event from continuous usage, which is the number of output tokens so far in
    /// every event. The engine counts the tokens of the event's choice only, so the output of the response is
    /// the sum over its choices.
    fn derive_tokens_from_usage(&mut self, summary: &mut ResponseSummary) {
        let Delta {
            choice,
            tokens,
            usage,
            ..
        } = &mut self.delta;
        if let (
            1,
            Some(Usage {
                output: Some(output),
                ..
            }),
        ) = (self.choice_count, usage)
        {
            summary.record_output_tokens(*choice, output, tokens);
        }
    }
}

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

/// Stores a string of 1 to [`MAX_ID_BYTES`] bytes, unless a string is stored already.
fn set_if_absent(stored: &mut Option<Box<str>>, value: JsonValue<'_>) {
    if stored.is_none() {
        let is_storable =
            |text: &std::borrow::Cow<'_, str>| (1..=MAX_ID_BYTES).contains(&text.len());
        *stored = value.as_text().filter(is_storable).map(Into::into);
    }
}

fn is_reasoning_type(value: JsonValue<'_>) -> bool {
    value
        .as_text()
        .is_some_and(|kind| kind.starts_with("reasoning"))
}

fn scalar_text(value: JsonValue<'_>) -> Option<Box<str>> {
    match value {
        JsonValue::Number(raw) => Some(String::from_utf8_lossy(raw).into()),
        JsonValue::Text(_) => value.as_text().map(Into::into),
        _ => None,
    }
}
