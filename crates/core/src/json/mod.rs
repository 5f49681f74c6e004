//! A sans-IO scanner for JSON that arrives in pieces, however they were cut.
//!
//! A [`Paths`] table names the few values that matter; everything else is skipped without being
//! kept. Each byte is visited once and the memory is constant: a line of ten megabytes costs no
//! more room than one of ten bytes. The scanner checks the structure around the values it
//! reports and only counts the nesting inside the values it skips: it is an observer, not a validator.

mod carry;
mod paths;
mod quote;
#[cfg(test)]
mod tests;
mod value;

pub use paths::Paths;
pub use quote::is_within_text;
pub use value::{Text, Value};

use carry::{Carry, MAX_KEPT};
use paths::NodeId;
use quote::find_quote;

/// The state of one document between two pieces of it.
#[derive(Debug, Clone)]
pub struct Scanner {
    state: State,
    stack: [Frame; MAX_DEPTH],
    /// Invariant: `depth <= MAX_DEPTH`; `stack[..depth]` are the open containers the table knows.
    depth: usize,
    /// How many containers are open inside a value that is being skipped.
    skipping: u32,
    /// The document began as an object.
    is_object: bool,
    /// The node of the value that comes next, if the table knows it.
    next: Option<NodeId>,
    carry: Carry,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    node: NodeId,
    is_object: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A value must come; `or_end` where an array may also close.
    Value {
        or_end: bool,
    },
    /// A member name must come; `or_end` where an object may also close.
    Key {
        or_end: bool,
    },
    Colon,
    CommaOrEnd,
    /// Inside a string. `escaped`: the next byte follows a backslash.
    Text {
        is_key: bool,
        escaped: bool,
    },
    /// Inside a number or a literal.
    Bare,
    /// Inside a container that no path enters.
    Skip,
    SkipText {
        escaped: bool,
    },
    Done,
    Failed,
}

/// Deepest nesting that a table may name.
const MAX_DEPTH: usize = 12;

// === impl Scanner ===

impl Default for Scanner {
    fn default() -> Self {
        Self {
            state: State::Value { or_end: false },
            stack: [Frame { node: 0, is_object: false }; MAX_DEPTH],
            depth: 0,
            skipping: 0,
            is_object: false,
            next: Some(0),
            carry: Carry::default(),
        }
    }
}

impl Scanner {
    /// Forgets the document and waits for another.
    pub fn reset(&mut self) {
        self.state = State::Value { or_end: false };
        self.depth = 0;
        self.skipping = 0;
        self.is_object = false;
        self.next = Some(0);
        self.carry.clear();
    }

    /// Keeps the first `room` bytes of texts that the pieces cut, if that is more than 256.
    pub fn keep_long(&mut self, room: usize) {
        self.carry.keep_long(room);
    }

    /// Whether a whole document has been read.
    pub fn is_complete(&self) -> bool {
        self.state == State::Done
    }

    /// Whether the document is an object.
    pub fn is_object(&self) -> bool {
        self.is_object
    }

    /// Whether the document is not JSON. Nothing more will be reported.
    pub fn is_failed(&self) -> bool {
        self.state == State::Failed
    }

