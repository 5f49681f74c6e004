//! A generated stream: its bytes, and the meaning of each event.

use std::ops::Range;

/// One response of a backend.
#[derive(Debug, Default)]
pub(crate) struct GeneratedStream {
    /// The complete body.
    pub bytes: Vec<u8>,
    /// The events in order.
    pub events: Vec<Event>,
    /// The positions at which a comment line has begun.
    pub comments: Vec<usize>,
    /// The range of the usage event, including the blank line.
    pub usage_event: Option<Range<usize>>,
    /// The `id` and `model` in the events.
    pub names: Option<(String, String)>,
    /// Labels for statistics.
    pub kinds: Vec<&'static str>,
}

/// One server-sent event.
#[derive(Debug)]
pub(crate) struct Event {
    /// Number of body bytes before the event.
    pub begins_at: usize,
    /// Number of body bytes after which its data is complete. The regular end of the body then
    /// completes the event.
    pub data_ends_at: usize,
    /// Number of body bytes after which the event is complete.
    pub complete_at: usize,
    /// The meaning of the event.
    pub meaning: Meaning,
}

/// The meaning of one event.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meaning {
    /// Generated output.
    pub output: Option<Output>,
    /// Minimum number of choices of the response.
    pub choices: usize,
    /// The choice that ended, and the reason as in records.
    pub finish: Option<(usize, &'static str)>,
    /// Token counts of the whole response so far.
    pub usage: Option<Counts>,
    /// Whether it is the usage event: usage and an empty list of choices.
    pub is_usage_event: bool,
    /// An error: `code` and `type`, if present.
    pub error: Option<(Option<&'static str>, Option<&'static str>)>,
    /// Whether it is the last event of its API.
    pub is_last: bool,
    /// Whether the event is malformed.
    pub is_malformed: bool,
    /// Whether the event carries `id` and `model`.
    pub has_names: bool,
    /// Whether the event is known to begin or end something, so that unknown fields around its
    /// delta are no output.
    pub is_marked: bool,
    /// Whether the event repeats earlier output, so that it has none.
    pub is_repetition: bool,
}

/// Generated output in one event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    /// The kind of output.
    pub kind: Kind,
    /// Number of tokens, if the event reports it.
    pub tokens: Option<u64>,
}

/// The kind of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Answer,
    Reasoning,
    /// Tokens without text.
    Textless,
    /// An unknown field, or data that is not an event of the API.
    Unknown,
}

/// Token counts. `None` where the response does not report them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub input: Option<u64>,
    pub output: Option<u64>,
    pub cached: Option<u64>,
    pub cache_created: Option<u64>,
    pub reasoning: Option<u64>,
}

impl Counts {
    /// Later values replace earlier ones.
    pub(crate) fn update(&mut self, later: Counts) {
        self.input = later.input.or(self.input);
        self.output = later.output.or(self.output);
        self.cached = later.cached.or(self.cached);
        self.cache_created = later.cache_created.or(self.cache_created);
        self.reasoning = later.reasoning.or(self.reasoning);
    }
}

impl Meaning {
    /// An event with output that no API defines.
    pub(crate) fn unknown() -> Self {
        let output = Some(Output { kind: Kind::Unknown, tokens: None });
        Self { output, ..Self::default() }
    }

    /// Adds an unknown field with a value, inside a delta or elsewhere.
    pub(crate) fn add_unknown(&mut self, is_in_delta: bool) {
        let is_marked = self.is_marked || self.finish.is_some() || self.is_usage_event;
        if self.is_repetition {
            return;
        }
        if self.output.is_none() && self.error.is_none() && (is_in_delta || !is_marked) {
            self.output = Self::unknown().output;
        }
    }
}

impl Event {
    /// Whether the event is dispatched when `arrived` bytes have come. `is_ended`: the body has then
    /// ended regularly.
    pub(crate) fn has_arrived(&self, arrived: usize, is_ended: bool) -> bool {
        self.complete_at <= arrived || (is_ended && self.data_ends_at <= arrived)
    }
}
