//! Latency measurement of one response: bytes and instants go in, milestones and counts come out.
//!
//! The observer can neither fail nor delay a stream. It forwards bytes that it cannot parse
//! unchanged.

mod model_rename;

use super::choice_timer::{ChoiceTimer, MAX_TIMED_CHOICES};
use super::inspection::{BodyStart, ChunkSummary, InspectionMode, is_text};
use super::usage_filters::{EventParts, UsageStage};
use crate::record::{ObservedResponse, RequestOptions, Timings, UninspectedReason};
use bytes::Bytes;
use model_rename::ModelRename;
use std::time::{Duration, Instant};
use tokenweir_protocol::openai::{Api, Delta, FinishReason, OutputKind, ResponseReader};
use tokenweir_protocol::sse::{SseDecoder, SsePiece};

/// Reads the bytes of one response, and measures its latencies, tokens and result.
#[derive(Debug)]
pub struct ResponseObserver {
    mode: InspectionMode,
    decoder: SseDecoder,
    pub(super) reader: ResponseReader,
    observed: Box<ObservedResponse>,
    /// The timers of the choices that had output, by choice index.
    choice_timers: Vec<ChoiceTimer>,
    /// End of the last write stall. `None`: no write stall so far.
    write_stalled_until: Option<Instant>,
    /// Sum of the write stalls since the last output.
    recent_write_stall: Duration,
    /// Removes the usage that the gateway requested.
    usage: UsageStage,
    /// Renames the model. `None`: the client gets the name that the backend sent.
    rename: Option<Box<ModelRename>>,
    /// Number of events that serve only to keep the connection open.
    keep_alive_events: u64,
    /// Whether the stream had lines that are no part of an event.
    has_unknown_lines: bool,
    has_line_output: bool,
    /// Whether the response must have an answer to be complete.
    expects_answer: bool,
    /// The meaning of the first bytes of a body that is not parsed.
    start: BodyStart,
    /// Whether the terminal event or the end of the body has been processed.
    has_ended: bool,
}

impl ResponseObserver {
    /// An observer of a response of this API. The head of the response has not arrived.
    pub fn new(api: Api) -> Self {
        Self {
            mode: InspectionMode::Opaque,
            decoder: SseDecoder::new(),
            reader: ResponseReader::new(api),
            observed: Box::default(),
            choice_timers: Vec::new(),
            write_stalled_until: None,
            recent_write_stall: Duration::ZERO,
            usage: UsageStage::default(),
            rename: None,
            keep_alive_events: 0,
            has_unknown_lines: false,
            has_line_output: false,
            expects_answer: false,
            start: BodyStart::NotArrived,
            has_ended: false,
        }
    }

    /// Processes the head. `is_encoded`: the body has a content encoding, such as gzip, and cannot
    /// be parsed.
    pub fn on_head(&mut self, media_type: &str, is_encoded: bool) {
        self.mode = InspectionMode::for_body(media_type, is_encoded);
        self.observed.is_stream = self.mode == InspectionMode::Stream;
        self.observed.uninspected_reason = is_encoded.then_some(UninspectedReason::ContentEncoded);
    }

    /// From now on, the response counts as complete only if it has an answer. Called after [`Self::on_head`],
    /// with the media type of the body.
    pub fn expect_answer(&mut self, media_type: &str) {
        self.expects_answer = true;
        let is_readable =
            self.mode == InspectionMode::Opaque && self.observed.uninspected_reason.is_none();
        if is_readable && is_text(media_type) {
            let can_be_plain = self.reader.has_plain_text();
            let can_be_empty = can_be_plain && !media_type.is_empty();
            self.start = BodyStart::Text {
                can_be_plain,
                can_be_empty,
            };
        }
    }

    /// Whether the body is parsed. Called after [`Self::on_head`].
    pub(super) fn reads_body(&self) -> bool {
        self.mode != InspectionMode::Opaque
    }

