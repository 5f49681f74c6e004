//! The latency clock: bytes and instants go in, marks and counts come out. It can neither break
//! nor delay a stream: nothing it does can fail, and what it cannot read it leaves alone.

use super::cut::{Cut, Edit};
use super::lane::Lane;
use super::member::Apart;
use super::strip::Strip;
use crate::openai::{Api, Channel, Delta, Excerpt, Finish, Phrases, Reader};
use crate::record::{Asked, Lost, Observed, Scales, Timings, UsageEvent, UsageSource};
use crate::sse::{Decoder, Piece};
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Observes the answer to one request.
#[derive(Debug)]
pub struct Observer {
    mode: Mode,
    decoder: Decoder,
    reader: Reader,
    observed: Observed,
    /// The choices that had output, by index.
    lanes: Vec<Lane>,
    /// The client held the stream up until then, and for how long since the last output.
    held_until: Option<Instant>,
    held: Duration,
    strip: Option<Strip>,
    /// In place of `strip`, where the counts of every event were asked for.
    cut: Option<Box<(Cut, Apart)>>,
}

/// What a piece of an answer brought.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Events with output.
    pub outputs: u32,
    /// The longest gap before one of them.
    pub gap: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Server-sent events.
    Stream,
    /// One JSON document.
    Whole,
    /// Bytes that are not read.
    Blind,
}

/// Choices beyond this have one lane.
const MAX_LANES: usize = 128;

impl Observer {
    /// An observer of answers of this shape, before the head of one has come.
    pub fn new(api: Api) -> Self {
        Self {
            mode: Mode::Blind,
            decoder: Decoder::new(),
            reader: Reader::new(api),
            observed: Observed::default(),
            lanes: Vec::new(),
            held_until: None,
            held: Duration::ZERO,
            strip: None,
            cut: None,
        }
    }

    /// Looks for phrases in the answer.
    pub fn look_for(&mut self, phrases: Option<Arc<Phrases>>) {
        self.reader.look_for(phrases);
    }

    /// Keeps the text of the answer.
    pub fn keep_text(&mut self, excerpt: Excerpt) {
        self.reader.keep_text(excerpt);
    }

    /// Counts under these bounds what is still to come.
    pub fn measure_by(&mut self, scales: &Scales) {
        self.observed.measure_by(scales);
    }

    /// The head of the answer came: its media type, and whether its body is encoded.
    pub fn on_head(&mut self, media_type: &str, is_encoded: bool) {
        self.mode = match media_type {
            _ if is_encoded => Mode::Blind,
            stream if stream.eq_ignore_ascii_case("text/event-stream") => Mode::Stream,
            json if json.eq_ignore_ascii_case("application/json") => Mode::Whole,
            _ => Mode::Blind,
        };
        self.observed.is_stream = self.mode == Mode::Stream;
        self.observed.lost = is_encoded.then_some(Lost::Uninspectable);
    }

    /// A document about the answer that came in its head instead of in a body of bytes.
    pub fn on_metadata(&mut self, document: &[u8], now: Instant, timings: &mut Timings) {
        if self.mode == Mode::Blind {
            self.reader.data(document);
            // The body is still to come, and a header that is something else is no fault of it.
            let delta = Delta { terminal: false, malformed: false, ..self.reader.end_whole() };
            self.take_in(delta, now, timings);
        }
    }

    /// The usage event is to be taken out of the stream: the gateway asked for it, not the client.
    pub fn take_usage_event(&mut self) {
        if self.mode == Mode::Stream {
            self.strip = Some(Strip::default());
            self.observed.usage_event = Some(UsageEvent::Missed);
        }
    }

    /// The usage that the gateway asked for, and not the client, is to be removed from the stream.
    pub fn remove_injected_usage(&mut self, asked: &Asked) {
        match (asked.usage_injected, asked.continuous_usage_injected) {
            (true, true) => self.remove_all_usage(),
            (true, false) => self.take_usage_event(),
            (false, _) => {}
        }
    }

