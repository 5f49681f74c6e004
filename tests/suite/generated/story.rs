//! A stream as its writer knows it: the bytes, and what each event in them means.

use std::ops::Range;

/// One answer of a replica.
#[derive(Debug, Default)]
pub(crate) struct Story {
    /// The body, whole.
    pub bytes: Vec<u8>,
    /// Its events, in order.
    pub events: Vec<Event>,
    /// Where a comment line has begun.
    pub comments: Vec<usize>,
    /// The block of the usage event, blank line included.
    pub usage_event: Option<Range<usize>>,
    /// The `id` and `model` that its events carry.
    pub names: Option<(String, String)>,
    /// What it is of, for counting.
    pub kinds: Vec<&'static str>,
}

/// One server-sent event.
#[derive(Debug)]
pub(crate) struct Event {
    /// The event is complete when this many bytes of the body have come.
    pub complete_at: usize,
    /// What it says.
    pub meaning: Meaning,
}

/// What one event says.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meaning {
    /// Generated output.
    pub output: Option<Output>,
    /// How many choices the answer has at least.
    pub choices: usize,
    /// A choice ended, for a reason in the record's words.
    pub finish: Option<(usize, &'static str)>,
    /// Token counts of the whole answer so far.
    pub usage: Option<Counts>,
    /// It is the usage event: usage, and an empty list of choices.
    pub is_usage_event: bool,
    /// A failure: `code` and `type`, as far as it names them.
    pub error: Option<(Option<&'static str>, Option<&'static str>)>,
    /// The last event of its shape.
    pub is_last: bool,
    /// Something in it is not what the shape sends.
    pub is_malformed: bool,
    /// It carries the `id` and the `model`.
    pub has_names: bool,
}

/// Generated output in one event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    /// What it is.
    pub kind: Kind,
    /// How many tokens, where the event tells.
    pub tokens: Option<u64>,
}

/// What an output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Answer,
    Reasoning,
    /// Tokens without text.
    Textless,
}

/// Token counts, absent where they are not told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub input: Option<u64>,
    pub output: Option<u64>,
    pub cached: Option<u64>,
    pub cache_created: Option<u64>,
    pub reasoning: Option<u64>,
}

impl Counts {
    /// What is told later stands.
    pub(crate) fn update(&mut self, later: Counts) {
        self.input = later.input.or(self.input);
        self.output = later.output.or(self.output);
        self.cached = later.cached.or(self.cached);
        self.cache_created = later.cache_created.or(self.cache_created);
        self.reasoning = later.reasoning.or(self.reasoning);
    }
}
