//! One choice in an event of a response.

use crate::json::JsonValue;
use crate::openai::{FinishReason, OutputKind, OutputKinds};

/// The content of one choice in an event.
#[derive(Debug, Default)]
pub(super) struct ChoiceDelta {
    pub index: usize,
    pub output: OutputKinds,
    pub has_empty_text: bool,
    pub has_role: bool,
    /// Whether the event has this choice. `false`: the fields that were read so far are not part of a choice.
    pub is_present: bool,
    pub finish_reason: Option<FinishReason>,
    /// Length of the array of token ids or logprobs.
    pub tokens: Option<u32>,
}

impl ChoiceDelta {
    pub(super) fn record_output(&mut self, kind: OutputKind, value: JsonValue<'_>) {
        match value {
            JsonValue::Text(text) if text.is_empty() => self.has_empty_text = true,
            JsonValue::Object if kind == OutputKind::Text => self.output.add(OutputKind::Unknown),
            JsonValue::Object => self.output.add(kind),
            value if value.is_scalar_with_content() => self.output.add(kind),
            _ => {}
        }
    }

    /// Starts the count at 0 if `value` begins the array of token ids or logprobs.
    pub(super) fn begin_tokens(&mut self, value: JsonValue<'_>) {
        if value == JsonValue::Array {
            self.tokens = Some(0);
        }
    }

    /// Counts one element of the array of token ids or logprobs.
    pub(super) fn count_token(&mut self, value: JsonValue<'_>) {
        if !matches!(value, JsonValue::End { .. }) {
            self.tokens = self.tokens.map(|tokens| tokens + 1);
        }
    }

    pub(super) fn finish(&mut self, value: JsonValue<'_>) {
        self.is_present = true;
        self.finish_reason = FinishReason::of_value(value);
    }

    /// Whether the array of token ids or logprobs has an element.
    pub(super) fn has_tokens(&self) -> bool {
        self.tokens.is_some_and(|tokens| tokens > 0)
    }

    /// Whether the text is empty in an event that neither begins nor ends its choice. Such an event shows that
    /// the engine may be holding text back.
    pub(super) fn may_hold_text_back(&self) -> bool {
        self.has_empty_text && !self.has_role && self.finish_reason.is_none()
    }
}