    /// The usage of every event is to be removed from the stream: the gateway asked for it, not the
    /// client.
    pub fn remove_all_usage(&mut self) {
        if self.mode == Mode::Stream {
            self.cut = Some(Box::default());
            self.observed.usage_event = Some(UsageEvent::Missed);
            self.observed.has_continuous_usage = true;
        }
    }

    /// Whether [`Observer::forward`] may give other bytes than it gets.
    pub fn is_stripping(&self) -> bool {
        self.strip.is_some() || self.cut.is_some()
    }

    /// Some of the body came at `now`. Every event that it completes has that time.
    pub fn on_data(&mut self, bytes: &[u8], now: Instant, timings: &mut Timings) -> Arrival {
        match self.mode {
            Mode::Stream => return self.read_events(bytes, now, timings),
            Mode::Whole => self.reader.data(bytes),
            Mode::Blind => {}
        }
        Arrival::default()
    }

    /// What of a frame, once it has been read, goes on to the client.
    pub fn forward(&mut self, frame: Bytes) -> Bytes {
        if let Some(strip) = &mut self.strip {
            return strip.forward(frame);
        }
        let Some((cut, _)) = self.cut.as_deref_mut() else { return frame };
        let frame = cut.forward(frame);
        if cut.has_failed() {
            self.observed.usage_event = Some(UsageEvent::Unremoved);
        }
        frame
    }

    /// What was kept back, when nothing more comes.
    pub fn flush(&mut self) -> Bytes {
        if let Some((cut, _)) = self.cut.as_deref_mut() {
            return cut.flush();
        }
        self.strip.as_mut().map(Strip::flush).unwrap_or_default()
    }

    /// From `since` to `until` the client did not take what had come.
    pub fn on_held_up(&mut self, since: Instant, until: Instant) {
        let held = until.saturating_duration_since(since);
        self.observed.write_stall += held;
        self.held += held;
        self.held_until = Some(until);
    }

    /// The body ended as HTTP says it should.
    pub fn on_end(&mut self, now: Instant, timings: &mut Timings) {
        match self.mode {
            Mode::Stream => {}
            Mode::Whole => {
                let delta = self.reader.end_whole();
                self.observed.has_answer |= delta.output == Some(Channel::Answer);
                self.take_in(delta, now, timings);
            }
            Mode::Blind => self.observed.is_terminal = true,
        }
    }

    /// The answer is not read, only counted.
    pub fn is_blind(&self) -> bool {
        self.mode == Mode::Blind
    }

    /// Whether all that came so far are whole events.
    pub fn is_between_events(&self) -> bool {
        self.mode == Mode::Stream && self.decoder.is_between_blocks()
    }

    /// The engine gave up a choice.
    pub fn is_given_up(&self) -> bool {
        self.reader.answer().finish_reasons().any(|finish| finish == Some(Finish::Abort))
    }

    /// What was seen so far.
    pub fn observed(&mut self) -> &mut Observed {
        &mut self.observed
    }

    /// What was seen.
    pub fn into_observed(mut self) -> Observed {
        for lane in &mut self.lanes {
            lane.settle(&mut self.observed);
        }
        let text = self.reader.take_text();
        let answer = self.reader.answer();
        Observed {
            text,
            finish_reasons: answer.finish_reasons().collect(),
            response_id: answer.id.clone(),
            response_model: answer.model.clone(),
            has_refusal_phrase: answer.has_phrase,
            is_refusal: answer.is_refusal,
            usage_source: UsageSource::of(&self.observed),
            ..self.observed
        }
    }

    fn read_events(&mut self, bytes: &[u8], now: Instant, timings: &mut Timings) -> Arrival {
        let mut arrival = Arrival::default();
        let mut rest = bytes;
        while let Some(piece) = self.decoder.next(&mut rest) {
            let mut is_usage_event = false;
            let mut has_usage = false;
            match piece {
                Piece::Data(data) => {
                    if self.cut.is_some() {
                        self.read_apart(data);
                    } else {
                        self.reader.data(data);
                    }
                    continue;
                }
                Piece::Comment => {
                    self.observed.comments += 1;
                    continue;
                }
                Piece::Blank => {}
                Piece::Dispatch => {
                    let delta = self.reader.end_event(self.decoder.event_type());
                    is_usage_event = delta.is_usage_event;
                    has_usage = delta.usage.is_some();
                    self.on_event(delta, now, timings, &mut arrival);
                }
            }
            let is_crlf = self.decoder.is_after_cr() && rest.starts_with(b"\n");
            let end = bytes.len() - rest.len() + usize::from(is_crlf);
            if self.cut.is_some() {
                self.end_cut_block(end, Edit::of(is_usage_event, has_usage));
            }
            self.end_block(end, is_usage_event);
        }
        arrival
    }

