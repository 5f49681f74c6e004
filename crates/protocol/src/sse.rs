//! A decoder for `text/event-stream` without I/O. It reads bytes that may be split anywhere, and returns pieces
//! of events.
//!
//! The decoder follows the WHATWG rules (LF, CR or CRLF, byte order mark, comments, unknown fields, several
//! `data` lines). It buffers no lines: data is returned as it arrives, so memory does not depend on the size of
//! an event. Decoding never fails.

use memchr::{memchr2, memchr3};

/// A piece of an event stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SsePiece<'a> {
    /// A part of the data of the current event. Never empty.
    Data(&'a [u8]),
    /// The end of the current event. [`SseDecoder::event_type`] returns its type until the next
    /// call of [`SseDecoder::next`].
    Dispatch,
    /// A blank line that does not end an event with data, such as a blank line after a comment.
    Blank,
    /// The beginning of a comment line, such as `: keep-alive`.
    Comment,
    /// A line with a field that the standard does not define. Clients that follow the standard ignore this
    /// line.
    UnknownLine,
}

/// The decoder's state between two reads.
#[derive(Debug, Clone, Default)]
pub struct SseDecoder {
    line_state: LineState,
    /// Whether the last byte was a CR. A following LF belongs to the same line ending.
    is_after_cr: bool,
    /// Whether the current event has had a `data` line.
    has_data: bool,
    /// Whether the last piece was [`SsePiece::Dispatch`].
    is_dispatched: bool,
    /// Whether a line has begun after the last blank line.
    is_in_block: bool,
    /// The first byte of the current line that is not white space.
    line_begins_with: u8,
    field_name: BoundedText<6>,
    event_type: BoundedText<64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum LineState {
    /// The stream starts: the number of its bytes that matched a byte order mark.
    ByteOrderMark(u8),
    #[default]
    Start,
    /// The line has only white space so far.
    Space,
    FieldName,
    /// The colon of a field was read. A space directly after the colon is not part of the value.
    AfterColon(SseField),
    FieldValue(SseField),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SseField {
    Data,
    Event,
    /// The field `error`, which is not in the standard: old llama.cpp servers report errors in it. The decoder
    /// returns its value as the data of an event with the type `error`.
    Error,
    Ignored,
}

/// A text of at most `N` bytes. [`BoundedText::as_str`] returns an empty text if the received text
/// was longer.
#[derive(Debug, Clone)]
struct BoundedText<const N: usize> {
    bytes: [u8; N],
    /// Length of the received text in bytes, which can be more than `N`.
    len: usize,
}

const BYTE_ORDER_MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];

impl SseDecoder {
    /// A decoder at the beginning of a stream.
    pub fn new() -> Self {
        Self {
            line_state: LineState::ByteOrderMark(0),
            ..Self::default()
        }
    }

    /// Removes the next piece from the beginning of `input` and returns it. `None`: all of `input`
    /// was consumed.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Option<SsePiece<'a>> {
        if std::mem::take(&mut self.is_dispatched) {
            self.event_type.clear();
        }
        while let Some(&byte) = input.first() {
            if std::mem::take(&mut self.is_after_cr) && byte == b'\n' {
                *input = &input[1..];
                continue;
            }
            let piece = match self.line_state {
                LineState::ByteOrderMark(matched) => {
                    self.read_byte_order_mark(matched, byte, input);
                    None
                }
                LineState::Start => self.read_line_start(byte, input),
                LineState::Space => {
                    self.read_space(input);
                    None
                }
                LineState::FieldName => self.read_field_name(input),
                LineState::AfterColon(field) => {
                    if byte == b' ' {
                        *input = &input[1..];
                    }
                    self.line_state = LineState::FieldValue(field);
                    None
                }
                LineState::FieldValue(field) => self.read_field_value(field, input),
            };
            if piece.is_some() {
                return piece;
            }
        }
        None
    }

    /// Whether the last byte was a CR. A following LF belongs to the same line ending.
    pub fn is_after_cr(&self) -> bool {
        self.is_after_cr
    }

    /// Whether a comment or an event can be inserted here: at the start of the stream and directly after a
    /// blank line. False after a CR, because its LF may follow.
    pub fn is_between_blocks(&self) -> bool {
        !self.is_in_block
            && !self.is_after_cr
            && matches!(
                self.line_state,
                LineState::Start | LineState::ByteOrderMark(0)
            )
    }

    /// Whether the line of the last piece ([`SsePiece::UnknownLine`]) begins like a JSON object.
    pub fn is_json_line(&self) -> bool {
        self.line_begins_with == b'{'
    }

    /// Whether the current event has data and has not been ended by a blank line.
    pub fn has_pending_data(&self) -> bool {
        self.has_data
    }

    /// The `event` field of the event that [`SsePiece::Dispatch`] ended. Empty if the event had no such field,
    /// or if the field was longer than 64 bytes.
    pub fn event_type(&self) -> &str {
        self.event_type.as_str()
    }

