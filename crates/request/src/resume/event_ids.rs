//! Event ids for a client that asked for them, and the rest of an event stream after the last event that
//! the client has.

/// Adds an `id` line with the number of the event to each event, and leaves out the first events.
///
/// The line is the last of its event, so a client that reads line by line has read the whole event when
/// it reads the id. A comment outside an event stays, but the blank line after it is removed: some
/// clients take such a blank line after an earlier id for an event without data.
#[derive(Debug)]
pub struct EventIds {
    /// Number of events to leave out.
    skipped: u64,
    /// Number of events that have ended.
    ended: u64,
    line: Line,
    /// Whether a line other than a comment came after the last blank line.
    has_fields: bool,
}

/// The position of the next byte of the stream in its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Start,
    /// After the CR of a blank line.
    BlankCr,
    Within,
}

impl EventIds {
    /// Adds event ids for a client that already has the first `last_event_id` events.
    pub fn after(last_event_id: u64) -> Self {
        Self { skipped: last_event_id, ended: 0, line: Line::Start, has_fields: false }
    }

    /// Reads the next bytes of the stream. Returns the bytes for the client, possibly none.
    pub fn add(&mut self, mut input: &[u8]) -> Vec<u8> {
        let mut output = Vec::with_capacity(input.len() + 16);
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
                    self.line = if end.is_some() { Line::Start } else { Line::Within };
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
            output.extend_from_slice(format!("id: {}\n\n", self.ended).as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_ids(stream: &str, after: u64, size: usize) -> String {
        let mut ids = EventIds::after(after);
        let parts = stream.as_bytes().chunks(size).flat_map(|part| ids.add(part));
        String::from_utf8(parts.collect()).unwrap()
    }

    #[test]
    fn each_event_ends_with_its_id_wherever_the_stream_is_divided() {
        let stream = ": ping\n\ndata: a\n\nevent: e\ndata: b\n\n: note\ndata: [DONE]\n\n: rest";
        let whole = ": ping\ndata: a\nid: 1\n\nevent: e\ndata: b\nid: 2\n\n: note\ndata: [DONE]\nid: 3\n\n: rest";
        for size in 1..=stream.len() {
            assert_eq!(with_ids(stream, 0, size), whole, "{size}");
            assert_eq!(with_ids(stream, 2, size), ": note\ndata: [DONE]\nid: 3\n\n: rest");
        }
        assert_eq!(with_ids(stream, 3, 9), ": rest");
        assert_eq!(with_ids(stream, u64::MAX, 9), "");
        for size in 1..9 {
            let crlf = with_ids("data: a\r\n\r\ndata: b\r\n\r\n", 1, size);
            assert_eq!(crlf, "data: b\r\nid: 2\n\n");
        }
    }
}