    /// Reads a JSON document with usage that came in a response header instead of in the body.
    pub fn on_metadata(&mut self, document: &[u8], now: Instant, timings: &mut Timings) {
        self.reader.data(document);
        // The body is still to come, and a header that is not JSON is no error of the response.
        let delta = Delta {
            terminal: false,
            malformed: false,
            ..self.reader.end_whole()
        };
        self.merge_delta(delta, now, timings);
    }

    /// Observes a chunk of the body. Every event that the chunk completes has the time `now`.
    pub fn on_data(&mut self, bytes: &[u8], now: Instant, timings: &mut Timings) -> ChunkSummary {
        match self.mode {
            InspectionMode::Stream => return self.read_events(bytes, now, timings),
            InspectionMode::Json => self.reader.data(bytes),
            InspectionMode::Opaque => self.start = self.start.after(bytes),
        }
        self.usage.on_unread(bytes, &mut self.observed);
        ChunkSummary::default()
    }

    /// From now on, removes the usage that only the gateway requested. Called after [`Self::on_head`].
    /// `fingerprint`: the `system_fingerprint` member of an earlier stream of the server.
    pub fn remove_injected_usage(&mut self, options: &RequestOptions, fingerprint: Option<Bytes>) {
        self.usage = UsageStage::new(options, fingerprint, &mut self.observed);
    }

    /// From now on, writes this name into the field `model` of the response. Called after [`Self::on_head`].
    pub fn rename_model(&mut self, name: &str) {
        let is_stream = self.mode == InspectionMode::Stream;
        if self.reads_body() {
            self.rename = Some(Box::new(ModelRename::new(name, is_stream)));
        }
    }

    /// Whether [`ResponseObserver::forward`] can change bytes, because usage is removed or the model is
    /// renamed.
    pub fn changes_bytes(&self) -> bool {
        self.usage.is_active() || self.rename.is_some()
    }

    /// The bytes to forward of a frame that was passed to [`ResponseObserver::on_data`].
    pub fn forward(&mut self, frame: Bytes) -> Bytes {
        let frame = self.usage.forward(frame);
        match &mut self.rename {
            Some(rename) => rename.push(&frame),
            None => frame,
        }
    }

    /// The bytes that are still held back. Called when the body has ended.
    pub fn flush(&mut self) -> Bytes {
        let held = self.usage.flush();
        match &mut self.rename {
            Some(rename) => [rename.push(&held), rename.finish()].concat().into(),
            None => held,
        }
    }

    /// Records a write stall: from `since` to `until` the client did not read data that was ready.
    pub fn on_write_stall(&mut self, since: Instant, until: Instant) {
        let stall = until.saturating_duration_since(since);
        self.observed.write_stall += stall;
        self.recent_write_stall += stall;
        self.write_stalled_until = Some(until);
    }

    /// Records that the body ended regularly by HTTP framing, for example with its last chunk or
    /// after its declared length.
    pub fn on_end(&mut self, now: Instant, timings: &mut Timings) {
        self.has_ended = true;
        match self.mode {
            InspectionMode::Stream => self.on_stream_end(now, timings),
            InspectionMode::Json => {
                let delta = self.reader.end_whole();
                self.observed.has_answer |= delta.output.has_answer();
                self.merge_delta(delta, now, timings);
            }
            InspectionMode::Opaque => {
                self.observed.is_complete = !self.expects_answer || self.start.is_answer_at_end();
            }
        }
    }

    /// Ends a stream whose body has ended regularly. The last event may lack its blank line.
    fn on_stream_end(&mut self, now: Instant, timings: &mut Timings) {
        if self.decoder.has_pending_data() && self.reader.has_whole_event() {
            let mut rest: &[u8] = b"\n\n";
            while let Some(piece) = self.decoder.next(&mut rest) {
                if piece == SsePiece::Dispatch {
                    let delta = self.reader.finish_event(self.decoder.event_type());
                    let event = self.usage.on_event(&delta, &mut self.observed);
                    self.on_event(delta, now, timings, &mut ChunkSummary::default());
                    self.usage.on_block(0, event, &mut self.observed);
                }
            }
        }
        self.observed.is_complete |= self.reader.is_complete_at_end() && self.is_answered();
    }

