//! Writes events as the bytes of a stream. It uses all valid forms of server-sent events.

use super::expected_stream::{Event, GeneratedStream, Meaning};
use super::{chance, members};
use fastrand::Rng;

/// Writes one stream in one form of server-sent events.
pub(crate) struct Framing {
    pub stream: GeneratedStream,
    pub random: Rng,
    ending: Ending,
    has_space: bool,
    /// Probability in percent that comments, blank lines, unknown fields or split data are added.
    noise: u8,
    /// Probability in percent that an event has its members in another order, or unknown members.
    variation: u8,
    /// Number of body bytes up to the end of the data that was written last.
    data_end: usize,
    is_after_cr: bool,
}

#[derive(Clone, Copy)]
enum Ending {
    Lf,
    CrLf,
    Cr,
    /// A random line ending for each line.
    Mixed,
}

impl Framing {
    /// Creates a writer with a random form of events. Mostly it is that of vLLM: LF as line ending, and one
    /// space after the colon.
    pub(crate) fn new(mut random: Rng) -> Self {
        let is_plain = chance(&mut random, 60);
        let ending = match random.u8(..5) {
            _ if is_plain => Ending::Lf,
            0 => Ending::CrLf,
            1 => Ending::Cr,
            2 => Ending::Mixed,
            _ => Ending::Lf,
        };
        let has_space = is_plain || random.bool();
        let noise = if is_plain { 2 } else { 25 };
        let mut framing = Self {
            stream: GeneratedStream::default(),
            ending,
            has_space,
            noise,
            variation: if chance(&mut random, 30) { 40 } else { 0 },
            data_end: 0,
            is_after_cr: false,
            random,
        };
        framing.stream.kinds.push(match ending {
            Ending::Lf => "lines end with LF",
            Ending::CrLf => "lines end with CRLF",
            Ending::Cr => "lines end with CR",
            Ending::Mixed => "lines end in any way",
        });
        if !is_plain && chance(&mut framing.random, 20) {
            framing.stream.bytes.extend_from_slice(b"\xEF\xBB\xBF");
            framing.stream.kinds.push("byte order mark");
        }
        framing
    }

    /// Returns true with a probability of `percent`.
    pub(crate) fn chance(&mut self, percent: u8) -> bool {
        chance(&mut self.random, percent)
    }

    /// Writes an event with the field `event: kind`, or without this field if `kind` is empty. Its data is
    /// one JSON object.
    pub(crate) fn event(&mut self, kind: &str, json: &str, mut meaning: Meaning) {
        let varied = self
            .chance(self.variation)
            .then(|| members::vary(&mut self.random, json, &mut meaning));
        if varied.is_some() {
            self.stream.kinds.push("members in any order");
        }
        let json = varied.as_deref().unwrap_or(json);
        let start = self.begin(kind, &meaning);
        let is_split = self.chance(self.noise) && json.starts_with('{') && json.ends_with('}');
        if is_split {
            // Writes the data in three lines, because JSON permits a line feed after the first brace and
            // before the last one.
            self.data("{".as_bytes());
            self.data(&json.as_bytes()[1..json.len() - 1]);
            self.data("}".as_bytes());
        } else {
            self.data(json.as_bytes());
        }
        self.end(start, meaning);
    }

    /// Writes an event with these bytes as its data in one line.
    pub(crate) fn raw(&mut self, data: &[u8], meaning: Meaning) {
        let start = self.begin("", &meaning);
        self.data(data);
        self.end(start, meaning);
    }

    /// Writes `[DONE]`, the last event of some APIs.
    pub(crate) fn done(&mut self) {
        self.raw(
            b"[DONE]",
            Meaning {
                is_last: true,
                ..Meaning::default()
            },
        );
    }

    /// Writes an error in a field `error`, as old llama.cpp servers do.
    pub(crate) fn error_field(&mut self, json: &str) {
        let error = Some((Some("500"), None));
        let meaning = Meaning {
            error,
            ..Meaning::default()
        };
        let start = self.begin("", &meaning);
        self.data_end = self.stream.bytes.len() + "error: ".len() + json.len();
        self.line(format!("error: {json}").as_bytes());
        self.end(start, meaning);
    }

    /// Writes a keep-alive comment.
    pub(crate) fn comment(&mut self) {
        self.comment_line(b": keep-alive");
        self.line(b"");
    }

    fn begin(&mut self, kind: &str, meaning: &Meaning) -> usize {
        if self.chance(self.noise) {
            match self.random.u8(..3) {
                0 => self.comment(),
                1 => self.line(b""),
                // A block of lines without data is no event. Its type does not apply to the next event.
                _ => {
                    self.line(b"event: error");
                    self.line(b"");
                }
            }
        }
        let start = self.stream.bytes.len();
        // The gateway removes a usage event with all lines of its block, so no other lines are added to it.
        if !meaning.is_usage_event && self.chance(self.noise) {
            match self.random.u8(..3) {
                0 => self.line(b"id: 7"),
                1 => self.line(b"retry: 1000"),
                _ => self.comment_line(b":"),
            }
        }
        if !kind.is_empty() {
            let line = if self.has_space {
                format!("event: {kind}")
            } else {
                format!("event:{kind}")
            };
            self.line(line.as_bytes());
        }
        start
    }

    fn end(&mut self, start: usize, meaning: Meaning) {
        // The first byte of the blank line that follows completes the event.
        let complete_at = self.stream.bytes.len() + 1;
        self.line(b"");
        if meaning.is_usage_event {
            self.stream.usage_event = Some(start..self.stream.bytes.len());
        }
        let data_ends_at = self.data_end;
        self.stream.events.push(Event {
            begins_at: start,
            data_ends_at,
            complete_at,
            meaning,
        });
    }

    fn data(&mut self, data: &[u8]) {
        let name: &[u8] = if self.has_space { b"data: " } else { b"data:" };
        self.stream.bytes.extend_from_slice(name);
        self.data_end = self.stream.bytes.len() + data.len();
        self.line(data);
    }

    fn comment_line(&mut self, line: &[u8]) {
        self.stream.comments.push(self.stream.bytes.len() + 1);
        self.line(line);
    }

    fn line(&mut self, line: &[u8]) {
        self.stream.bytes.extend_from_slice(line);
        let ending: &[u8] = match self.ending {
            Ending::Lf => b"\n",
            Ending::CrLf => b"\r\n",
            Ending::Cr => b"\r",
            Ending::Mixed => match self.random.u8(..3) {
                // If the last line ended with CR, an LF would complete a CRLF and not be a blank line.
                0 if !(self.is_after_cr && line.is_empty()) => b"\n",
                1 => b"\r\n",
                _ => b"\r",
            },
        };
        self.is_after_cr = ending == b"\r";
        self.stream.bytes.extend_from_slice(ending);
    }
}
