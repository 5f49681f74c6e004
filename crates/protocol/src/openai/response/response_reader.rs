//! Parses the responses of one API. The reader takes the data of an event as it arrives, and returns the
//! [`Delta`] at the end of the event. It parses a complete response as one event.

use super::delta_builder::DeltaBuilder;
use super::event_template::EventTemplate;
use super::phrase_matcher::PhraseMatcher;
use super::response_summary::ResponseSummary;
use super::text_sample::TextSample;
use crate::json::{JsonScanner, JsonValue};
use crate::openai::shapes::{
    self, ERROR_EVENT_TYPE, EventOutput, HEARTBEATS, REFUSAL_EVENT_TYPE, ResponseField,
    ResponseSchema, TEXT_EVENT_TYPES,
};
use crate::openai::{Api, Delta, FinishReason, OutputKind, OutputKinds, TextExcerpt, Usage};
use std::sync::Arc;

/// The parser of one response, streamed or complete.
#[derive(Debug)]
pub struct ResponseReader {
    schema: &'static ResponseSchema,
    scanner: JsonScanner,
    event_state: EventState,
    delta_builder: DeltaBuilder,
    /// The template with which the data of the next event is compared. `None`: there is no event yet that could
    /// be the template, or the text of every event is needed for a search or an excerpt.
    template: Option<EventTemplate>,
    summary: ResponseSummary,
    /// The usage of the current event, if the caller removed the usage from the data.
    extracted_usage: Option<Usage>,
    has_output: bool,
    /// Whether the response has an answer so far: output, a finish reason, or an error.
    has_answer: bool,
    /// Whether an event had plain text instead of JSON.
    has_text_event: bool,
    sample: TextSample,
}

/// How the data of the current event is processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventState {
    /// The data may be `[DONE]` instead of JSON. The number says how many bytes of `[DONE]` have arrived. 0: no
    /// data has arrived.
    MatchingDone(usize),
    /// The data arrived in one piece and equals the data of the template except for the text.
    MatchingTemplate,
    /// The data is being parsed.
    Parsing,
}

const DONE_MARKER: &[u8] = b"[DONE]";

impl ResponseReader {
    /// A reader before the first byte of a response of `api`.
    pub fn new(api: Api) -> Self {
        Self {
            schema: shapes::response_schema(api),
            scanner: JsonScanner::default(),
            event_state: EventState::MatchingDone(0),
            delta_builder: DeltaBuilder::default(),
            template: None,
            summary: ResponseSummary::default(),
            extracted_usage: None,
            has_output: false,
            has_answer: false,
            has_text_event: false,
            sample: TextSample::default(),
        }
    }

    /// Searches the response for phrases from now on. `None`: no search.
    pub fn set_phrase_matcher(&mut self, phrases: Option<Arc<PhraseMatcher>>) {
        self.summary.phrases = phrases;
    }

    /// Captures the text of the first choice in `excerpt` from now on, without reasoning and tool
    /// calls.
    pub fn capture_text(&mut self, excerpt: TextExcerpt) {
        self.scanner.set_text_capacity(excerpt.capacity());
        self.summary.text = Some(excerpt);
    }

    /// Takes the excerpt of the text. The text of an incomplete event is not part of it. `None`: no text was
    /// captured.
    pub fn take_text_excerpt(&mut self) -> Option<TextExcerpt> {
        self.summary.commit_or_discard_text(false);
        self.summary.text.take()
    }

    /// Reads the next piece of the data of an event, or of a complete response.
    pub fn data(&mut self, piece: &[u8]) {
        if self.event_state == EventState::MatchingDone(0)
            && let Some(template) = &self.template
            && let Some(text) = template.matched_text(piece)
        {
            if self.sample.is_open() {
                self.sample.add(text, template.has_answer_text());
            }
            self.event_state = EventState::MatchingTemplate;
            return;
        }
        match self.event_state {
            EventState::MatchingDone(matched) => {
                // White space has no meaning around `[DONE]` and between the tokens of JSON.
                let trimmed = piece.trim_ascii();
                if DONE_MARKER[matched..].starts_with(trimmed) {
                    self.event_state = EventState::MatchingDone(matched + trimmed.len());
                    return;
                }
                self.event_state = EventState::Parsing;
                if let Some(template) = &mut self.template {
                    template.begin(if matched == 0 { piece } else { &[] });
                }
                self.scan(&DONE_MARKER[..matched]);
            }
            EventState::MatchingTemplate => self.parse_template_data(),
            EventState::Parsing => {
                if let Some(template) = &mut self.template {
                    template.discard();
                }
            }
        }
        self.scan(piece);
    }

