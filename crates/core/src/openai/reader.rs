//! Reads the answers of one shape: the data of an event goes in as it arrives, what the event
//! says comes out when it ends. A whole answer is read as one event.

use super::answer::Answer;
use super::event::Event;
use super::likeness::Likeness;
use super::phrases::Phrases;
use super::responses::{REFUSAL_TYPE, TEXT_TYPES};
use super::{Api, Delta, Excerpt, Shape, Usage};
use crate::json::{Scanner, Value};
use std::sync::Arc;

/// The reader of one answer, streamed or whole.
#[derive(Debug)]
pub struct Reader {
    shape: &'static Shape,
    scanner: Scanner,
    begun: Begun,
    event: Event,
    /// The event to which the next one is compared. `None` before there was one.
    example: Option<Likeness>,
    answer: Answer,
    /// The usage of the event that is being read, where it was taken out of its data.
    usage: Option<Usage>,
}

/// How the data of an event began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begun {
    /// It may be `[DONE]` instead of JSON; this many bytes of it have matched.
    Done(usize),
    /// It is like the example.
    Repeating,
    /// It is read.
    Reading,
}

const DONE: &[u8] = b"[DONE]";

// === impl Reader ===

impl Reader {
    /// A reader for the answers of `api`.
    pub fn new(api: Api) -> Self {
        Self {
            shape: api.shape(),
            scanner: Scanner::default(),
            begun: Begun::Done(0),
            event: Event::default(),
            example: None,
            answer: Answer::default(),
            usage: None,
        }
    }

    /// Looks for phrases in the answer.
    pub fn look_for(&mut self, phrases: Option<Arc<Phrases>>) {
        self.answer.phrases = phrases;
    }

    /// Keeps the text of the first choice, without reasoning and calls of tools.
    pub fn keep_text(&mut self, excerpt: Excerpt) {
        self.scanner.keep_long(excerpt.room());
        self.answer.text = Some(excerpt);
    }

    /// What was kept. What stands in an event that is not whole is left out.
    pub fn take_text(&mut self) -> Option<Excerpt> {
        self.answer.settle(false);
        self.answer.text.take()
    }

    /// The next piece of the data of an event, or of a whole answer.
    pub fn data(&mut self, piece: &[u8]) {
        match self.begun {
            Begun::Done(0) if self.example.as_ref().is_some_and(|last| last.is_like(piece)) => {
                self.begun = Begun::Repeating;
                return;
            }
            Begun::Done(matched) => {
                if DONE[matched..].starts_with(piece) {
                    self.begun = Begun::Done(matched + piece.len());
                    return;
                }
                self.begun = Begun::Reading;
                if let Some(example) = &mut self.example {
                    example.begin(if matched == 0 { piece } else { &[] });
                }
                self.scan(&DONE[..matched]);
            }
            Begun::Repeating => self.read_again(),
            Begun::Reading => {
                if let Some(example) = &mut self.example {
                    example.give_up();
                }
            }
        }
        self.scan(piece);
    }

    /// The event ends; `event_type` is its `event` field, empty if it had none.
    pub fn end_event(&mut self, event_type: &str) -> Delta {
        if self.begun == Begun::Done(DONE.len()) {
            self.begun = Begun::Done(0);
            return Delta { terminal: true, ..Delta::default() };
        }
        if self.begun == Begun::Repeating {
            let said = self.example.as_ref().and_then(|example| example.said(event_type));
            if let Some(mut delta) = said {
                self.begun = Begun::Done(0);
                if self.usage.is_some() {
                    self.add_usage(&mut delta);
                }
                return delta;
            }
            self.read_again();
        }
        let mut delta = self.end_read(event_type);
        if self.answer.is_text_read() {
            // Texts matter, and no two are the same.
            self.example = None;
        } else {
            self.example.get_or_insert_default().end(event_type, &delta);
        }
        self.event = Event::default();
        self.begun = Begun::Done(0);
        if self.usage.is_some() {
            self.add_usage(&mut delta);
        }
        delta
    }

    /// Whether no data of an event has come since the last one ended.
    pub fn is_between_events(&self) -> bool {
        self.begun == Begun::Done(0)
    }

    /// The data of an event whose usage was taken out of it. It is whole.
    pub fn data_without_usage(&mut self, data: &[u8], usage: Usage) {
        self.usage = Some(usage);
        self.data(data);
    }

    /// The event has ended, and its usage was taken out of its data.
    #[cold]
    fn add_usage(&mut self, delta: &mut Delta) {
        let Some(mut usage) = self.usage.take().filter(|_| !delta.malformed) else { return };
        if let Some(output) = &mut usage.output
            && let Some(increase) = self.answer.count(delta.choice, *output)
        {
            delta.tokens = delta.tokens.or(u32::try_from(increase).ok());
            *output = self.answer.tokens();
        }
        delta.usage = Some(usage);
    }

    fn end_read(&mut self, event_type: &str) -> Delta {
        let is_read = self.scanner.is_complete() && self.scanner.is_object();
        let mut delta = self.end(is_read);
        let in_data = self.event.take_kind();
        let kind =
            if event_type.is_empty() { in_data.as_deref().unwrap_or("") } else { event_type };
        if let Some(output_type) = self.shape.output_type {
            delta.output = output_type(kind).filter(|_| is_read);
            self.answer.settle(TEXT_TYPES.contains(&kind));
            self.answer.is_refusal |= is_read && kind == REFUSAL_TYPE;
        }
        self.answer.settle(true);
        delta.terminal = self.shape.terminal_types.contains(&kind);
        if delta.terminal {
            // It repeats the text of the events before it, if any.
            delta.output = None;
        }
        if kind == "error" {
            delta.error.get_or_insert_default();
        }
        delta
    }

    /// What looked like a repetition is not quite one. Its text does not matter: the example's will
    /// do.
    fn read_again(&mut self) {
        self.begun = Begun::Reading;
        let data = self.example.as_mut().map(Likeness::give_up).unwrap_or_default();
        self.scan(&data);
    }

    /// The whole answer has been given to [`Reader::data`].
    pub fn end_whole(&mut self) -> Delta {
        let terminal = self.scanner.is_complete();
        let delta = self.end(terminal);
        self.answer.settle(true);
        Delta { terminal, ..delta }
    }

    /// What is known of the answer so far.
    pub fn answer(&self) -> &Answer {
        &self.answer
    }

    /// Whether the event that is being read has only been compared so far.
    #[cfg(test)]
    pub(super) fn is_repeating(&self) -> bool {
        self.begun == Begun::Repeating
    }

    fn scan(&mut self, piece: &[u8]) {
        let Self { shape, scanner, event, example, answer, .. } = self;
        scanner.locate(&shape.paths, piece, |signal, value, end| {
            if let (Value::Text(text), Some(example)) = (value, &mut *example)
                && signal.is_text()
            {
                example.on_text(text.len(), end);
            }
            event.read(signal, value, answer);
        });
    }

    /// What cannot be read says nothing, whatever was read of it.
    fn end(&mut self, is_read: bool) -> Delta {
        self.scanner.reset();
        if !is_read {
            self.event = Event::default();
            self.answer.reject();
            return Delta { malformed: true, ..Delta::default() };
        }
        self.event.end(&mut self.answer, self.shape.input_leaves_out_cache)
    }
}

impl std::fmt::Debug for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shape").finish_non_exhaustive()
    }
}
