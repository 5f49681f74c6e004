//! The latency clock: bytes and instants go in, marks and counts come out. It can neither break
//! nor delay a stream: nothing it does can fail, and what it cannot read it leaves alone.

use crate::openai::{Api, Channel, Delta, Reader};
use crate::record::{Lost, Observed, Timings, UsageSource};
use crate::sse::{Decoder, Piece};
use std::time::Instant;

/// Observes the answer to one request.
#[derive(Debug)]
pub struct Observer {
    mode: Mode,
    decoder: Decoder,
    reader: Reader,
    observed: Observed,
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

impl Observer {
    /// An observer of answers of this shape, before the head of one has come.
    pub fn new(api: Api) -> Self {
        Self {
            mode: Mode::Blind,
            decoder: Decoder::new(),
            reader: Reader::new(api),
            observed: Observed::default(),
        }
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
        self.observed.lost = is_encoded.then_some(Lost::Encoded);
    }

    /// Some of the body came at `now`. Every event that it completes has that time.
    pub fn on_data(&mut self, bytes: &[u8], now: Instant, timings: &mut Timings) {
        match self.mode {
            Mode::Stream => self.read_events(bytes, now, timings),
            Mode::Whole => self.reader.data(bytes),
            Mode::Blind => {}
        }
    }

    /// The body ended as HTTP says it should.
    pub fn on_end(&mut self, now: Instant, timings: &mut Timings) {
        match self.mode {
            Mode::Stream => {}
            Mode::Whole => {
                let delta = self.reader.end_whole();
                self.take_in(&delta, now, timings);
            }
            Mode::Blind => self.observed.is_terminal = true,
        }
    }

    /// What was seen.
    pub fn into_observed(self) -> Observed {
        let answer = self.reader.answer();
        Observed {
            finish_reasons: answer.finish_reasons().collect(),
            response_id: answer.id.clone(),
            response_model: answer.model.clone(),
            ..self.observed
        }
    }

    fn read_events(&mut self, mut bytes: &[u8], now: Instant, timings: &mut Timings) {
        while let Some(piece) = self.decoder.next(&mut bytes) {
            match piece {
                Piece::Data(data) => self.reader.data(data),
                Piece::Comment => self.observed.comments += 1,
                Piece::Dispatch => {
                    let delta = self.reader.end_event(self.decoder.event_type());
                    self.observed.events += 1;
                    timings.first_event.get_or_insert(now);
                    if let Some(channel) = delta.output {
                        self.on_output(channel, now, timings);
                        self.observed.tokens_in_events += u64::from(delta.tokens.unwrap_or(0));
                    }
                    self.take_in(&delta, now, timings);
                }
            }
        }
    }

    fn on_output(&mut self, channel: Channel, now: Instant, timings: &mut Timings) {
        self.observed.output_events += 1;
        timings.first_output.get_or_insert(now);
        if channel == Channel::Answer {
            timings.first_answer.get_or_insert(now);
        }
        if let Some(last) = timings.last_output.replace(now) {
            self.observed.gaps.add(now.saturating_duration_since(last));
        }
    }

    fn take_in(&mut self, delta: &Delta, now: Instant, timings: &mut Timings) {
        let observed = &mut self.observed;
        if let Some(usage) = &delta.usage {
            observed.usage.absorb(usage);
        }
        if let Some(error) = &delta.error {
            observed.error.get_or_insert_with(|| error.clone());
        }
        if delta.terminal {
            observed.is_terminal = true;
            timings.terminal.get_or_insert(now);
        }
        if delta.malformed {
            observed.lost = Some(Lost::Malformed);
        }
        observed.usage_source = match observed.usage.output.or(observed.usage.input) {
            None => UsageSource::Missing,
            Some(_) if observed.is_terminal => UsageSource::Exact,
            Some(_) => UsageSource::Continuous,
        };
    }
}