    /// Ends the event and returns its content. `event_type` is the SSE `event` field; empty if the
    /// event has none.
    pub fn finish_event(&mut self, event_type: &str) -> Delta {
        if self.event_state == EventState::MatchingDone(DONE_MARKER.len()) {
            self.event_state = EventState::MatchingDone(0);
            return Delta {
                terminal: true,
                ..Delta::default()
            };
        }
        if let EventState::MatchingDone(matched) = self.event_state {
            self.scan(&DONE_MARKER[..matched]);
        }
        if self.event_state == EventState::MatchingTemplate {
            let recorded = self
                .template
                .as_ref()
                .and_then(|template| template.delta_for(event_type));
            if let Some(mut delta) = recorded {
                self.event_state = EventState::MatchingDone(0);
                if self.extracted_usage.is_some() {
                    self.add_usage(&mut delta);
                }
                return delta;
            }
            self.parse_template_data();
        }
        let mut delta = self.finish_parsed_event(event_type);
        if self.summary.needs_text() {
            // Every event must be parsed, because its text is searched or captured.
            self.template = None;
        } else {
            self.template
                .get_or_insert_default()
                .end(event_type, &delta);
        }
        self.delta_builder = DeltaBuilder::default();
        self.event_state = EventState::MatchingDone(0);
        if self.extracted_usage.is_some() {
            self.add_usage(&mut delta);
        }
        delta
    }

    /// Hashes and counts of the first pieces of text, to detect damaged output.
    pub fn text_sample(&self) -> TextSample {
        self.sample
    }

    /// Whether only white space, or no data, has arrived since the end of the last event.
    pub fn is_between_events(&self) -> bool {
        self.event_state == EventState::MatchingDone(0)
    }

    /// Reads the complete data of an event from which the usage was removed.
    pub fn push_data_without_usage(&mut self, data: &[u8], usage: Usage) {
        self.extracted_usage = Some(usage);
        self.data(data);
    }

    /// Adds the removed usage to the content of the event.
    #[cold]
    fn add_usage(&mut self, delta: &mut Delta) {
        let Some(mut usage) = self.extracted_usage.take() else {
            return;
        };
        if delta.malformed {
            return;
        }
        if let Some(output) = &mut usage.output {
            self.summary
                .record_output_tokens(delta.choice, output, &mut delta.tokens);
        }
        delta.usage = Some(usage);
        self.note_generated_output(delta);
    }

    /// Output tokens in the usage show that the engine generated something, even if all texts are empty.
    fn note_generated_output(&mut self, delta: &Delta) {
        self.has_answer |= self.has_output && delta.reports_output_tokens();
    }

    fn finish_parsed_event(&mut self, event_type: &str) -> Delta {
        let is_valid = self.scanner.is_complete() && self.scanner.is_object();
        let type_in_data = self.delta_builder.event_type.take();
        let event_type = if event_type.is_empty() {
            type_in_data.as_deref().unwrap_or("")
        } else {
            event_type
        };
        let is_empty = self.scanner.is_empty();
        let mut delta = if is_empty {
            Delta::default()
        } else {
            self.finish_delta(is_valid, self.schema.output_of(event_type))
        };
        if self.schema.has_typed_text {
            self.summary
                .commit_or_discard_text(TEXT_EVENT_TYPES.contains(&event_type));
            self.summary.is_refusal |= is_valid && event_type == REFUSAL_EVENT_TYPE;
        }
        self.summary.commit_or_discard_text(true);
        delta.terminal = self.schema.terminal_types.contains(&event_type);
        delta.is_keep_alive = is_empty && !delta.terminal || HEARTBEATS.contains(&event_type);
        if event_type == ERROR_EVENT_TYPE {
            delta.error.get_or_insert_default();
            if delta.output == OutputKind::Unknown.into() {
                delta.output = OutputKinds::default();
            }
        }
        self.has_output |= !delta.output.is_empty();
        self.has_answer |= shows_answer(&delta);
        self.note_generated_output(&delta);
        self.has_answer |= delta.terminal && self.delta_builder.has_document_answer;
        delta
    }

    /// Parses an event that matched the template so far, but that the template cannot represent. The stored
    /// data of the template is parsed in its place. Only the text differs, and no text is needed while a
    /// template exists.
    fn parse_template_data(&mut self) {
        self.event_state = EventState::Parsing;
        let data = self
            .template
            .as_mut()
            .map(EventTemplate::discard)
            .unwrap_or_default();
        self.scan(&data);
    }

    /// Ends a response that is not a stream and returns its content. The caller must have passed all data to
    /// [`Self::data`].
    ///
    /// [`Delta::terminal`] is false if the JSON of the response ends too early. Data that is not JSON counts as
    /// complete.
    pub fn end_whole(&mut self) -> Delta {
        let is_valid = self.scanner.is_complete();
        let is_cut = !is_valid && !self.scanner.has_failed() && self.schema.is_known;
        let is_error = self.delta_builder.event_type.as_deref() == Some(ERROR_EVENT_TYPE);
        let event_output = if is_error {
            EventOutput::Error
        } else {
            EventOutput::Fields
        };
        let is_document_answer = self.is_document_answer();
        let delta = self.finish_delta(is_valid, event_output);
        self.summary.commit_or_discard_text(true);
        self.has_answer |= is_document_answer || (is_valid && shows_answer(&delta));
        Delta {
            terminal: !is_cut,
            ..delta
        }
    }

