//! Writes events into a story's bytes in every way that server-sent events may be written.

use super::chance;
use super::story::{Event, Meaning, Story};
use fastrand::Rng;

/// How one stream is written.
pub(crate) struct Framing {
    pub story: Story,
    pub random: Rng,
    ending: Ending,
    has_space: bool,
    /// In percent: comments, blank lines, unknown fields and split data between the events.
    noise: u8,
    is_after_cr: bool,
}

#[derive(Clone, Copy)]
enum Ending {
    Lf,
    CrLf,
    Cr,
    /// Any of them for any line.
    Mixed,
}

impl Framing {
    /// A stream that is written in a random manner: mostly as vLLM writes, with LF and one space.
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
        let mut framing =
            Self { story: Story::default(), ending, has_space, noise, is_after_cr: false, random };
        framing.story.kinds.push(match ending {
            Ending::Lf => "lines end with LF",
            Ending::CrLf => "lines end with CRLF",
            Ending::Cr => "lines end with CR",
            Ending::Mixed => "lines end in any way",
        });
        if !is_plain && chance(&mut framing.random, 20) {
            framing.story.bytes.extend_from_slice(b"\xEF\xBB\xBF");
            framing.story.kinds.push("byte order mark");
        }
        framing
    }

    /// Whether something of this chance happens.
    pub(crate) fn chance(&mut self, percent: u8) -> bool {
        chance(&mut self.random, percent)
    }

    /// An event with this `event` field, none if it is empty, and one JSON object as its data.
    pub(crate) fn event(&mut self, kind: &str, json: &str, meaning: Meaning) {
        let start = self.begin(kind, &meaning);
        let is_split = self.chance(self.noise) && json.starts_with('{') && json.ends_with('}');
        if is_split {
            // A line feed may stand behind the first brace and before the last.
            self.data("{".as_bytes());
            self.data(&json.as_bytes()[1..json.len() - 1]);
            self.data("}".as_bytes());
        } else {
            self.data(json.as_bytes());
        }
        self.end(start, meaning);
    }

    /// An event with these bytes as its data, in one line.
    pub(crate) fn raw(&mut self, data: &[u8], meaning: Meaning) {
        let start = self.begin("", &meaning);
        self.data(data);
        self.end(start, meaning);
    }

    /// The end of the shapes that end with it.
    pub(crate) fn done(&mut self) {
        self.raw(b"[DONE]", Meaning { is_last: true, ..Meaning::default() });
    }

    /// A failure as old llama.cpp servers write it: in a field of its own.
    pub(crate) fn error_field(&mut self, json: &str) {
        let meaning = Meaning { error: Some((None, None)), ..Meaning::default() };
        let start = self.begin("", &meaning);
        self.line(format!("error: {json}").as_bytes());
        self.end(start, meaning);
    }

    /// A keep-alive.
    pub(crate) fn comment(&mut self) {
        self.comment_line(b": keep-alive");
        self.line(b"");
    }

    fn begin(&mut self, kind: &str, meaning: &Meaning) -> usize {
        if self.chance(self.noise) {
            match self.random.u8(..3) {
                0 => self.comment(),
                1 => self.line(b""),
                // A block without data is no event, and its type is forgotten.
                _ => {
                    self.line(b"event: error");
                    self.line(b"");
                }
            }
        }
        let start = self.story.bytes.len();
        // What stands in the block of the usage event is taken with it.
        if !meaning.is_usage_event && self.chance(self.noise) {
            match self.random.u8(..5) {
                0 => self.line(b"id: 7"),
                1 => self.line(b"retry: 1000"),
                2 => self.line(b"database: {\"error\":{\"code\":1}}"),
                3 => self.line(b"data-x"),
                _ => self.comment_line(b":"),
            }
        }
        if !kind.is_empty() {
            let line =
                if self.has_space { format!("event: {kind}") } else { format!("event:{kind}") };
            self.line(line.as_bytes());
        }
        start
    }

    fn end(&mut self, start: usize, meaning: Meaning) {
        // The first byte of the blank line's ending completes an event.
        let complete_at = self.story.bytes.len() + 1;
        self.line(b"");
        if meaning.is_usage_event {
            self.story.usage_event = Some(start..self.story.bytes.len());
        }
        self.story.events.push(Event { complete_at, meaning });
    }

    fn data(&mut self, data: &[u8]) {
        let name: &[u8] = if self.has_space { b"data: " } else { b"data:" };
        self.story.bytes.extend_from_slice(name);
        self.line(data);
    }

    fn comment_line(&mut self, line: &[u8]) {
        self.story.comments.push(self.story.bytes.len() + 1);
        self.line(line);
    }

    fn line(&mut self, line: &[u8]) {
        self.story.bytes.extend_from_slice(line);
        let ending: &[u8] = match self.ending {
            Ending::Lf => b"\n",
            Ending::CrLf => b"\r\n",
            Ending::Cr => b"\r",
            Ending::Mixed => match self.random.u8(..3) {
                // After a CR, a blank line that is an LF would be the rest of a CRLF.
                0 if !(self.is_after_cr && line.is_empty()) => b"\n",
                1 => b"\r\n",
                _ => b"\r",
            },
        };
        self.is_after_cr = ending == b"\r";
        self.story.bytes.extend_from_slice(ending);
    }
}
