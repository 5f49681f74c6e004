//! A sans-IO decoder for `text/event-stream`: bytes go in however they were cut, the pieces of
//! events come out. It follows the WHATWG rules (LF, CR or CRLF, byte order mark, comments,
//! unknown fields, several `data` lines) and keeps no line: the data of an event is handed on as
//! it arrives, so an event of any size costs the same few bytes of memory. It never fails.

use memchr::{memchr2, memchr3};

/// What a stream of bytes says, piece by piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Some of the data of the event that is being read. Never empty.
    Data(&'a [u8]),
    /// The event is complete; [`Decoder::event_type`] tells its type until the next call.
    Dispatch,
    /// A blank line that completes no event: after a comment, or after another blank line.
    Blank,
    /// A comment line begins, such as `: keep-alive`.
    Comment,
}

/// The state between two reads.
#[derive(Debug, Clone, Default)]
pub struct Decoder {
    line: Line,
    /// The last byte was a CR: an LF that follows belongs to it.
    after_cr: bool,
    /// The event being read has had a `data` line.
    has_data: bool,
    dispatched: bool,
    /// A line of the block that is being read has begun.
    in_block: bool,
    name: Short<6>,
    event_type: Short<64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Line {
    /// The first bytes of the stream, of which this many matched a byte order mark.
    Mark(u8),
    #[default]
    Begin,
    Name,
    /// After the colon: one space may follow, which is not part of the value.
    Colon(Field),
    Rest(Field),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Data,
    Event,
    /// Not of the standard: old llama.cpp servers report failures so. It is read as the data of an
    /// event of the type `error`.
    Error,
    Ignored,
}

/// A short text; what does not fit is counted but not kept.
#[derive(Debug, Clone)]
struct Short<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

const BYTE_ORDER_MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];

// === impl Decoder ===

impl Decoder {
    /// A decoder at the beginning of a stream.
    pub fn new() -> Self {
        Self { line: Line::Mark(0), ..Self::default() }
    }

    /// The next piece in `input`, which is advanced past it. `None`: all of `input` was read.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Option<Piece<'a>> {
        if std::mem::take(&mut self.dispatched) {
            self.event_type.clear();
        }
        while let Some(&byte) = input.first() {
            if std::mem::take(&mut self.after_cr) && byte == b'\n' {
                *input = &input[1..];
                continue;
            }
            let piece = match self.line {
                Line::Mark(matched) => self.mark(matched, byte, input),
                Line::Begin => self.begin(byte, input),
                Line::Name => self.name(input),
                Line::Colon(field) => self.colon(field, byte, input),
                Line::Rest(field) => self.rest(field, input),
            };
            if piece.is_some() {
                return piece;
            }
        }
        None
    }

    /// Whether the last byte was a CR: if an LF comes next, it belongs to the same line ending.
    pub fn is_after_cr(&self) -> bool {
        self.after_cr
    }

    /// Whether all that was read is whole: what is put here stands between events, in none.
    pub fn is_between_blocks(&self) -> bool {
        !self.in_block && !self.after_cr && matches!(self.line, Line::Begin | Line::Mark(0))
    }

    /// The `event` field of the event just dispatched; empty if it had none, or one longer than
    /// 64 bytes.
    pub fn event_type(&self) -> &str {
        self.event_type.as_str()
    }

    fn mark<'a>(&mut self, matched: u8, byte: u8, input: &mut &'a [u8]) -> Option<Piece<'a>> {
        match BYTE_ORDER_MARK.get(usize::from(matched)) {
            Some(&expected) if expected == byte => {
                self.line = Line::Mark(matched + 1);
                *input = &input[1..];
            }
            // Part of a mark is the beginning of a field that nobody knows.
            Some(_) if matched > 0 => self.line = Line::Rest(Field::Ignored),
            _ => self.line = Line::Begin,
        }
        None
    }

    fn begin<'a>(&mut self, byte: u8, input: &mut &'a [u8]) -> Option<Piece<'a>> {
        match byte {
            b'\n' | b'\r' => {
                self.end_line(byte, 0, input);
                self.in_block = false;
                self.dispatched = std::mem::take(&mut self.has_data);
                if self.dispatched {
                    return Some(Piece::Dispatch);
                }
                self.event_type.clear();
                Some(Piece::Blank)
            }
            b':' => {
                self.line = Line::Rest(Field::Ignored);
                self.in_block = true;
                *input = &input[1..];
                Some(Piece::Comment)
            }
            _ => {
                self.in_block = true;
                self.name.clear();
                self.line = Line::Name;
                None
            }
        }
    }

    fn name<'a>(&mut self, input: &mut &'a [u8]) -> Option<Piece<'a>> {
        let Some(end) = memchr3(b':', b'\n', b'\r', input) else {
            self.name.extend(input);
            *input = &[];
            return None;
        };
        self.name.extend(&input[..end]);
        let field = match self.name.as_str() {
            "data" => Field::Data,
            "event" => Field::Event,
            "error" => Field::Error,
            _ => Field::Ignored,
        };
        if input[end] == b':' {
            self.line = Line::Colon(field);
            *input = &input[end + 1..];
        } else {
            self.end_line(input[end], end, input);
        }
        self.begin_value(field)
    }

    /// A second `data` line is joined to the first by a line feed.
    fn begin_value<'a>(&mut self, field: Field) -> Option<Piece<'a>> {
        if field == Field::Error {
            self.event_type.clear();
            self.event_type.extend(b"error");
        }
        match field {
            Field::Data | Field::Error if std::mem::replace(&mut self.has_data, true) => {
                Some(Piece::Data(b"\n"))
            }
            Field::Event => {
                self.event_type.clear();
                None
            }
            _ => None,
        }
    }

    fn colon<'a>(&mut self, field: Field, byte: u8, input: &mut &'a [u8]) -> Option<Piece<'a>> {
        if byte == b' ' {
            *input = &input[1..];
        }
        self.line = Line::Rest(field);
        None
    }

    fn rest<'a>(&mut self, field: Field, input: &mut &'a [u8]) -> Option<Piece<'a>> {
        let end = memchr2(b'\n', b'\r', input);
        let value = &input[..end.unwrap_or(input.len())];
        match end {
            Some(end) => self.end_line(input[end], end, input),
            None => *input = &[],
        }
        match field {
            Field::Data | Field::Error if !value.is_empty() => return Some(Piece::Data(value)),
            Field::Event => self.event_type.extend(value),
            Field::Data | Field::Error | Field::Ignored => {}
        }
        None
    }

    fn end_line(&mut self, ending: u8, at: usize, input: &mut &[u8]) {
        self.after_cr = ending == b'\r';
        self.line = Line::Begin;
        *input = &input[at + 1..];
    }
}

