//! What one event of an answer says, while it is read.

use super::answer::Answer;
use super::{Channel, Delta, EngineTimes, Finish, InBandError, Signal, Usage};
use crate::json::Value;

/// The event that is being read.
#[derive(Debug, Default)]
pub(super) struct Event {
    choice: Part,
    /// How many choices this event has, and the index of the last.
    choices: u32,
    last_index: usize,
    output: Option<Channel>,
    tokens: Option<u32>,
    finish: Option<Finish>,
    has_choices: bool,
    usage: Option<Usage>,
    total: Option<u64>,
    engine: Option<EngineTimes>,
    error: Option<InBandError>,
    status: Status,
    kind: Option<Box<str>>,
    /// The part that is being read is no part of the answer.
    is_reasoning: bool,
    /// The model says that it will not.
    is_refusal: bool,
    /// A count was something else.
    is_wrong: bool,
}

/// What an event says of one choice.
#[derive(Debug, Default)]
struct Part {
    index: usize,
    output: Option<Channel>,
    has_empty_text: bool,
    has_role: bool,
    is_present: bool,
    finish: Option<Finish>,
    tokens: Option<u32>,
}

/// The state of a Responses answer; its reason may come before or after it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Status {
    #[default]
    None,
    Completed,
    Incomplete(Option<Finish>),
    Unfinished,
}

/// Longest id or model name that is kept, in bytes.
const MAX_KEPT: usize = 256;

// === impl Event ===

impl Event {
    pub(super) fn read(&mut self, signal: Signal, value: Value<'_>, answer: &mut Answer) {
        match signal {
            Signal::Id => keep_first(&mut answer.id, value),
            Signal::Model => keep_first(&mut answer.model, value),
            Signal::EventType => keep_first(&mut self.kind, value),
            Signal::Choices => self.has_choices |= value == Value::Array,
            Signal::Choice => match value {
                Value::Object => self.choice = Part { is_present: true, ..Part::default() },
                Value::End => self.end_choice(answer),
                // Not empty, whatever it is.
                _ => self.choices += 1,
            },
            Signal::Index => self.choice.index = value.as_count().unwrap_or(0) as usize,
            Signal::Role => self.choice.has_role |= value != Value::Null,
            Signal::Output(Channel::Answer) => self.answer(value, answer),
            Signal::Output(channel) => self.choice.output(channel, value),
            Signal::Refusal => {
                self.is_refusal |= matches!(value, Value::Text(text) if !text.is_empty());
                self.answer(value, answer);
            }
            Signal::Arguments => {
                self.choice.output(Channel::Answer, value);
                answer.search(self.choice.index, value);
            }
            Signal::Text => answer.keep(value),
            Signal::Block => {
                let is_reasoning = std::mem::take(&mut self.is_reasoning);
                answer.settle(!(is_reasoning && value == Value::End));
            }
            Signal::BlockType => {
                self.is_reasoning =
                    value.as_text().is_some_and(|kind| kind.starts_with("reasoning"));
            }
            Signal::Tokens if value == Value::Array => self.choice.tokens = Some(0),
            Signal::Token if value != Value::End => {
                self.choice.tokens = self.choice.tokens.map(|tokens| tokens + 1);
            }
            Signal::Tokens | Signal::Token => {}
            Signal::Finish => {
                self.choice.is_present = true;
                self.choice.finish = value.as_text().map(|raw| Finish::of(&raw));
            }
            Signal::Status => self.status = self.status.with(value),
            Signal::IncompleteReason => {
                self.status = Status::Incomplete(value.as_text().map(|raw| Finish::of(&raw)));
            }
            Signal::Usage => match value {
                Value::Object => drop(self.usage.get_or_insert_default()),
                Value::Null | Value::End => {}
                _ => self.is_wrong = true,
            },
            Signal::Input => self.count(value, |usage| &mut usage.input),
            Signal::OutputTokens => self.count(value, |usage| &mut usage.output),
            Signal::TotalTokens => self.total = value.as_count(),
            Signal::Cached => self.count(value, |usage| &mut usage.cached),
            Signal::CacheCreated => self.count(value, |usage| &mut usage.cache_created),
            Signal::Reasoning => self.count(value, |usage| &mut usage.reasoning),
            Signal::QueueMillis => self.engine().queue = value.as_millis(),
            Signal::PrefillMillis => self.engine().prefill = value.as_millis(),
            Signal::DecodeMillis => self.engine().decode = value.as_millis(),
            Signal::Error => {
                if matches!(value, Value::Object | Value::Text(_)) {
                    self.error.get_or_insert_default();
                }
            }
            Signal::ErrorCode => {
                self.error.get_or_insert_default().code = scalar(value);
            }
            Signal::ErrorKind => {
                self.error.get_or_insert_default().kind = scalar(value);
            }
        }
    }

    /// Its type as it stands in its data.
    pub(super) fn take_kind(&mut self) -> Option<Box<str>> {
        self.kind.take()
    }

