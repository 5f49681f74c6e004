//! What is known of an answer as a whole, while its events pass.

use super::phrases::{Phrases, Progress};
use super::{Excerpt, Finish};
use crate::json::Value;
use std::sync::Arc;

/// What is known of the answer as a whole.
#[derive(Debug, Default)]
pub struct Answer {
    /// The first `id`.
    pub id: Option<Box<str>>,
    /// The first `model`: what the backend says it ran, not what the client asked for.
    pub model: Option<Box<str>>,
    /// One of the phrases that are looked for stands in it.
    pub has_phrase: bool,
    /// The model says in it that it will not, where its shape has a place for that.
    pub is_refusal: bool,
    /// What is looked for in it.
    pub(super) phrases: Option<Arc<Phrases>>,
    /// The text of the first choice, if it is kept.
    pub(super) text: Option<Excerpt>,
    /// What is known of each choice, by its index.
    choices: Vec<Choice>,
    /// Choices of the event that is being read, and why they end. They count once it is whole.
    pending: Vec<(usize, Option<Finish>)>,
}

/// One choice.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Choice {
    /// Why it ended.
    pub(super) finish: Option<Finish>,
    /// Its `completion_tokens` so far, where the server reports them with every event.
    pub(super) tokens: u64,
    /// How far its text has been searched for phrases.
    progress: Progress,
}

/// More choices than this are not told apart.
const MAX_CHOICES: usize = 128;

// === impl Answer ===

impl Answer {
    /// Why each choice ended, by index; `None` for one that has not.
    pub fn finish_reasons(&self) -> impl Iterator<Item = Option<Finish>> + '_ {
        self.choices.iter().map(|choice| choice.finish)
    }

    /// Whether it matters what its texts are.
    pub(super) fn is_text_read(&self) -> bool {
        self.phrases.is_some() || self.text.is_some()
    }

    /// Looks for the phrases in more of a choice's text.
    pub(super) fn search(&mut self, index: usize, value: Value<'_>) {
        let Some(phrases) = self.phrases.clone() else { return };
        if let (Value::Text(text), Some(choice)) = (value, self.choice(index)) {
            let is_found = phrases.read(text.beginning(), &mut choice.progress);
            self.has_phrase |= is_found;
        }
    }

    /// Keeps more of the text, if it is kept, until it is known whose it is.
    pub(super) fn keep(&mut self, value: Value<'_>) {
        if let (Some(kept), Value::Text(text)) = (&mut self.text, value) {
            kept.push(text.kept());
        }
    }

    /// What came since the last time is text of the first choice, or is not.
    pub(super) fn settle(&mut self, belongs: bool) {
        if let Some(kept) = &mut self.text {
            kept.settle(belongs);
        }
    }

    /// The event that is being read has this choice, and ends it if there is a reason.
    pub(super) fn expect(&mut self, index: usize, finish: Option<Finish>) {
        if self.pending.len() < MAX_CHOICES {
            self.pending.push((index, finish));
        }
    }

    /// The event is whole: what it says of its choices holds.
    pub(super) fn accept(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        for (index, finish) in pending.drain(..) {
            if let Some(choice) = self.choice(index) {
                choice.finish = finish.or(choice.finish);
            }
        }
        self.pending = pending;
    }

    /// The event cannot be read.
    pub(super) fn reject(&mut self) {
        self.pending.clear();
        self.settle(false);
    }

    /// The engine has counted so many tokens of a choice so far. Returns how many more than before.
    pub(super) fn count(&mut self, index: usize, tokens: u64) -> Option<u64> {
        let choice = self.choice(index)?;
        Some(tokens.saturating_sub(std::mem::replace(&mut choice.tokens, tokens)))
    }

    /// The tokens of all choices so far, where the server reports them with every event.
    pub(super) fn tokens(&self) -> u64 {
        self.choices.iter().fold(0, |sum, choice| sum.saturating_add(choice.tokens))
    }

    /// A choice by its index. `None`: there are too many to tell apart.
    pub(super) fn choice(&mut self, index: usize) -> Option<&mut Choice> {
        if index >= MAX_CHOICES {
            return None;
        }
        if self.choices.len() <= index {
            self.choices.resize(index + 1, Choice::default());
        }
        self.choices.get_mut(index)
    }
}
