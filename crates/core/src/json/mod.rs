//! A scanner for JSON that arrives in pieces, however they are split, without I/O.
//!
//! A [`PathTable`] names the values to report; all others are skipped. Each byte is visited once,
//! and memory is constant. The scanner checks the structure around the values it reports and only
//! counts the nesting inside skipped ones: it is no validator.

mod path_table;
mod string_end;
#[cfg(test)]
mod tests;
mod token_buffer;
mod value;

pub use path_table::PathTable;
pub use string_end::{find_string_end, is_string_content};
pub use value::{JsonText, JsonValue};

use path_table::TrieNodeId;
use string_end::find_quote;
use token_buffer::{MAX_TOKEN_BYTES, TokenBuffer};

/// The scanner's state between two pieces of a document.
#[derive(Debug, Clone)]
pub struct JsonScanner {
    state: ScanState,
    containers: [ContainerFrame; MAX_DEPTH],
    /// Invariant: `depth <= MAX_DEPTH`. `containers[..depth]` are the open containers on paths.
    depth: usize,
    /// Number of containers that are open inside a skipped value.
    skipped_depth: u32,
    /// The document began as an object.
    is_object: bool,
    /// The node of the next value. `None`: no path leads there.
    next_node: Option<TrieNodeId>,
    token_buffer: TokenBuffer,
}

#[derive(Debug, Clone, Copy)]
struct ContainerFrame {
    node: TrieNodeId,
    is_object: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScanState {
    /// A value is expected; with `or_end`, also the end of the array.
    Value {
        or_end: bool,
    },
    /// A member name is expected; with `or_end`, also the end of the object.
    Key {
        or_end: bool,
    },
    Colon,
    CommaOrEnd,
    /// Inside a string. With `escaped`, the next byte follows a backslash.
    String {
        is_key: bool,
        escaped: bool,
    },
    /// Inside a number or a literal.
    Scalar,
    /// Inside a container that no path leads into.
    SkipContainer,
    SkipString {
        escaped: bool,
    },
    Done,
    Failed,
}

/// Deepest nesting of a path.
const MAX_DEPTH: usize = 12;

// === impl JsonScanner ===

impl Default for JsonScanner {
    fn default() -> Self {
        Self {
            state: ScanState::Value { or_end: false },
            containers: [ContainerFrame { node: 0, is_object: false }; MAX_DEPTH],
            depth: 0,
            skipped_depth: 0,
            is_object: false,
            next_node: Some(0),
            token_buffer: TokenBuffer::default(),
        }
    }
}

impl JsonScanner {
    /// Prepares for another document.
    pub fn reset(&mut self) {
        self.state = ScanState::Value { or_end: false };
        self.depth = 0;
        self.skipped_depth = 0;
        self.is_object = false;
        self.next_node = Some(0);
        self.token_buffer.clear();
    }

    /// Keeps the first `capacity` bytes of split texts, if that is more than 256.
    pub fn set_text_capacity(&mut self, capacity: usize) {
        self.token_buffer.set_capacity(capacity);
    }

    /// Whether a complete document has been read.
    pub fn is_complete(&self) -> bool {
        self.state == ScanState::Done
    }

    /// Whether the document is an object.
    pub fn is_object(&self) -> bool {
        self.is_object
    }

    /// Whether the document is not JSON. Nothing more will be reported.
    pub fn has_failed(&self) -> bool {
        self.state == ScanState::Failed
    }