    /// Whether the data of a complete response is an answer, even without output, a finish reason or an error.
    /// Data in an unknown format counts as an answer.
    fn is_document_answer(&self) -> bool {
        let is_valid = self.scanner.is_complete();
        match self.scanner.first_byte() {
            Some(b'{') if is_valid => self.delta_builder.has_document_answer,
            Some(b'[') if is_valid => !self.scanner.is_empty_container(),
            Some(b'[') => self.scanner.has_failed() && !self.schema.is_known,
            // The data is JSON with an extension such as `NaN`, or JSON after a byte order mark.
            Some(b'{' | 0xEF) => self.scanner.has_failed(),
            Some(b'0'..=b'9' | b'-' | b't' | b'f') if is_valid => !self.schema.is_known,
            Some(b'n') if is_valid => false,
            Some(_) => self.schema.has_plain_text && (is_valid || self.scanner.has_failed()),
            None => false,
        }
    }

    /// Whether the response has an answer so far: output, a finish reason, an error, or a complete response in
    /// another format that may be an answer.
    pub fn has_answer(&self) -> bool {
        self.has_answer
    }

    /// Whether a text without JSON can be an answer of this API: a transcription can be plain text.
    pub fn has_plain_text(&self) -> bool {
        self.schema.has_plain_text
    }

    /// Whether all data of an event has arrived, although the blank line that ends the event is missing.
    pub fn has_whole_event(&self) -> bool {
        match self.event_state {
            EventState::MatchingDone(matched) => matched == DONE_MARKER.len(),
            EventState::MatchingTemplate => true,
            EventState::Parsing => self.scanner.is_complete(),
        }
    }

    /// Whether a stream is complete whose body ended without an error and without a terminal event. True if
    /// each choice has a finish reason, or if the gateway does not know the format of the events.
    pub fn is_complete_at_end(&self) -> bool {
        let has_unknown_format = self.has_output && self.summary.finish_reasons().next().is_none();
        !self.schema.is_known || self.summary.has_ended_choices() || has_unknown_format
    }

    /// Whether the gateway knows the response format of this API, so that it can read the output.
    pub fn knows_format(&self) -> bool {
        self.schema.is_known
    }

    /// The state of the response after the events so far.
    pub fn answer(&self) -> &ResponseSummary {
        &self.summary
    }

    /// Whether the current event matches the template so far.
    #[cfg(test)]
    pub(super) fn is_matching_template(&self) -> bool {
        self.event_state == EventState::MatchingTemplate
    }

    fn scan(&mut self, piece: &[u8]) {
        let Self {
            schema,
            scanner,
            delta_builder,
            template,
            summary,
            sample,
            ..
        } = self;
        scanner.scan(&schema.paths, piece, |field, value, end| {
            if let JsonValue::Text(text) = value
                && field.is_text()
            {
                let is_answer = matches!(field, ResponseField::Output(OutputKind::Text));
                sample.add(text.raw(), is_answer);
                if let Some(template) = &mut *template {
                    template.on_text(text.len(), end);
                }
            }
            delta_builder.read(field, value, summary);
        });
    }

    /// Ends the event. A malformed event counts as output, because a client may understand it. Its delta has no
    /// other content, even if some fields were parsed. If the format is known, a single event with plain text
    /// is probably an error, so plain text counts from the second such event on.
    fn finish_delta(&mut self, is_valid: bool, event_output: EventOutput) -> Delta {
        let is_text = match self.scanner.first_byte() {
            Some(b'{') => false,
            Some(b'[') => !self.scanner.is_complete(),
            _ => true,
        };
        self.scanner.reset();
        if !is_valid {
            self.delta_builder = DeltaBuilder::default();
            self.summary.discard_event();
            let is_held = is_text && self.schema.is_known && !self.has_text_event;
            self.has_text_event |= is_text;
            return Delta {
                output: if is_held {
                    OutputKinds::default()
                } else {
                    OutputKind::Unknown.into()
                },
                malformed: self.schema.is_known,
                ..Delta::default()
            };
        }
        self.delta_builder.has_earlier_output = self.has_output;
        let leaves_out_cache = self.schema.input_leaves_out_cache;
        self.delta_builder
            .end(&mut self.summary, event_output, leaves_out_cache)
    }
}

/// Whether an event has output, a finish reason or an error. The finish reason `error` does not count: the
/// engine failed.
fn shows_answer(delta: &Delta) -> bool {
    let is_finished = delta
        .finish
        .is_some_and(|finish| finish != FinishReason::Error);
    let has_output = !delta.output.is_empty() && !delta.is_empty_text;
    has_output || is_finished || delta.error.is_some()
}