    /// Whether more of the response is needed to decide whether it is an answer, or which error it reports.
    /// `is_success`: whether its status is a success.
    pub fn is_awaited(&self, is_success: bool) -> bool {
        match self.mode {
            _ if self.has_ended || self.observed.error.is_some() => false,
            InspectionMode::Opaque if is_success => {
                self.expects_answer && self.start.is_undecided()
            }
            InspectionMode::Opaque => self.observed.uninspected_reason.is_none(),
            InspectionMode::Stream | InspectionMode::Json => true,
        }
    }

    /// Whether the response so far shows that it is not the answer that its API requires.
    pub fn lacks_answer(&self) -> bool {
        let has_shown = self.has_ended || self.start == BodyStart::NoAnswer;
        self.expects_answer && has_shown && !self.observed.is_complete
    }

    /// Whether the answer has begun in a body that is not parsed.
    pub fn has_opaque_answer(&self) -> bool {
        self.start == BodyStart::Answer
    }

    /// Counts a response without an answer as complete, because the request asked for nothing.
    pub fn accept_empty_answer(&mut self) {
        self.expects_answer = false;
        self.observed.is_complete |= self.has_ended;
    }

    /// Whether the response so far has an answer, or needs none.
    pub fn is_answered(&self) -> bool {
        !self.expects_answer || self.reader.has_answer() || self.has_line_output
    }

    /// Whether the stream is between two events, without an incomplete event.
    pub fn is_between_events(&self) -> bool {
        self.mode == InspectionMode::Stream && self.decoder.is_between_blocks()
    }

    /// Whether a part of an event has been forwarded without its end.
    pub fn is_inside_event(&self) -> bool {
        self.mode == InspectionMode::Stream && !self.decoder.is_between_blocks()
    }

    /// Whether the response so far serves only to keep the connection open: comments, blank lines and events
    /// without content of a stream, or white space before JSON.
    pub fn has_only_keep_alive(&self) -> bool {
        match self.mode {
            InspectionMode::Stream => {
                let has_content = self.observed.events > self.keep_alive_events;
                !has_content && !self.has_unknown_lines && self.is_between_events()
            }
            InspectionMode::Json => self.reader.is_between_events(),
            InspectionMode::Opaque => false,
        }
    }

    /// Whether a choice ended with the finish reason `abort`.
    pub fn has_aborted_choice(&self) -> bool {
        self.reader
            .answer()
            .finish_reasons()
            .any(|finish| finish == Some(FinishReason::Abort))
    }

    /// The observations so far.
    pub fn observed(&self) -> &ObservedResponse {
        &self.observed
    }

    /// The id of the response. `None`: no id has arrived.
    pub(super) fn response_id(&self) -> Option<&str> {
        self.reader.answer().id.as_deref()
    }

    /// The observations so far. The caller can change them.
    pub(super) fn observed_mut(&mut self) -> &mut ObservedResponse {
        &mut self.observed
    }

    /// Completes the observations and returns them.
    pub fn into_observed(mut self) -> Box<ObservedResponse> {
        for timer in &mut self.choice_timers {
            timer.finish_arrival(&mut self.observed);
        }
        let observed = &mut self.observed;
        observed.text_sample = self.reader.text_sample();
        observed.text_excerpt = self.reader.take_text_excerpt();
        let answer = self.reader.answer();
        observed.finish_reasons = answer.finish_reasons().collect();
        observed.response_id.clone_from(&answer.id);
        observed.response_model.clone_from(&answer.model);
        observed.has_refusal_phrase = answer.has_phrase;
        observed.is_refusal = answer.is_refusal;
        observed.usage_source = observed.token_count_source();
        self.usage.report(observed);
        self.observed
    }