    fn read_byte_order_mark(&mut self, matched: u8, byte: u8, input: &mut &[u8]) {
        match BYTE_ORDER_MARK.get(usize::from(matched)) {
            Some(&expected) if expected == byte => {
                self.line_state = LineState::ByteOrderMark(matched + 1);
                *input = &input[1..];
            }
            // These bytes are only part of a byte order mark, so they begin the name of an unknown field.
            Some(_) if matched > 0 => self.line_state = LineState::FieldValue(SseField::Ignored),
            _ => self.line_state = LineState::Start,
        }
    }

    fn read_line_start<'a>(&mut self, byte: u8, input: &mut &'a [u8]) -> Option<SsePiece<'a>> {
        match byte {
            b'\n' | b'\r' => {
                self.end_line(byte, 0, input);
                self.is_in_block = false;
                self.is_dispatched = std::mem::take(&mut self.has_data);
                if self.is_dispatched {
                    return Some(SsePiece::Dispatch);
                }
                self.event_type.clear();
                Some(SsePiece::Blank)
            }
            b':' => {
                self.line_state = LineState::FieldValue(SseField::Ignored);
                self.is_in_block = true;
                *input = &input[1..];
                Some(SsePiece::Comment)
            }
            b' ' | b'\t' => {
                self.line_state = LineState::Space;
                None
            }
            _ => {
                self.is_in_block = true;
                self.line_begins_with = byte;
                self.field_name.clear();
                self.line_state = LineState::FieldName;
                None
            }
        }
    }

    /// Reads white space at the start of a line. Some servers send lines of only white space to keep a
    /// connection open. Such a line has no field.
    fn read_space(&mut self, input: &mut &[u8]) {
        let is_space = |byte: &&u8| matches!(byte, b' ' | b'\t');
        let length = input.iter().take_while(is_space).count();
        match input.get(length) {
            None => *input = &[],
            Some(&ending @ (b'\n' | b'\r')) => self.end_line(ending, length, input),
            Some(&byte) => {
                self.is_in_block = true;
                self.line_begins_with = byte;
                self.field_name.clear();
                self.field_name.extend(b" ");
                self.line_state = LineState::FieldName;
                *input = &input[length..];
            }
        }
    }

    fn read_field_name<'a>(&mut self, input: &mut &'a [u8]) -> Option<SsePiece<'a>> {
        let Some(end) = memchr3(b':', b'\n', b'\r', input) else {
            self.field_name.extend(input);
            *input = &[];
            return None;
        };
        self.field_name.extend(&input[..end]);
        let field = match self.field_name.as_str() {
            "data" => SseField::Data,
            "event" => SseField::Event,
            "error" => SseField::Error,
            _ => SseField::Ignored,
        };
        if input[end] == b':' {
            self.line_state = LineState::AfterColon(field);
            *input = &input[end + 1..];
        } else {
            self.end_line(input[end], end, input);
        }
        if field == SseField::Ignored && !matches!(self.field_name.as_str(), "id" | "retry") {
            return Some(SsePiece::UnknownLine);
        }
        self.begin_value(field)
    }

    /// Begins the value of a field. If the event already has data, returns a line feed, which joins the earlier
    /// data and the new data.
    fn begin_value<'a>(&mut self, field: SseField) -> Option<SsePiece<'a>> {
        if field == SseField::Error {
            self.event_type.clear();
            self.event_type.extend(b"error");
        }
        match field {
            SseField::Data | SseField::Error if std::mem::replace(&mut self.has_data, true) => {
                Some(SsePiece::Data(b"\n"))
            }
            SseField::Event => {
                self.event_type.clear();
                None
            }
            _ => None,
        }
    }

    fn read_field_value<'a>(
        &mut self,
        field: SseField,
        input: &mut &'a [u8],
    ) -> Option<SsePiece<'a>> {
        let end = memchr2(b'\n', b'\r', input);
        let value = &input[..end.unwrap_or(input.len())];
        match end {
            Some(end) => self.end_line(input[end], end, input),
            None => *input = &[],
        }
        match field {
            SseField::Data | SseField::Error if !value.is_empty() => {
                return Some(SsePiece::Data(value));
            }
            SseField::Event => self.event_type.extend(value),
            SseField::Data | SseField::Error | SseField::Ignored => {}
        }
        None
    }

    /// Ends the current line. Its line ending, `ending`, is at `offset` in `input`.
    fn end_line(&mut self, ending: u8, offset: usize, input: &mut &[u8]) {
        self.is_after_cr = ending == b'\r';
        self.line_state = LineState::Start;
        *input = &input[offset + 1..];
    }
}

impl<const N: usize> Default for BoundedText<N> {
    fn default() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
        }
    }
}

impl<const N: usize> BoundedText<N> {
    fn clear(&mut self) {
        self.len = 0;
    }