    /// Reads the next piece and reports the values that `paths` names, in order.
    pub fn scan<S: Copy>(
        &mut self,
        paths: &PathTable<S>,
        piece: &[u8],
        mut on: impl FnMut(S, JsonValue<'_>),
    ) {
        self.scan_with_offsets(paths, piece, |signal, value, _| on(signal, value));
    }

    /// As [`JsonScanner::scan`], with the offset in `piece` where each value ends: after its last
    /// byte, or after the opening bracket of an object or array.
    pub fn scan_with_offsets<S: Copy>(
        &mut self,
        paths: &PathTable<S>,
        piece: &[u8],
        mut on: impl FnMut(S, JsonValue<'_>, usize),
    ) {
        let mut at = 0;
        while at < piece.len() {
            at = match self.state {
                ScanState::String { is_key, escaped } => {
                    self.read_string(paths, piece, at, is_key, escaped, &mut on)
                }
                ScanState::Scalar => self.read_scalar(paths, piece, at, &mut on),
                ScanState::SkipContainer => self.skip_container(piece, at),
                ScanState::SkipString { escaped } => self.skip_string(piece, at, escaped),
                ScanState::Failed => return,
                _ => {
                    self.read_structure(paths, piece, at, &mut on);
                    // A scalar begins with this byte.
                    if self.state == ScanState::Scalar { at } else { at + 1 }
                }
            };
        }
    }

    fn read_structure<S: Copy>(
        &mut self,
        paths: &PathTable<S>,
        piece: &[u8],
        at: usize,
        on: &mut impl FnMut(S, JsonValue<'_>, usize),
    ) {
        let (byte, mut on) = (piece[at], |signal, value: JsonValue<'_>| on(signal, value, at + 1));
        match (self.state, byte) {
            (_, b' ' | b'\t' | b'\n' | b'\r') => {}
            (ScanState::Value { or_end: true }, b']') | (ScanState::Key { or_end: true }, b'}') => {
                self.close_container(paths, byte, &mut on);
            }
            (ScanState::Value { .. }, _) => self.begin_value(paths, byte, &mut on),
            (ScanState::Key { .. }, b'"') => {
                self.state = ScanState::String { is_key: true, escaped: false }
            }
            (ScanState::Colon, b':') => self.state = ScanState::Value { or_end: false },
            (ScanState::CommaOrEnd, b',') => self.on_comma(paths),
            (ScanState::CommaOrEnd, b'}' | b']') => self.close_container(paths, byte, &mut on),
            _ => self.state = ScanState::Failed,
        }
    }

    /// Begins a value whose first byte is `byte`.
    fn begin_value<S: Copy>(
        &mut self,
        paths: &PathTable<S>,
        byte: u8,
        on: &mut impl FnMut(S, JsonValue<'_>),
    ) {
        match byte {
            b'"' if paths.signal(self.next_node).is_some() => {
                self.state = ScanState::String { is_key: false, escaped: false };
            }
            b'"' => self.state = ScanState::SkipString { escaped: false },
            b'{' | b'[' => self.open_container(paths, byte == b'{', on),
            b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => self.state = ScanState::Scalar,
            _ => self.state = ScanState::Failed,
        }
    }

    fn open_container<S: Copy>(
        &mut self,
        paths: &PathTable<S>,
        is_object: bool,
        on: &mut impl FnMut(S, JsonValue<'_>),
    ) {
        if let Some(signal) = paths.signal(self.next_node) {
            on(signal, if is_object { JsonValue::Object } else { JsonValue::Array });
        }
        self.is_object |= is_object && self.depth == 0;
        match self.next_node {
            Some(node)
                if self.depth < MAX_DEPTH
                    && (self.depth == 0
                        || paths.has_children(node, is_object)
                        || paths.signal(self.next_node).is_some()) =>
            {
                self.containers[self.depth] = ContainerFrame { node, is_object };
                self.depth += 1;
                self.state = if is_object {
                    ScanState::Key { or_end: true }
                } else {
                    self.next_node = paths.element(node);
                    ScanState::Value { or_end: true }
                };
            }
            _ => {
                self.skipped_depth = 1;
                self.state = ScanState::SkipContainer;
            }
        }
    }

    fn close_container<S: Copy>(
        &mut self,
        paths: &PathTable<S>,
        byte: u8,
        on: &mut impl FnMut(S, JsonValue<'_>),
    ) {
        let frame = self.containers[self.depth - 1];
        if frame.is_object != (byte == b'}') {
            self.state = ScanState::Failed;
            return;
        }
        self.depth -= 1;
        if let Some(signal) = paths.signal(Some(frame.node)) {
            on(signal, JsonValue::End);
        }
        self.on_value_end();
    }

    fn on_comma<S: Copy>(&mut self, paths: &PathTable<S>) {
        let frame = self.containers[self.depth - 1];
        self.state = if frame.is_object {
            ScanState::Key { or_end: false }
        } else {
            self.next_node = paths.element(frame.node);
            ScanState::Value { or_end: false }
        };
    }

    fn on_value_end(&mut self) {
        self.state = if self.depth == 0 { ScanState::Done } else { ScanState::CommaOrEnd };
    }

    /// Ends a value before `at`. Returns the offset to continue at.
    fn end_value(&mut self, piece: &[u8], at: usize) -> usize {
        self.on_value_end();
        if self.depth > 0 && self.containers[self.depth - 1].is_object {
            let key = ScanState::String { is_key: true, escaped: false };
            return self.skip_expected(piece, at, ScanState::CommaOrEnd, b",\"", key);
        }
        at
    }

    /// Consumes the bytes that usually follow, if they do. Returns the offset to continue at.
    fn skip_expected(
        &mut self,
        piece: &[u8],
        at: usize,
        fallback_state: ScanState,
        expected: &[u8],
        next_state: ScanState,
    ) -> usize {
        let is_expected = piece[at..].starts_with(expected);
        self.state = if is_expected { next_state } else { fallback_state };
        if is_expected { at + expected.len() } else { at }
    }

    fn read_string<S: Copy>(
        &mut self,
        paths: &PathTable<S>,
        piece: &[u8],
        start: usize,
        is_key: bool,
        escaped: bool,
        on: &mut impl FnMut(S, JsonValue<'_>, usize),
    ) -> usize {
        let Ok(end) = find_quote(piece, start, escaped) else {
            let escaped = find_quote(piece, start, escaped) == Err(true);
            self.token_buffer.extend(&piece[start..]);
            self.state = ScanState::String { is_key, escaped };
            return piece.len();
        };
        let (raw, len) = self.token_buffer.finish(&piece[start..end]);
        if is_key {
            let object = self.containers[self.depth - 1].node;
            let escaped = || JsonText::new(raw, len).decode_if_escaped();
            self.next_node = paths
                .member(object, raw)
                .filter(|_| raw.len() == len)
                .or_else(|| escaped().and_then(|name| paths.member(object, name.as_bytes())));
            self.token_buffer.clear();
            return self.skip_expected(
                piece,
                end + 1,
                ScanState::Colon,
                b":",
                ScanState::Value { or_end: false },
            );
        }
        if let Some(signal) = paths.signal(self.next_node) {
            on(signal, JsonValue::Text(JsonText::new(raw, len)), end + 1);
        }
        self.token_buffer.clear();
        self.end_value(piece, end + 1)
    }

    fn read_scalar<S: Copy>(
        &mut self,
        paths: &PathTable<S>,
        piece: &[u8],
        start: usize,
        on: &mut impl FnMut(S, JsonValue<'_>, usize),
    ) -> usize {
        let is_end = |byte: &u8| matches!(byte, b',' | b']' | b'}' | b' ' | b'\t' | b'\n' | b'\r');
        let Some(len) = piece[start..].iter().position(is_end) else {
            self.token_buffer.extend(&piece[start..]);
            return piece.len();
        };
        let end = start + len;
        let (raw, _) = self.token_buffer.finish(&piece[start..end]);
        let value = match &raw[..raw.len().min(MAX_TOKEN_BYTES)] {
            b"null" => JsonValue::Null,
            b"true" => JsonValue::Bool(true),
            b"false" => JsonValue::Bool(false),
            number @ [b'-' | b'0'..=b'9', ..] if is_number(number) => JsonValue::Number(number),
            _ => {
                self.state = ScanState::Failed;
                return end;
            }
        };
        if let Some(signal) = paths.signal(self.next_node) {
            on(signal, value, end);
        }
        self.token_buffer.clear();
        self.end_value(piece, end)
    }

    fn skip_container(&mut self, piece: &[u8], start: usize) -> usize {
        for (offset, byte) in piece[start..].iter().enumerate() {
            match byte {
                b'"' => {
                    self.state = ScanState::SkipString { escaped: false };
                    return start + offset + 1;
                }
                b'{' | b'[' => self.skipped_depth += 1,
                b'}' | b']' => {
                    self.skipped_depth -= 1;
                    if self.skipped_depth == 0 {
                        self.on_value_end();
                        return start + offset + 1;
                    }
                }
                _ => {}
            }
        }
        piece.len()
    }

    fn skip_string(&mut self, piece: &[u8], start: usize, escaped: bool) -> usize {
        match find_quote(piece, start, escaped) {
            Ok(end) => {
                if self.skipped_depth == 0 {
                    return self.end_value(piece, end + 1);
                }
                self.state = ScanState::SkipContainer;
                end + 1
            }
            Err(escaped) => {
                self.state = ScanState::SkipString { escaped };
                piece.len()
            }
        }
    }
}

fn is_number(raw: &[u8]) -> bool {
    raw.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'))
}
