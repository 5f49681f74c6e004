//! A generated stream: its bytes, and the meaning of each event for the gateway.

use std::ops::Range;
use tokenweir_protocol::openai::Usage;

/// A generated response of a backend: its bytes, and what they mean.
#[derive(Debug, Default)]
pub(crate) struct GeneratedStream {
    /// The complete body of the response.
    pub bytes: Vec<u8>,
    /// The events of the stream, in order.
    pub events: Vec<Event>,
    /// For each comment line, the number of body bytes that have arrived with its first byte.
    pub comments: Vec<usize>,
    /// The byte range of the usage event, with its blank line. `None`: the stream has no usage event.
    pub usage_event: Option<Range<usize>>,
    /// The `id` and the `model` that the events have. `None`: the events have none.
    pub names: Option<(String, String)>,
    /// Names of what the stream contains, for statistics.
    pub kinds: Vec<&'static str>,
}

/// One server-sent event.
#[derive(Debug)]
pub(crate) struct Event {
    /// Number of body bytes before the first byte of the event.
    pub begins_at: usize,
    /// Number of body bytes up to the end of the data of the event. If the body ends regularly there, the
    /// event counts.
    pub data_ends_at: usize,
    /// Number of body bytes up to the point at which the event is complete.
    pub complete_at: usize,
    pub meaning: Meaning,
}

/// The meaning of an event for the gateway.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meaning {
    /// The generated output in the event.
    pub output: Option<Output>,
    /// The minimum number of choices that the response must have according to this event.
    pub choices: usize,
    /// The choice that ends with this event, and its finish reason as records have it.
    pub finish: Option<(usize, &'static str)>,
    /// The token counts of the whole response so far, if the event has usage.
    pub usage: Option<Usage>,
    /// Whether this is the usage event: it has usage and an empty list of choices.
    pub is_usage_event: bool,
    /// The `code` and the `type` of the error that the event reports.
    pub error: Option<(Option<&'static str>, Option<&'static str>)>,
    /// Whether this is the event with which a stream of its API ends.
    pub is_last: bool,
    pub is_malformed: bool,
    /// Whether the data is a text instead of JSON.
    pub is_text: bool,
    /// Whether the event carries `id` and `model`.
    pub has_names: bool,
    /// Whether the type of the event shows that the event begins or ends a part of the response. If so,
    /// unknown fields outside its delta are no output.
    pub is_marked: bool,
    /// Whether the event only repeats earlier output, so that it has no output of its own.
    pub is_repetition: bool,
}

/// Generated output in one event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    /// Whether the output belongs to the answer. Reasoning, tokens without text and unknown fields do not.
    pub is_answer: bool,
    /// Number of tokens of the output, if the event reports it.
    pub tokens: Option<u64>,
}

impl Meaning {
    /// Returns the meaning of an event that only has output, and does not report its number of tokens.
    pub(crate) fn with_output(is_answer: bool) -> Self {
        let output = Some(Output {
            is_answer,
            tokens: None,
        });
        Self {
            output,
            ..Self::default()
        }
    }

    /// Adds an unknown field that has a value to the meaning. `is_in_delta`: whether the field is inside a
    /// delta.
    pub(crate) fn add_unknown(&mut self, is_in_delta: bool) {
        let is_marked = self.is_marked || self.finish.is_some() || self.is_usage_event;
        if self.is_repetition {
            return;
        }
        if self.output.is_none() && self.error.is_none() && (is_in_delta || !is_marked) {
            self.output = Self::with_output(false).output;
        }
    }
}

impl Event {
    /// Whether the gateway has received the event after `arrived` bytes of the body. `is_ended`: whether the
    /// body ends regularly after these bytes.
    pub(crate) fn has_arrived(&self, arrived: usize, is_ended: bool) -> bool {
        self.complete_at <= arrived || (is_ended && self.data_ends_at <= arrived)
    }
}