    fn extend(&mut self, bytes: &[u8]) {
        if let Some(unused) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            unused.copy_from_slice(bytes);
        }
        self.len += bytes.len();
    }

    fn as_str(&self) -> &str {
        let text = self.bytes.get(..self.len).map(std::str::from_utf8);
        text.and_then(Result::ok).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_input::pieces;
    use proptest::prelude::*;

    /// The events in a stream, as pairs of type and data. A comment is `("#", "")`.
    fn events(pieces: &[&[u8]]) -> Vec<(String, String)> {
        let mut decoder = SseDecoder::new();
        let mut events = Vec::new();
        let mut data = Vec::new();
        for mut piece in pieces.iter().copied() {
            while let Some(next) = decoder.next(&mut piece) {
                match next {
                    SsePiece::Data(bytes) => data.extend_from_slice(bytes),
                    SsePiece::Blank | SsePiece::UnknownLine => {}
                    SsePiece::Comment => events.push(("#".into(), String::new())),
                    SsePiece::Dispatch => events.push((
                        decoder.event_type().into(),
                        String::from_utf8_lossy(&std::mem::take(&mut data)).into_owned(),
                    )),
                }
            }
        }
        events
    }

    fn events_of_text(text: &str) -> Vec<(String, String)> {
        events(&[text.as_bytes()])
    }

    fn event(kind: &str, data: &str) -> (String, String) {
        (kind.into(), data.into())
    }

    #[test]
    fn lf_cr_and_crlf_each_end_a_line() {
        for ending in ["\n", "\r", "\r\n"] {
            let text = format!("event: a{ending}data: 1{ending}{ending}data:2{ending}{ending}");
            assert_eq!(
                events_of_text(&text),
                [event("a", "1"), event("", "2")],
                "{ending:?}"
            );
        }
    }

    #[test]
    fn only_complete_events_with_data_are_dispatched() {
        for (case, text, expected) in [
            (
                "joined data lines",
                "data: a\ndata\ndata:  b\n\n",
                &[("", "a\n\n b")][..],
            ),
            (
                "byte order mark at the beginning",
                "\u{FEFF}data: 1\n\n",
                &[("", "1")],
            ),
            (
                "a later one",
                "data: 1\n\n\u{FEFF}data: 2\n\n",
                &[("", "1")],
            ),
            (
                "event without data",
                "event: ping\n\ndata: 1\n\n",
                &[("", "1")],
            ),
            (
                "comment",
                ": keep-alive\n\ndata: 1\n\n",
                &[("#", ""), ("", "1")],
            ),
            (
                "unknown fields",
                "id: 1\nretry: 5\ndatafoo: x\ndat: x\ndata: 1\n\n",
                &[("", "1")],
            ),
            (
                "line of white space",
                "data: 1\n \ndata: 2\n\n",
                &[("", "1\n2")],
            ),
            (
                "white space before a name",
                " data: 1\n\ndata: 2\n\n",
                &[("", "2")],
            ),
            (
                "error field",
                "error: {\"code\":500}\n\n",
                &[("error", "{\"code\":500}")],
            ),
            (
                "no blank line at the end",
                "data: 1\n\ndata: 2\n",
                &[("", "1")],
            ),
        ] {
            let expected: Vec<_> = expected
                .iter()
                .map(|(kind, data)| event(kind, data))
                .collect();
            assert_eq!(events_of_text(text), expected, "{case}");
        }
        assert_eq!(
            events(&[b"\xEF\xBBdata: 1\n\n"]),
            [],
            "a part of a byte order mark"
        );
    }

    #[test]
    fn leading_white_space_belongs_to_the_field_name() {
        let unknown_lines = |text: &[u8]| {
            let mut decoder = SseDecoder::new();
            let mut rest = text;
            let pieces = std::iter::from_fn(|| decoder.next(&mut rest));
            let unknown = pieces
                .filter(|piece| *piece == SsePiece::UnknownLine)
                .count();
            (unknown, decoder.is_between_blocks())
        };
        assert_eq!(unknown_lines(b" \n\t \r\n  \n"), (0, true));
        assert_eq!(unknown_lines(b" data: 1\n"), (1, false));
    }

    #[test]
    fn a_long_line_comes_in_unbuffered_pieces() {
        let line = "x".repeat(10 << 20);
        let text = format!("data: {line}\n\n");
        let pieces: Vec<&[u8]> = text.as_bytes().chunks(4096).collect();
        assert_eq!(events(&pieces), [event("", &line)]);
        assert!(size_of::<SseDecoder>() < 160);
    }

    proptest! {
        #[test]
        fn splitting_an_event_stream_never_changes_its_events(
            text in "(\u{FEFF})?(( |\t|data|event|id|:|x|data: a|event: b)[:]? ?[ab\u{E9}]{0,3}(\r|\n|\r\n){1,2}){0,12}",
            cuts in proptest::collection::vec(0_usize..100, 0..8),
        ) {
            prop_assert_eq!(events(&pieces(text.as_bytes(), cuts)), events_of_text(&text));
        }
    }
}
