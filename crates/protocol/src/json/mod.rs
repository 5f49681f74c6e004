//! A JSON scanner without I/O. A document may arrive in pieces that are split at any byte.
//!
//! A [`PathTable`] names the values to report. All other values are skipped. Each byte is visited once, and
//! memory is constant. The scanner does not validate all of a document: it checks the structure around the
//! reported values, but only counts the nesting inside skipped values.

pub mod members;
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
use string_end::{NoQuote, find_quote};
use token_buffer::{MAX_TOKEN_BYTES, TokenBuffer};
use value::read_literal;

/// The scanner's state between two pieces of a document.
#[derive(Debug, Clone)]
pub struct JsonScanner {
    state: ScanState,
    containers: [ContainerFrame; MAX_DEPTH],
    /// Number of open containers that are not skipped: `containers[..depth]`. Invariant:
    /// `depth <= MAX_DEPTH`.
    depth: usize,
    /// Number of containers that are open inside a skipped value.
    skipped_depth: u32,
    /// The first byte of the document that is not white space. `None`: no such byte has been read.
    first_byte: Option<u8>,
    /// Whether the document is an object without members or an array without elements.
    is_empty_container: bool,
    /// The trie node in the [`PathTable`] for the next value. `None`: no path leads to the next value.
    next_node: Option<TrieNodeId>,
    token_buffer: TokenBuffer,
}

#[derive(Debug, Clone, Copy)]
struct ContainerFrame {
    node: TrieNodeId,
    /// Whether the container is an object. `false`: it is an array.
    is_object: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScanState {
    /// The next token is a value. With `can_end`, the end of the array is valid too.
    Value {
        can_end: bool,
    },
    /// The next token is a member name. With `can_end`, the end of the object is valid too.
    Key {
        can_end: bool,
    },
    Colon,
    CommaOrEnd,
    /// Inside a member name or a reported string. With `is_escaped`, the next byte follows a
    /// backslash.
    String {
        is_key: bool,
        is_escaped: bool,
    },
    /// Inside a number or a literal.
    Scalar,
    /// Inside a container that no path leads into.
    SkipContainer,
    /// Inside a string that is not reported.
    SkipString {
        is_escaped: bool,
    },
    Done,
    Failed,
}

struct PieceScan<'a, S, F> {
    scanner: &'a mut JsonScanner,
    paths: &'a PathTable<S>,
    piece: &'a [u8],
    report: F,
}

/// Maximum depth of the objects and arrays that a path may enter.
const MAX_DEPTH: usize = 12;

impl Default for JsonScanner {
    fn default() -> Self {
        Self {
            state: ScanState::Value { can_end: false },
            containers: [ContainerFrame {
                node: 0,
                is_object: false,
            }; MAX_DEPTH],
            depth: 0,
            skipped_depth: 0,
            first_byte: None,
            is_empty_container: false,
            next_node: Some(0),
            token_buffer: TokenBuffer::default(),
        }
    }
}

impl JsonScanner {
    /// Prepares the scanner for another document. The capacity of [`Self::set_text_capacity`] stays.
    pub fn reset(&mut self) {
        self.state = ScanState::Value { can_end: false };
        self.depth = 0;
        self.skipped_depth = 0;
        self.first_byte = None;
        self.is_empty_container = false;
        self.next_node = Some(0);
        self.token_buffer.clear();
    }

    /// Sets how many bytes are stored of a text that is split between pieces. The minimum is 256.
    pub fn set_text_capacity(&mut self, capacity: usize) {
        self.token_buffer.set_capacity(capacity);
    }

    /// Whether a complete document has been read. A number or literal is complete as soon as it is valid.
    pub fn is_complete(&self) -> bool {
        let is_scalar = self.state == ScanState::Scalar && self.depth == 0;
        self.state == ScanState::Done
            || (is_scalar && read_literal(self.token_buffer.stored()).is_some())
    }

    /// Whether the data so far is empty or only white space.
    pub fn is_empty(&self) -> bool {
        self.depth == 0 && self.state == ScanState::Value { can_end: false }
    }

    /// Whether the first byte that is not white space is `{`.
    pub fn is_object(&self) -> bool {
        self.first_byte == Some(b'{')
    }

    /// The first byte of the document that is not white space. `None`: no such byte has been read.
    pub fn first_byte(&self) -> Option<u8> {
        self.first_byte
    }

    /// Whether the document is an object without members or an array without elements.
    pub fn is_empty_container(&self) -> bool {
        self.is_empty_container
    }

    /// Whether the document is not JSON. No further values are reported.
    pub fn has_failed(&self) -> bool {
        self.state == ScanState::Failed
    }