    /// It ends, and what it says of its choices holds.
    pub(super) fn end(&mut self, answer: &mut Answer, input_leaves_out_cache: bool) -> Delta {
        self.end_choice(answer);
        answer.accept();
        answer.is_refusal |= self.is_refusal;
        self.end_status(answer);
        self.count_by_usage(answer);
        self.complete_usage(input_leaves_out_cache);
        let is_usage_event = self.has_choices && self.choices == 0 && self.usage.is_some();
        Delta {
            output: self.output,
            tokens: self.tokens,
            choice: self.last_index,
            finish: self.finish,
            usage: self.usage,
            is_usage_event: is_usage_event && self.error.is_none(),
            engine: self.engine,
            error: self.error.take(),
            terminal: false,
            malformed: self.is_wrong,
        }
    }

    /// Text of the answer, or what stands for some.
    fn answer(&mut self, value: Value<'_>, answer: &mut Answer) {
        self.choice.output(Channel::Answer, value);
        answer.search(self.choice.index, value);
        answer.keep(value);
    }

    fn engine(&mut self) -> &mut EngineTimes {
        self.engine.get_or_insert_default()
    }

    /// What is not a count is never guessed at.
    fn count(&mut self, value: Value<'_>, field: fn(&mut Usage) -> &mut Option<u64>) {
        match value.as_count() {
            Some(count) => *field(self.usage.get_or_insert_default()) = Some(count),
            None => self.is_wrong |= value != Value::Null,
        }
    }

    /// Some shapes leave out what came from the cache, some give only a total.
    fn complete_usage(&mut self, input_leaves_out_cache: bool) {
        let Some(usage) = &mut self.usage else { return };
        let cached = usage.cached.unwrap_or(0).saturating_add(usage.cache_created.unwrap_or(0));
        if let Some(input) = usage.input.as_mut().filter(|_| input_leaves_out_cache) {
            *input = input.saturating_add(cached);
        }
        let rest = |total: u64| total.checked_sub(usage.output.unwrap_or(0));
        let total = self.total.filter(|_| !self.is_wrong);
        usage.input = usage.input.or_else(|| total.and_then(rest));
    }

    /// A choice ends, or the event does: shapes without choices have one, and it is implied.
    fn end_choice(&mut self, answer: &mut Answer) {
        let part = std::mem::take(&mut self.choice);
        let output = part.output.or_else(|| part.unspecified_output());
        self.output = self.output.max(output);
        if !part.is_present {
            return;
        }
        answer.settle(part.index == 0);
        self.finish = part.finish.or(self.finish);
        self.tokens = match (self.choices, self.tokens, part.tokens) {
            (0, _, tokens) => tokens,
            (_, Some(sum), Some(tokens)) => Some(sum + tokens),
            _ => None,
        };
        self.choices += 1;
        self.last_index = part.index;
        answer.expect(part.index, part.finish);
    }

    fn end_status(&mut self, answer: &mut Answer) {
        let finish = match self.status {
            Status::None => return,
            Status::Completed => Some(Finish::Stop),
            Status::Incomplete(reason) => reason,
            Status::Unfinished => None,
        };
        self.finish = finish;
        if let Some(choice) = answer.choice(0) {
            choice.finish = finish;
        }
    }

    /// Servers that report usage with every event tell the tokens of an event by the increase.
    /// They count the output of its choice, so that of the answer is a sum.
    fn count_by_usage(&mut self, answer: &mut Answer) {
        let (1, Some(usage)) = (self.choices, &mut self.usage) else { return };
        let Some(output) = &mut usage.output else { return };
        let Some(increase) = answer.count(self.last_index, *output) else { return };
        self.tokens = self.tokens.or(u32::try_from(increase).ok());
        *output = answer.tokens();
    }
}

// === impl Part ===

impl Part {
    fn output(&mut self, channel: Channel, value: Value<'_>) {
        match value {
            Value::Text(text) if text.is_empty() => self.has_empty_text = true,
            Value::Text(_) | Value::Object => self.output = self.output.max(Some(channel)),
            _ => {}
        }
    }

    /// Tokens without text: ids or logprobs say so, or an empty text that is neither the first
    /// event of a choice nor its last.
    fn unspecified_output(&self) -> Option<Channel> {
        let has_tokens = self.tokens.is_some_and(|tokens| tokens > 0);
        let is_held_back = self.has_empty_text && !self.has_role && self.finish.is_none();
        (has_tokens || is_held_back).then_some(Channel::Unspecified)
    }
}

// === impl Status ===

impl Status {
    fn with(self, value: Value<'_>) -> Self {
        match (self, value.as_text().as_deref()) {
            (_, None) => self,
            (_, Some("completed")) => Self::Completed,
            (Self::Incomplete(reason), Some("incomplete")) => Self::Incomplete(reason),
            (_, Some("incomplete")) => Self::Incomplete(None),
            (_, Some(_)) => Self::Unfinished,
        }
    }
}

fn keep_first(kept: &mut Option<Box<str>>, value: Value<'_>) {
    if kept.is_none() {
        let is_fit = |text: &std::borrow::Cow<'_, str>| (1..=MAX_KEPT).contains(&text.len());
        *kept = value.as_text().filter(is_fit).map(Into::into);
    }
}

fn scalar(value: Value<'_>) -> Option<Box<str>> {
    match value {
        Value::Number(raw) => Some(String::from_utf8_lossy(raw).into()),
        Value::Text(_) => value.as_text().map(Into::into),
        _ => None,
    }
}