    /// Reads data of an event from which usage is removed: the usage and the rest apart.
    #[cold]
    fn read_apart(&mut self, data: &[u8]) {
        let cut = self.cut.as_deref_mut().filter(|_| self.reader.is_between_events());
        match cut.and_then(|(_, apart)| apart.take(data)) {
            Some((rest, usage)) => self.reader.data_without_usage(rest, usage),
            None => self.reader.data(data),
        }
    }

    #[cold]
    fn end_cut_block(&mut self, end: usize, edit: Edit) {
        let cut = self.cut.as_deref_mut();
        if cut.is_some_and(|(cut, _)| cut.on_block(end, edit)) {
            self.observed.usage_event = Some(UsageEvent::Stripped);
        }
    }

    fn end_block(&mut self, end: usize, is_usage_event: bool) {
        let Some(strip) = &mut self.strip else { return };
        if strip.on_block(end, is_usage_event) {
            self.observed.usage_event = Some(UsageEvent::Stripped);
        }
    }

    fn on_event(
        &mut self,
        delta: Delta,
        now: Instant,
        timings: &mut Timings,
        arrival: &mut Arrival,
    ) {
        self.observed.events += 1;
        timings.first_event.get_or_insert(now);
        if let Some(channel) = delta.output {
            timings.first_output.get_or_insert(now);
            timings.last_output = Some(now);
            if channel == Channel::Answer {
                timings.first_answer.get_or_insert(now);
                self.observed.has_answer = true;
            }
            arrival.outputs += 1;
            arrival.gap = arrival.gap.max(self.on_output(&delta, now));
        } else if matches!(delta.finish, Some(Finish::Stop | Finish::ToolCalls)) {
            // The token that ended it had no text.
            self.observed.estimated_tokens += 1;
        }
        let is_told_anyway = delta.usage.is_some() && !delta.is_usage_event;
        if let Some(strip) = self.strip.as_mut().filter(|strip| strip.is_watching())
            && is_told_anyway
        {
            // The server tells usage with every event: its client gets it without asking.
            self.observed.usage_event = Some(UsageEvent::Forced);
            strip.give_up();
        }
        self.take_in(delta, now, timings);
    }

    fn on_output(&mut self, delta: &Delta, now: Instant) -> Option<Duration> {
        let Self { lanes, observed, held_until, held, .. } = self;
        observed.last_output_held = std::mem::take(held);
        observed.output_events += 1;
        observed.estimated_tokens += u64::from(delta.tokens.unwrap_or(1));
        match delta.tokens {
            Some(tokens) => observed.tokens_in_events += u64::from(tokens),
            None => observed.uncounted_events += 1,
        }
        let index = delta.choice.min(MAX_LANES - 1);
        if lanes.len() <= index {
            lanes.resize(index + 1, Lane::default());
        }
        lanes[index].on_output(delta.tokens, now, *held_until, observed)
    }

    fn take_in(&mut self, delta: Delta, now: Instant, timings: &mut Timings) {
        let observed = &mut self.observed;
        if let Some(usage) = &delta.usage {
            observed.usage.absorb(usage);
        }
        observed.engine = delta.engine.or(observed.engine);
        if let Some(error) = delta.error {
            observed.error.get_or_insert(error);
        }
        if delta.terminal {
            observed.is_terminal = true;
            timings.terminal.get_or_insert(now);
        }
        if delta.malformed {
            observed.lost = Some(Lost::Malformed);
        }
    }
}

/// A pause shorter than this between taking one frame and asking for the next is no sign of a
/// client that is slow.
pub(super) const LEAST_WRITE_STALL: Duration = Duration::from_millis(1);