    fn read_events(&mut self, bytes: &[u8], now: Instant, timings: &mut Timings) -> ChunkSummary {
        let mut chunk_summary = ChunkSummary::default();
        let mut rest = bytes;
        while let Some(piece) = self.decoder.next(&mut rest) {
            let mut event = EventParts::default();
            match piece {
                SsePiece::Data(data) => {
                    self.usage.read(data, bytes, &mut self.reader);
                    continue;
                }
                SsePiece::Comment => {
                    self.observed.comments += 1;
                    continue;
                }
                SsePiece::UnknownLine => {
                    chunk_summary.outputs += self.on_unknown_line(now, timings);
                    continue;
                }
                SsePiece::Blank => {}
                SsePiece::Dispatch => {
                    let delta = self.reader.finish_event(self.decoder.event_type());
                    event = self.usage.on_event(&delta, &mut self.observed);
                    self.on_event(delta, now, timings, &mut chunk_summary);
                }
            }
            if self.usage.is_active() {
                let is_crlf = self.decoder.is_after_cr() && rest.starts_with(b"\n");
                let end = bytes.len() - rest.len() + usize::from(is_crlf);
                self.usage.on_block(end, event, &mut self.observed);
            }
        }
        if chunk_summary.outputs > 0 {
            self.observed
                .chunk_timings
                .record(timings.accepted, now, chunk_summary.gap);
        }
        chunk_summary
    }

    /// Records a line that is no event. Returns the number of outputs in the line: a client may read a line of
    /// JSON or of another format.
    #[cold]
    fn on_unknown_line(&mut self, now: Instant, timings: &mut Timings) -> u32 {
        self.has_unknown_lines = true;
        if !self.decoder.is_json_line() && self.reader.knows_format() {
            return 0;
        }
        self.has_line_output = true;
        timings.on_output(OutputKind::Unknown.into(), now);
        1
    }

    fn on_event(
        &mut self,
        delta: Delta,
        now: Instant,
        timings: &mut Timings,
        chunk_summary: &mut ChunkSummary,
    ) {
        self.observed.events += 1;
        timings.first_event.get_or_insert(now);
        if !delta.output.is_empty() {
            timings.on_output(delta.output, now);
            self.observed.has_answer |= delta.output.has_answer();
            chunk_summary.outputs += 1;
            chunk_summary.gap = chunk_summary.gap.max(self.on_output(&delta, now));
            if delta.output.has(OutputKind::Unknown) && self.reader.knows_format() {
                let reason = &mut self.observed.uninspected_reason;
                reason.get_or_insert(UninspectedReason::UnknownOutput);
            }
        } else if matches!(
            delta.finish,
            Some(FinishReason::Stop | FinishReason::ToolCalls)
        ) {
            // The engine also counts the end token, which has no text.
            self.observed.estimated_tokens += 1;
        } else {
            self.keep_alive_events += u64::from(delta.is_keep_alive);
        }
        self.merge_delta(delta, now, timings);
    }

    fn on_output(&mut self, delta: &Delta, now: Instant) -> Option<Duration> {
        let Self {
            choice_timers,
            observed,
            write_stalled_until,
            recent_write_stall,
            ..
        } = self;
        observed.last_output_write_stall = std::mem::take(recent_write_stall);
        observed.output_events += 1;
        observed.estimated_tokens += u64::from(delta.tokens.unwrap_or(1));
        match delta.tokens {
            Some(tokens) => observed.counted_event_tokens += u64::from(tokens),
            None => observed.uncounted_events += 1,
        }
        let index = delta.choice.min(MAX_TIMED_CHOICES - 1);
        if choice_timers.len() <= index {
            choice_timers.resize(index + 1, ChoiceTimer::default());
        }
        choice_timers[index].on_output(delta.tokens, now, *write_stalled_until, observed)
    }

    fn merge_delta(&mut self, delta: Delta, now: Instant, timings: &mut Timings) {
        if delta.terminal {
            self.has_ended = true;
            self.observed.is_complete |= self.is_answered();
            timings.terminal.get_or_insert(now);
        }
        let observed = &mut self.observed;
        if let Some(usage) = &delta.usage {
            observed.usage.absorb(usage);
        }
        observed.engine_times = delta.engine.or(observed.engine_times);
        if let Some(error) = delta.error {
            observed.error.get_or_insert(error);
        }
        if delta.malformed {
            observed.uninspected_reason = Some(UninspectedReason::Malformed);
        }
    }
}

#[cfg(test)]
mod answer_tests;
