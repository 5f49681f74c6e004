//! The state of a response that spans its events: ids, choices, captured text and phrase matches.

use super::phrase_matcher::{MatchState, PhraseMatcher};
use crate::json::JsonValue;
use crate::openai::{FinishReason, TextExcerpt};
use std::sync::Arc;

/// The state of a response after the events so far.
#[derive(Debug, Default)]
pub struct ResponseSummary {
    /// The id that the response states first.
    pub id: Option<Box<str>>,
    /// The first `model` in the response, which can differ from the name in the request.
    pub model: Option<Box<str>>,
    /// Whether the text of the response contains one of the searched phrases, such as those of refusals.
    pub has_phrase: bool,
    /// Whether a refusal field or a refusal event shows that the response is a model refusal.
    pub is_refusal: bool,
    /// The phrases to search for. `None`: the text is not searched.
    pub(super) phrases: Option<Arc<PhraseMatcher>>,
    /// The captured text of the first choice. `None`: no text is captured.
    pub(super) text: Option<TextExcerpt>,
    choices: Vec<ChoiceState>,
    /// Index and finish reason of each choice in the current event, and whether the choice has a role. They are
    /// committed when the event is complete.
    staged_choices: Vec<(usize, Option<FinishReason>, bool)>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ChoiceState {
    /// Why the choice ended. `None`: it has not ended.
    pub finish: Option<FinishReason>,
    has_role: bool,
    /// Output tokens so far. 0: the backend does not report usage with every event.
    output_tokens: u64,
    /// The state of the phrase search in the text of the choice.
    match_state: MatchState,
}

/// Maximum number of choices of a response whose state is stored. The gateway stores nothing about further
/// choices.
const MAX_CHOICES: usize = 128;

impl ResponseSummary {
    /// The finish reason of each choice, by index. `None`: the choice has not ended.
    pub fn finish_reasons(&self) -> impl Iterator<Item = Option<FinishReason>> + '_ {
        self.choices.iter().map(|choice| choice.finish)
    }

    /// Whether the text of the response is searched or captured.
    pub(super) fn needs_text(&self) -> bool {
        self.phrases.is_some() || self.text.is_some()
    }

    /// Searches the next text of a choice for the phrases.
    pub(super) fn search(&mut self, index: usize, value: JsonValue<'_>) {
        let Some(phrases) = self.phrases.clone() else {
            return;
        };
        if let (JsonValue::Text(text), Some(choice)) = (value, self.choice(index)) {
            let is_found = phrases.read(text.prefix(), &mut choice.match_state);
            self.has_phrase |= is_found;
        }
    }

    /// Appends text to the excerpt, if text is captured. [`Self::commit_or_discard_text`] then
    /// commits or discards it.
    pub(super) fn capture(&mut self, value: JsonValue<'_>) {
        if let (Some(excerpt), JsonValue::Text(text)) = (&mut self.text, value) {
            excerpt.push(text.raw());
        }
    }

    /// Commits the text that was captured since the last call, or discards that text. The caller
    /// discards text that does not belong to the first choice.
    pub(super) fn commit_or_discard_text(&mut self, should_commit: bool) {
        if let Some(excerpt) = &mut self.text {
            excerpt.commit_or_discard(should_commit);
        }
    }

    /// Stores a choice of the current event, with its finish reason if the event has one, until
    /// [`Self::commit_choices`].
    pub(super) fn stage_choice(
        &mut self,
        index: usize,
        finish: Option<FinishReason>,
        has_role: bool,
    ) {
        if self.staged_choices.len() < MAX_CHOICES {
            self.staged_choices.push((index, finish, has_role));
        }
    }

    /// Whether an earlier event of the choice had a role.
    pub(super) fn has_role(&self, index: usize) -> bool {
        self.choices
            .get(index)
            .is_some_and(|choice| choice.has_role)
    }

    /// Whether there is a choice, and every choice has a finish reason.
    pub fn has_ended_choices(&self) -> bool {
        !self.choices.is_empty() && self.choices.iter().all(|choice| choice.finish.is_some())
    }

    /// Commits the staged choices when the event is complete.
    pub(super) fn commit_choices(&mut self) {
        let mut staged = std::mem::take(&mut self.staged_choices);
        for (index, finish, has_role) in staged.drain(..) {
            if let Some(choice) = self.choice(index) {
                choice.finish = finish.or(choice.finish);
                choice.has_role |= has_role;
            }
        }
        self.staged_choices = staged;
    }

    /// Discards the staged choices and the uncommitted text of a malformed event.
    pub(super) fn discard_event(&mut self) {
        self.staged_choices.clear();
        self.commit_or_discard_text(false);
    }

    /// Records the number of output tokens of a choice so far, which is `output` in the usage of an event. If
    /// the `tokens` of the event are unknown, they become the increase of this number. `output` becomes the sum
    /// over all choices.
    pub(super) fn record_output_tokens(
        &mut self,
        index: usize,
        output: &mut u64,
        tokens: &mut Option<u32>,
    ) {
        let Some(choice) = self.choice(index) else {
            return;
        };
        let before = std::mem::replace(&mut choice.output_tokens, *output);
        *tokens = tokens.or(u32::try_from(output.saturating_sub(before)).ok());
        let counts = self.choices.iter().map(|choice| choice.output_tokens);
        *output = counts.fold(0, u64::saturating_add);
    }

    /// The state of a choice. `None`: the index is [`MAX_CHOICES`] or more.
    pub(super) fn choice(&mut self, index: usize) -> Option<&mut ChoiceState> {
        if index >= MAX_CHOICES {
            return None;
        }
        if self.choices.len() <= index {
            self.choices.resize(index + 1, ChoiceState::default());
        }
        self.choices.get_mut(index)
    }
}
