//! Event ids for a client that asked for them, and the rest of an event stream after the client's last event.
//! An id names the run, so that no gateway takes it for an event of another response.

use std::fmt;

/// The number of a run. It is random, so that no two runs of any gateways share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunId(u64);

/// The event that a client names in `Last-Event-ID`: `RUN.EVENT`, the run as 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventId {
    /// The run whose response has the event.
    pub run: RunId,
    /// The number of the event. The first event of a stream has the number 1.
    pub event: u64,
}

/// Length of a [`RunId`] as text, in bytes.
const RUN_ID_BYTES: usize = 16;

/// Adds an `id` line with the event's number to each event, and leaves out the first events.
///
/// The line is the last of its event, so that a client that reads line by line has read the whole event before
/// its id. A comment outside an event stays, but the blank line after it is removed, because some clients take
/// such a blank line after an earlier id for an event without data.
#[derive(Debug)]
pub struct EventIds {
    run: RunId,
    /// Number of events to leave out.
    skipped: u64,
    ended: u64,
    line: Line,
    /// Whether a line other than a comment came after the last blank line.
    has_fields: bool,
}

/// The position of the next byte of the stream in its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Start,
    BlankCr,
    Within,
}

impl RunId {
    /// An id for a new run, from a random number.
    pub const fn new(random: u64) -> Self {
        Self(random)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

impl EventId {
    /// Reads a `Last-Event-ID`. `None`: no gateway has sent this id.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (run, rest) = text.split_at_checked(RUN_ID_BYTES)?;
        let event = rest.strip_prefix(b".").filter(|event| !event.is_empty())?;
        let is_run = run
            .iter()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if !is_run || !event.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let run = u64::from_str_radix(str::from_utf8(run).ok()?, 16).ok()?;
        // A number that is too long exceeds the number of events of any response.
        let event = str::from_utf8(event).ok()?.parse().unwrap_or(u64::MAX);
        Some(Self {
            run: RunId(run),
            event,
        })
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.run, self.event)
    }
}

impl EventIds {
    /// Adds event ids for a client that already has all events up to `last`. Event 0: the client has none.
    pub fn after(last: EventId) -> Self {
        let EventId {
            run,
            event: skipped,
        } = last;
        Self {
            run,
            skipped,
            ended: 0,
            line: Line::Start,
            has_fields: false,
        }
    }

    /// Whether the stream has passed all events that the client has.
    pub fn has_skipped(&self) -> bool {
        self.ended >= self.skipped
    }

    /// Reads the next bytes of the stream. Returns the bytes for the client, possibly none.
    pub fn add(&mut self, mut input: &[u8]) -> Vec<u8> {
        let mut output = Vec::with_capacity(input.len() + 48);
        while let Some(&byte) = input.first() {
            match (self.line, byte) {
                (Line::Start, b'\r') => {
                    self.line = Line::BlankCr;
                    input = &input[1..];
                }
                (Line::Start | Line::BlankCr, b'\n') => {
                    self.end_block(&mut output);
                    input = &input[1..];
                }
                (Line::BlankCr, _) => self.end_block(&mut output),
                (Line::Start | Line::Within, _) => {
                    let end = memchr::memchr(b'\n', input).map(|at| at + 1);
                    let (now, rest) = input.split_at(end.unwrap_or(input.len()));
                    self.has_fields |= self.line == Line::Start && byte != b':';
                    self.line = if end.is_some() {
                        Line::Start
                    } else {
                        Line::Within
                    };
                    if self.ended >= self.skipped {
                        output.extend_from_slice(now);
                    }
                    input = rest;
                }
            }
        }
        output
    }

    fn end_block(&mut self, output: &mut Vec<u8>) {
        self.line = Line::Start;
        if !std::mem::take(&mut self.has_fields) {
            return;
        }
        self.ended += 1;
        if self.ended > self.skipped {
            let id = EventId {
                run: self.run,
                event: self.ended,
            };
            output.extend_from_slice(format!("id: {id}\n\n").as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunId = RunId::new(0xab);

    fn with_ids(stream: &str, after: u64, size: usize) -> String {
        let mut ids = EventIds::after(EventId {
            run: RUN,
            event: after,
        });
        let parts = stream
            .as_bytes()
            .chunks(size)
            .flat_map(|part| ids.add(part));
        let text = String::from_utf8(parts.collect()).unwrap();
        text.replace("id: 00000000000000ab.", "id: ")
    }

    #[test]
    fn only_written_ids_are_read() {
        for event in [0, 1, 18, u64::MAX] {
            let id = EventId { run: RUN, event };
            assert_eq!(EventId::parse(id.to_string().as_bytes()), Some(id));
        }
        let too_long = EventId::parse(b"00000000000000ab.99999999999999999999").unwrap();
        assert_eq!(too_long.event, u64::MAX);
        for text in [
            "",
            "0",
            "18",
            "00000000000000ab",
            "00000000000000ab.",
            "0000000000000ab.1",
            "00000000000000AB.1",
            "+0000000000000ab.1",
            "00000000000000ab.+1",
            "00000000000000ab.1 ",
            "00000000000000ab.1.1",
            "evt_0000000000ab.1",
            "\u{e9}abcdefghijklmn.1",
        ] {
            assert_eq!(EventId::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn events_end_with_ids_however_divided() {
        let stream = ": ping\n\ndata: a\n\nevent: e\ndata: b\n\n: note\ndata: [DONE]\n\n: rest";
        let whole = ": ping\ndata: a\nid: 1\n\nevent: e\ndata: b\nid: 2\n\n: note\ndata: [DONE]\nid: 3\n\n: rest";
        for size in 1..=stream.len() {
            assert_eq!(with_ids(stream, 0, size), whole, "{size}");
            assert_eq!(
                with_ids(stream, 2, size),
                ": note\ndata: [DONE]\nid: 3\n\n: rest"
            );
        }
        assert_eq!(with_ids(stream, 3, 9), ": rest");
        assert_eq!(with_ids(stream, u64::MAX, 9), "");
        for size in 1..9 {
            let crlf = with_ids("data: a\r\n\r\ndata: b\r\n\r\n", 1, size);
            assert_eq!(crlf, "data: b\r\nid: 2\n\n");
        }
    }
}