// === impl Short ===

impl<const N: usize> Default for Short<N> {
    fn default() -> Self {
        Self { bytes: [0; N], len: 0 }
    }
}

impl<const N: usize> Short<N> {
    fn clear(&mut self) {
        self.len = 0;
    }

    fn extend(&mut self, more: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + more.len()) {
            room.copy_from_slice(more);
        }
        self.len += more.len();
    }

    fn as_str(&self) -> &str {
        let text = self.bytes.get(..self.len).map(std::str::from_utf8);
        text.and_then(Result::ok).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Events as (type, data), with a comment as `("#", "")`.
    fn events(pieces: &[&[u8]]) -> Vec<(String, String)> {
        let mut decoder = Decoder::new();
        let mut events = Vec::new();
        let mut data = Vec::new();
        for mut piece in pieces.iter().copied() {
            while let Some(next) = decoder.next(&mut piece) {
                match next {
                    Piece::Data(bytes) => data.extend_from_slice(bytes),
                    Piece::Blank => {}
                    Piece::Comment => events.push(("#".into(), String::new())),
                    Piece::Dispatch => events.push((
                        decoder.event_type().into(),
                        String::from_utf8_lossy(&std::mem::take(&mut data)).into_owned(),
                    )),
                }
            }
        }
        events
    }

    fn one(text: &str) -> Vec<(String, String)> {
        events(&[text.as_bytes()])
    }

    fn event(kind: &str, data: &str) -> (String, String) {
        (kind.into(), data.into())
    }

    #[test]
    fn every_line_ending_ends_a_line() {
        for ending in ["\n", "\r", "\r\n"] {
            let text = format!("event: a{ending}data: 1{ending}{ending}data:2{ending}{ending}");
            assert_eq!(one(&text), [event("a", "1"), event("", "2")], "{ending:?}");
        }
    }

    #[test]
    fn data_lines_are_joined_by_line_feeds() {
        assert_eq!(one("data: a\ndata\ndata:  b\n\n"), [event("", "a\n\n b")]);
    }

    #[test]
    fn a_byte_order_mark_is_ignored_at_the_beginning_only() {
        assert_eq!(one("\u{FEFF}data: 1\n\n"), [event("", "1")]);
        assert_eq!(one("data: 1\n\n\u{FEFF}data: 2\n\n"), [event("", "1")]);
        assert_eq!(events(&[b"\xEF\xBBdata: 1\n\n"]), []);
    }

    #[test]
    fn an_event_without_data_is_not_dispatched_and_its_type_is_forgotten() {
        assert_eq!(one("event: ping\n\ndata: 1\n\n"), [event("", "1")]);
    }

    #[test]
    fn comments_and_unknown_fields_are_no_events() {
        assert_eq!(
            one(": keep-alive\n\nid: 1\nretry: 5\ndatafoo: x\ndat: x\ndata: 1\n\n"),
            [event("#", ""), event("", "1")]
        );
    }

    #[test]
    fn an_error_field_is_an_event_of_that_type() {
        assert_eq!(one("error: {\"code\":500}\n\n"), [event("error", "{\"code\":500}")]);
    }

    #[test]
    fn an_event_without_its_blank_line_is_not_dispatched() {
        assert_eq!(one("data: 1\n\ndata: 2\n"), [event("", "1")]);
    }

    #[test]
    fn a_long_line_is_handed_on_without_being_kept() {
        let line = "x".repeat(10 << 20);
        let text = format!("data: {line}\n\n");
        let pieces: Vec<&[u8]> = text.as_bytes().chunks(4096).collect();
        assert_eq!(events(&pieces), [event("", &line)]);
        assert!(size_of::<Decoder>() < 160);
    }

    proptest! {
        #[test]
        fn splitting_the_stream_never_changes_its_events(
            text in "(\u{FEFF})?((data|event|id|:|x|data: a|event: b)[:]? ?[ab\u{E9}]{0,3}(\r|\n|\r\n){1,2}){0,12}",
            cuts in proptest::collection::vec(0_usize..100, 0..8),
        ) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&bytes[from..cut]);
                from = cut;
            }
            pieces.push(&bytes[from..]);
            prop_assert_eq!(events(&pieces), one(&text));
        }
    }
}