    /// Reads the next piece and reports the values that `paths` names, in order.
    pub fn push<S: Copy>(
        &mut self,
        paths: &Paths<S>,
        piece: &[u8],
        mut on: impl FnMut(S, Value<'_>),
    ) {
        self.locate(paths, piece, |signal, value, _| on(signal, value));
    }

    /// As [`Scanner::push`], and tells where in `piece` each value ends: behind its last byte, or
    /// behind the opening bracket of an object or array.
    pub fn locate<S: Copy>(
        &mut self,
        paths: &Paths<S>,
        piece: &[u8],
        mut on: impl FnMut(S, Value<'_>, usize),
    ) {
        let mut at = 0;
        while at < piece.len() {
            at = match self.state {
                State::Text { is_key, escaped } => {
                    self.text(paths, piece, at, is_key, escaped, &mut on)
                }
                State::Bare => self.bare(paths, piece, at, &mut on),
                State::Skip => self.skip(piece, at),
                State::SkipText { escaped } => self.skip_text(piece, at, escaped),
                State::Failed => return,
                _ => {
                    self.structure(paths, piece, at, &mut on);
                    // A bare token begins with this very byte.
                    if self.state == State::Bare { at } else { at + 1 }
                }
            };
        }
    }

    fn structure<S: Copy>(
        &mut self,
        paths: &Paths<S>,
        piece: &[u8],
        at: usize,
        on: &mut impl FnMut(S, Value<'_>, usize),
    ) {
        let (byte, mut on) = (piece[at], |signal, value: Value<'_>| on(signal, value, at + 1));
        match (self.state, byte) {
            (_, b' ' | b'\t' | b'\n' | b'\r') => {}
            (State::Value { or_end: true }, b']') | (State::Key { or_end: true }, b'}') => {
                self.close(paths, byte, &mut on);
            }
            (State::Value { .. }, _) => self.begin(paths, byte, &mut on),
            (State::Key { .. }, b'"') => self.state = State::Text { is_key: true, escaped: false },
            (State::Colon, b':') => self.state = State::Value { or_end: false },
            (State::CommaOrEnd, b',') => self.separate(paths),
            (State::CommaOrEnd, b'}' | b']') => self.close(paths, byte, &mut on),
            _ => self.state = State::Failed,
        }
    }

    /// A value begins with `byte`.
    fn begin<S: Copy>(&mut self, paths: &Paths<S>, byte: u8, on: &mut impl FnMut(S, Value<'_>)) {
        match byte {
            b'"' if paths.signal(self.next).is_some() => {
                self.state = State::Text { is_key: false, escaped: false };
            }
            b'"' => self.state = State::SkipText { escaped: false },
            b'{' | b'[' => self.open(paths, byte == b'{', on),
            b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => self.state = State::Bare,
            _ => self.state = State::Failed,
        }
    }

    fn open<S: Copy>(
        &mut self,
        paths: &Paths<S>,
        is_object: bool,
        on: &mut impl FnMut(S, Value<'_>),
    ) {
        if let Some(signal) = paths.signal(self.next) {
            on(signal, if is_object { Value::Object } else { Value::Array });
        }
        self.is_object |= is_object && self.depth == 0;
        match self.next {
            Some(node)
                if self.depth < MAX_DEPTH
                    && (self.depth == 0
                        || paths.is_entered(node, is_object)
                        || paths.signal(self.next).is_some()) =>
            {
                self.stack[self.depth] = Frame { node, is_object };
                self.depth += 1;
                self.state = if is_object {
                    State::Key { or_end: true }
                } else {
                    self.next = paths.element(node);
                    State::Value { or_end: true }
                };
            }
            _ => {
                self.skipping = 1;
                self.state = State::Skip;
            }
        }
    }

    fn close<S: Copy>(&mut self, paths: &Paths<S>, byte: u8, on: &mut impl FnMut(S, Value<'_>)) {
        let frame = self.stack[self.depth - 1];
        if frame.is_object != (byte == b'}') {
            self.state = State::Failed;
            return;
        }
        self.depth -= 1;
        if let Some(signal) = paths.signal(Some(frame.node)) {
            on(signal, Value::End);
        }
        self.value_ended();
    }

    fn separate<S: Copy>(&mut self, paths: &Paths<S>) {
        let frame = self.stack[self.depth - 1];
        self.state = if frame.is_object {
            State::Key { or_end: false }
        } else {
            self.next = paths.element(frame.node);
            State::Value { or_end: false }
        };
    }

    fn value_ended(&mut self) {
        self.state = if self.depth == 0 { State::Done } else { State::CommaOrEnd };
    }

    /// A value ended before `at`. Gives where to read on.
    fn end_value(&mut self, piece: &[u8], at: usize) -> usize {
        self.value_ended();
        if self.depth > 0 && self.stack[self.depth - 1].is_object {
            let key = State::Text { is_key: true, escaped: false };
            return self.go_on(piece, at, State::CommaOrEnd, b",\"", key);
        }
        at
    }

    /// Reads what most servers write here, without blanks, at once. Gives where to read on.
    fn go_on(
        &mut self,
        piece: &[u8],
        at: usize,
        state: State,
        usual: &[u8],
        behind: State,
    ) -> usize {
        let is_usual = piece[at..].starts_with(usual);
        self.state = if is_usual { behind } else { state };
        if is_usual { at + usual.len() } else { at }
    }

    fn text<S: Copy>(
        &mut self,
        paths: &Paths<S>,
        piece: &[u8],
        start: usize,
        is_key: bool,
        escaped: bool,
        on: &mut impl FnMut(S, Value<'_>, usize),
    ) -> usize {
        let Ok(end) = find_quote(piece, start, escaped) else {
            let escaped = find_quote(piece, start, escaped) == Err(true);
            self.carry.extend(&piece[start..]);
            self.state = State::Text { is_key, escaped };
            return piece.len();
        };
        let (raw, len) = self.carry.finish(&piece[start..end]);
        if is_key {
            let object = self.stack[self.depth - 1].node;
            let escaped = || Text::new(raw, len).unescaped();
            self.next = paths
                .member(object, raw)
                .filter(|_| raw.len() == len)
                .or_else(|| escaped().and_then(|name| paths.member(object, name.as_bytes())));
            self.carry.clear();
            return self.go_on(piece, end + 1, State::Colon, b":", State::Value { or_end: false });
        }
        if let Some(signal) = paths.signal(self.next) {
            on(signal, Value::Text(Text::new(raw, len)), end + 1);
        }
        self.carry.clear();
        self.end_value(piece, end + 1)
    }

    fn bare<S: Copy>(
        &mut self,
        paths: &Paths<S>,
        piece: &[u8],
        start: usize,
        on: &mut impl FnMut(S, Value<'_>, usize),
    ) -> usize {
        let is_end = |byte: &u8| matches!(byte, b',' | b']' | b'}' | b' ' | b'\t' | b'\n' | b'\r');
        let Some(len) = piece[start..].iter().position(is_end) else {
            self.carry.extend(&piece[start..]);
            return piece.len();
        };
        let end = start + len;
        let (raw, _) = self.carry.finish(&piece[start..end]);
        let value = match &raw[..raw.len().min(MAX_KEPT)] {
            b"null" => Value::Null,
            b"true" => Value::Bool(true),
            b"false" => Value::Bool(false),
            number @ [b'-' | b'0'..=b'9', ..] if is_number(number) => Value::Number(number),
            _ => {
                self.state = State::Failed;
                return end;
            }
        };
        if let Some(signal) = paths.signal(self.next) {
            on(signal, value, end);
        }
        self.carry.clear();
        self.end_value(piece, end)
    }

    fn skip(&mut self, piece: &[u8], start: usize) -> usize {
        for (offset, byte) in piece[start..].iter().enumerate() {
            match byte {
                b'"' => {
                    self.state = State::SkipText { escaped: false };
                    return start + offset + 1;
                }
                b'{' | b'[' => self.skipping += 1,
                b'}' | b']' => {
                    self.skipping -= 1;
                    if self.skipping == 0 {
                        self.value_ended();
                        return start + offset + 1;
                    }
                }
                _ => {}
            }
        }
        piece.len()
    }

    fn skip_text(&mut self, piece: &[u8], start: usize, escaped: bool) -> usize {
        match find_quote(piece, start, escaped) {
            Ok(end) => {
                if self.skipping == 0 {
                    return self.end_value(piece, end + 1);
                }
                self.state = State::Skip;
                end + 1
            }
            Err(escaped) => {
                self.state = State::SkipText { escaped };
                piece.len()
            }
        }
    }
}

fn is_number(raw: &[u8]) -> bool {
    raw.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'))
}