    /// Reads the next piece of the document. Calls `report` with each value that `paths` names, in document
    /// order. `report` gets the signal that identifies the path, the value, and the offset in `piece` after the
    /// value: after its last byte, or after the opening bracket of an object or array.
    pub fn scan<S: Copy>(
        &mut self,
        paths: &PathTable<S>,
        piece: &[u8],
        report: impl FnMut(S, JsonValue<'_>, usize),
    ) {
        let mut scan = PieceScan {
            scanner: self,
            paths,
            piece,
            report,
        };
        let mut at = 0;
        while at < piece.len() {
            at = match scan.scanner.state {
                ScanState::String { is_key, is_escaped } => {
                    scan.read_string(at, is_key, is_escaped)
                }
                ScanState::Scalar => scan.read_scalar(at),
                ScanState::SkipContainer => scan.scanner.skip_container(piece, at),
                ScanState::SkipString { is_escaped } => {
                    scan.scanner.skip_string(piece, at, is_escaped)
                }
                ScanState::Failed => return,
                _ => {
                    scan.read_structure(at);
                    // `read_scalar` reads the first byte of the scalar a second time.
                    if scan.scanner.state == ScanState::Scalar {
                        at
                    } else {
                        at + 1
                    }
                }
            };
        }
    }

    fn on_value_end(&mut self) {
        self.state = if self.depth == 0 {
            ScanState::Done
        } else {
            ScanState::CommaOrEnd
        };
    }

    /// Ends a value whose last byte is directly before `at`. In an object, also reads a `,"` that follows. Returns
    /// the offset of the next unread byte.
    fn end_value(&mut self, piece: &[u8], at: usize) -> usize {
        self.on_value_end();
        if self.depth > 0 && self.containers[self.depth - 1].is_object {
            let key = ScanState::String {
                is_key: true,
                is_escaped: false,
            };
            return self.skip_expected(piece, at, ScanState::CommaOrEnd, b",\"", key);
        }
        at
    }

    /// If `piece` continues with the `expected` bytes, consumes them and enters `next_state`. If it does not,
    /// enters `fallback_state`. Returns the offset of the next unread byte.
    fn skip_expected(
        &mut self,
        piece: &[u8],
        at: usize,
        fallback_state: ScanState,
        expected: &[u8],
        next_state: ScanState,
    ) -> usize {
        let is_expected = piece[at..].starts_with(expected);
        self.state = if is_expected {
            next_state
        } else {
            fallback_state
        };
        if is_expected { at + expected.len() } else { at }
    }

    fn skip_container(&mut self, piece: &[u8], start: usize) -> usize {
        for (offset, byte) in piece[start..].iter().enumerate() {
            match byte {
                b'"' => {
                    self.state = ScanState::SkipString { is_escaped: false };
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

    fn skip_string(&mut self, piece: &[u8], start: usize, is_escaped: bool) -> usize {
        match find_quote(piece, start, is_escaped) {
            Ok(end) => {
                if self.skipped_depth == 0 {
                    return self.end_value(piece, end + 1);
                }
                self.state = ScanState::SkipContainer;
                end + 1
            }
            Err(NoQuote { ends_in_escape }) => {
                self.state = ScanState::SkipString {
                    is_escaped: ends_in_escape,
                };
                piece.len()
            }
        }
    }
}

impl<S: Copy, F: FnMut(S, JsonValue<'_>, usize)> PieceScan<'_, S, F> {
    fn read_structure(&mut self, at: usize) {
        let byte = self.piece[at];
        match (self.scanner.state, byte) {
            (_, b' ' | b'\t' | b'\n' | b'\r') => {}
            (ScanState::Value { can_end: true }, b']')
            | (ScanState::Key { can_end: true }, b'}')
            | (ScanState::CommaOrEnd, b'}' | b']') => self.close_container(at),
            (ScanState::Value { .. }, _) => self.begin_value(at),
            (ScanState::Key { .. }, b'"') => {
                self.scanner.state = ScanState::String {
                    is_key: true,
                    is_escaped: false,
                }
            }
            (ScanState::Colon, b':') => self.scanner.state = ScanState::Value { can_end: false },
            (ScanState::CommaOrEnd, b',') => self.on_comma(),
            _ => self.scanner.state = ScanState::Failed,
        }
    }

    /// Begins the value whose first byte is at `at`.
    fn begin_value(&mut self, at: usize) {
        if self.scanner.depth == 0 {
            self.scanner.first_byte = Some(self.piece[at]);
        }
        self.scanner.state = match self.piece[at] {
            b'"' if self.paths.signal(self.scanner.next_node).is_some() => ScanState::String {
                is_key: false,
                is_escaped: false,
            },
            b'"' => ScanState::SkipString { is_escaped: false },
            b'{' | b'[' => return self.open_container(at),
            b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => ScanState::Scalar,
            _ => ScanState::Failed,
        };
    }

    fn open_container(&mut self, at: usize) {
        let Self { scanner, paths, .. } = self;
        let is_object = self.piece[at] == b'{';
        let signal = paths.signal(scanner.next_node);
        if let Some(signal) = signal {
            let value = if is_object {
                JsonValue::Object
            } else {
                JsonValue::Array
            };
            (self.report)(signal, value, at + 1);
        }
        match scanner.next_node {
            Some(node)
                if scanner.depth < MAX_DEPTH
                    && (scanner.depth == 0
                        || paths.has_children(node, is_object)
                        || signal.is_some()) =>
            {
                scanner.containers[scanner.depth] = ContainerFrame { node, is_object };
                scanner.depth += 1;
                scanner.state = if is_object {
                    ScanState::Key { can_end: true }
                } else {
                    scanner.next_node = paths.element(node);
                    ScanState::Value { can_end: true }
                };
            }
            _ => {
                scanner.skipped_depth = 1;
                scanner.state = ScanState::SkipContainer;
            }
        }
    }

    fn close_container(&mut self, at: usize) {
        let frame = self.scanner.containers[self.scanner.depth - 1];
        if frame.is_object != (self.piece[at] == b'}') {
            self.scanner.state = ScanState::Failed;
            return;
        }
        self.scanner.depth -= 1;
        if self.scanner.depth == 0 {
            self.scanner.is_empty_container = self.scanner.state != ScanState::CommaOrEnd;
        }
        if let Some(signal) = self.paths.signal(Some(frame.node)) {
            // The state is `CommaOrEnd` only after a member or an element.
            let is_empty = self.scanner.state != ScanState::CommaOrEnd;
            (self.report)(signal, JsonValue::End { is_empty }, at + 1);
        }
        self.scanner.on_value_end();
    }

    fn on_comma(&mut self) {
        let frame = self.scanner.containers[self.scanner.depth - 1];
        self.scanner.state = if frame.is_object {
            ScanState::Key { can_end: false }
        } else {
            self.scanner.next_node = self.paths.element(frame.node);
            ScanState::Value { can_end: false }
        };
    }

    fn read_string(&mut self, start: usize, is_key: bool, is_escaped: bool) -> usize {
        let Self {
            scanner,
            paths,
            piece,
            ..
        } = self;
        let end = match find_quote(piece, start, is_escaped) {
            Ok(end) => end,
            Err(NoQuote { ends_in_escape }) => {
                scanner.token_buffer.extend(&piece[start..]);
                scanner.state = ScanState::String {
                    is_key,
                    is_escaped: ends_in_escape,
                };
                return piece.len();
            }
        };
        let (raw, len) = scanner.token_buffer.finish(&piece[start..end]);
        if is_key {
            let object = scanner.containers[scanner.depth - 1].node;
            // Only the beginning of a long name is stored. It must not match a shorter name of a path.
            let is_complete = raw.len() == len;
            let mut member = if is_complete {
                paths.member(object, raw)
            } else {
                None
            };
            if member.is_none()
                && let Some(name) = JsonText::new(raw, len).decode_if_escaped()
            {
                member = paths.member(object, name.as_bytes());
            }
            scanner.next_node = member.or_else(|| paths.other_members(object));
            scanner.token_buffer.clear();
            let value = ScanState::Value { can_end: false };
            return scanner.skip_expected(piece, end + 1, ScanState::Colon, b":", value);
        }
        if let Some(signal) = paths.signal(scanner.next_node) {
            (self.report)(signal, JsonValue::Text(JsonText::new(raw, len)), end + 1);
        }
        scanner.token_buffer.clear();
        scanner.end_value(piece, end + 1)
    }

    fn read_scalar(&mut self, start: usize) -> usize {
        let Self {
            scanner,
            paths,
            piece,
            ..
        } = self;
        let is_end = |byte: &u8| matches!(byte, b',' | b']' | b'}' | b' ' | b'\t' | b'\n' | b'\r');
        let Some(len) = piece[start..].iter().position(is_end) else {
            scanner.token_buffer.extend(&piece[start..]);
            return piece.len();
        };
        let end = start + len;
        let (raw, _) = scanner.token_buffer.finish(&piece[start..end]);
        let Some(value) = read_literal(&raw[..raw.len().min(MAX_TOKEN_BYTES)]) else {
            scanner.state = ScanState::Failed;
            return end;
        };
        if let Some(signal) = paths.signal(scanner.next_node) {
            (self.report)(signal, value, end);
        }
        scanner.token_buffer.clear();
        scanner.end_value(piece, end)
    }
}
