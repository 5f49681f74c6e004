//! A sans-IO scanner for JSON that arrives in pieces, however they were cut.
//!
//! A [`Paths`] table names the few values that matter; everything else is skipped without being
//! kept. Each byte is visited once and the memory is constant: a line of ten megabytes costs no
//! more room than one of ten bytes. The scanner checks the structure around the values it
//! reports and only counts the nesting inside the values it skips: it is an observer, not a validator.

use memchr::memchr2;
use std::borrow::Cow;

/// The paths worth reporting, compiled to a trie, each with the signal it raises.
///
/// A path is member names joined by `.`; `[]` after a name means every element of that array:
/// `choices[].delta.content`.
#[derive(Debug)]
pub struct Paths<S> {
    nodes: Vec<Node<S>>,
}

#[derive(Debug)]
struct Node<S> {
    members: Vec<(&'static str, NodeId)>,
    elements: Option<NodeId>,
    signal: Option<S>,
}

type NodeId = u8;

/// A value that a path of the table names, or the end of a container that one names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number as it was written.
    Number(&'a [u8]),
    /// A string.
    Text(Text<'a>),
    /// An object begins; its members follow.
    Object,
    /// An array begins; its elements follow.
    Array,
    /// The object or array that was reported last at this path ends.
    End,
}

/// A string value: all of it when short, its beginning when long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Text<'a> {
    /// The bytes between the quotes, still escaped. Invariant: `raw.len() <= len`.
    raw: &'a [u8],
    len: usize,
}

/// The state of one document between two pieces of it.
#[derive(Debug, Clone)]
pub struct Scanner {
    state: State,
    stack: [Frame; MAX_DEPTH],
    /// Invariant: `depth <= MAX_DEPTH`; `stack[..depth]` are the open containers the table knows.
    depth: usize,
    /// How many containers are open inside a value that is being skipped.
    skipping: u32,
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

/// A name or scalar cut by the end of a piece: its first bytes and its whole length.
#[derive(Debug, Clone)]
struct Carry {
    bytes: [u8; CARRY],
    len: usize,
}

/// Deepest nesting that a table may name.
const MAX_DEPTH: usize = 12;
/// Longest name or scalar that survives being cut. Longer ones are reported truncated.
const CARRY: usize = 256;

// === impl Paths ===

impl<S: Copy> Paths<S> {
    /// Compiles a table.
    pub fn new(table: &[(&'static str, S)]) -> Self {
        let mut paths = Self { nodes: vec![Node::empty()] };
        for &(path, signal) in table {
            let mut at = 0;
            for segment in path.split('.') {
                let name = segment.trim_end_matches("[]");
                at = paths.child(at, Some(name));
                for _ in 0..(segment.len() - name.len()) / 2 {
                    at = paths.child(at, None);
                }
            }
            paths.nodes[usize::from(at)].signal = Some(signal);
        }
        paths
    }

    fn child(&mut self, parent: NodeId, name: Option<&'static str>) -> NodeId {
        let known = match name {
            Some(name) => self.member(parent, name.as_bytes()),
            None => self.nodes[usize::from(parent)].elements,
        };
        known.unwrap_or_else(|| {
            let id = self.nodes.len() as NodeId;
            debug_assert!(self.nodes.len() <= usize::from(NodeId::MAX), "table too large");
            self.nodes.push(Node::empty());
            match name {
                Some(name) => self.nodes[usize::from(parent)].members.push((name, id)),
                None => self.nodes[usize::from(parent)].elements = Some(id),
            }
            id
        })
    }

    fn member(&self, object: NodeId, name: &[u8]) -> Option<NodeId> {
        let members = &self.nodes[usize::from(object)].members;
        members.iter().find(|(known, _)| known.as_bytes() == name).map(|&(_, id)| id)
    }

    fn signal(&self, node: Option<NodeId>) -> Option<S> {
        self.nodes[usize::from(node?)].signal
    }

    fn is_entered(&self, node: NodeId, is_object: bool) -> bool {
        let node = &self.nodes[usize::from(node)];
        if is_object { !node.members.is_empty() } else { node.elements.is_some() }
    }
}

impl<S> Node<S> {
    fn empty() -> Self {
        Self { members: Vec::new(), elements: None, signal: None }
    }
}

// === impl Value, Text ===

impl<'a> Value<'a> {
    /// The number as a count. `None` if it is not a whole number from 0 to 2⁶³ − 1.
    pub fn as_count(self) -> Option<u64> {
        let Value::Number(digits) = self else { return None };
        std::str::from_utf8(digits).ok()?.parse().ok().filter(|n| i64::try_from(*n).is_ok())
    }

    /// The text, unescaped. `None` for anything else, and for a text that was cut short.
    pub fn as_text(self) -> Option<Cow<'a, str>> {
        match self {
            Value::Text(text) => text.decode(),
            _ => None,
        }
    }
}

impl<'a> Text<'a> {
    /// Whether nothing stands between the quotes.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The text, unescaped. `None` if it is not valid or too long to have been kept.
    pub fn decode(self) -> Option<Cow<'a, str>> {
        if self.raw.len() < self.len {
            return None;
        }
        let raw = std::str::from_utf8(self.raw).ok()?;
        if memchr::memchr(b'\\', self.raw).is_none() {
            return Some(Cow::Borrowed(raw));
        }
        serde_json::from_str(&format!("\"{raw}\"")).ok().map(Cow::Owned)
    }
}

// === impl Scanner ===

impl Default for Scanner {
    fn default() -> Self {
        Self {
            state: State::Value { or_end: false },
            stack: [Frame { node: 0, is_object: false }; MAX_DEPTH],
            depth: 0,
            skipping: 0,
            next: Some(0),
            carry: Carry { bytes: [0; CARRY], len: 0 },
        }
    }
}

impl Scanner {
    /// Forgets the document and waits for another.
    pub fn reset(&mut self) {
        self.state = State::Value { or_end: false };
        self.depth = 0;
        self.skipping = 0;
        self.next = Some(0);
        self.carry.len = 0;
    }

    /// Whether a whole document has been read.
    pub fn is_complete(&self) -> bool {
        self.state == State::Done
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
                    self.structure(paths, piece[at], &mut on);
                    // A bare token begins with this very byte.
                    if self.state == State::Bare { at } else { at + 1 }
                }
            };
        }
    }

    fn structure<S: Copy>(
        &mut self,
        paths: &Paths<S>,
        byte: u8,
        on: &mut impl FnMut(S, Value<'_>),
    ) {
        match (self.state, byte) {
            (_, b' ' | b'\t' | b'\n' | b'\r') => {}
            (State::Value { or_end: true }, b']') | (State::Key { or_end: true }, b'}') => {
                self.close(paths, byte, on);
            }
            (State::Value { .. }, _) => self.begin(paths, byte, on),
            (State::Key { .. }, b'"') => self.state = State::Text { is_key: true, escaped: false },
            (State::Colon, b':') => self.state = State::Value { or_end: false },
            (State::CommaOrEnd, b',') => self.separate(paths),
            (State::CommaOrEnd, b'}' | b']') => self.close(paths, byte, on),
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
                    self.next = paths.nodes[usize::from(node)].elements;
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
            self.next = paths.nodes[usize::from(frame.node)].elements;
            State::Value { or_end: false }
        };
    }

    fn value_ended(&mut self) {
        self.state = if self.depth == 0 { State::Done } else { State::CommaOrEnd };
    }

    fn text<S: Copy>(
        &mut self,
        paths: &Paths<S>,
        piece: &[u8],
        start: usize,
        is_key: bool,
        escaped: bool,
        on: &mut impl FnMut(S, Value<'_>),
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
            self.next = match (Text { raw, len }).decode() {
                Some(name) => paths.member(object, name.as_bytes()),
                None => None,
            };
            self.state = State::Colon;
        } else {
            if let Some(signal) = paths.signal(self.next) {
                on(signal, Value::Text(Text { raw, len }));
            }
            self.value_ended();
        }
        self.carry.len = 0;
        end + 1
    }

    fn bare<S: Copy>(
        &mut self,
        paths: &Paths<S>,
        piece: &[u8],
        start: usize,
        on: &mut impl FnMut(S, Value<'_>),
    ) -> usize {
        let is_end = |byte: &u8| matches!(byte, b',' | b']' | b'}' | b' ' | b'\t' | b'\n' | b'\r');
        let Some(len) = piece[start..].iter().position(is_end) else {
            self.carry.extend(&piece[start..]);
            return piece.len();
        };
        let end = start + len;
        let (raw, len) = self.carry.finish(&piece[start..end]);
        let value = match raw {
            b"null" => Value::Null,
            b"true" => Value::Bool(true),
            b"false" => Value::Bool(false),
            [b'-' | b'0'..=b'9', ..] if raw.len() == len => Value::Number(raw),
            _ => {
                self.state = State::Failed;
                return end;
            }
        };
        if let Some(signal) = paths.signal(self.next) {
            on(signal, value);
        }
        self.carry.len = 0;
        self.value_ended();
        end
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
                    self.value_ended();
                } else {
                    self.state = State::Skip;
                }
                end + 1
            }
            Err(escaped) => {
                self.state = State::SkipText { escaped };
                piece.len()
            }
        }
    }
}

/// The position of the quote that ends the string, or whether the piece ends on a backslash.
fn find_quote(piece: &[u8], start: usize, escaped: bool) -> Result<usize, bool> {
    let mut at = start + usize::from(escaped);
    while at < piece.len() {
        match memchr2(b'"', b'\\', &piece[at..]) {
            None => return Err(false),
            Some(offset) if piece[at + offset] == b'"' => return Ok(at + offset),
            Some(offset) => at += offset + 2,
        }
    }
    Err(at > piece.len())
}

// === impl Carry ===

impl Carry {
    fn extend(&mut self, bytes: &[u8]) {
        let kept = self.len.min(CARRY);
        let room = bytes.len().min(CARRY - kept);
        self.bytes[kept..kept + room].copy_from_slice(&bytes[..room]);
        self.len += bytes.len();
    }

    /// The whole token, given its last bytes: uncopied unless it was cut.
    fn finish<'a>(&'a mut self, last: &'a [u8]) -> (&'a [u8], usize) {
        if self.len == 0 {
            return (last, last.len());
        }
        self.extend(last);
        (&self.bytes[..self.len.min(CARRY)], self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seen(paths: &Paths<&'static str>, pieces: &[&[u8]]) -> (Vec<String>, bool) {
        let mut scanner = Scanner::default();
        let mut seen = Vec::new();
        for piece in pieces {
            scanner.push(paths, piece, |signal, value| {
                seen.push(match value {
                    Value::Text(text) => format!("{signal}={:?}", text.decode()),
                    Value::Number(raw) => format!("{signal}={}", String::from_utf8_lossy(raw)),
                    other => format!("{signal}={other:?}"),
                });
            });
        }
        (seen, scanner.is_complete())
    }

    fn table() -> Paths<&'static str> {
        Paths::new(&[
            ("choices[]", "choice"),
            ("choices[].delta.content", "content"),
            ("choices[].token_ids[]", "token"),
            ("usage.total", "total"),
            ("error", "error"),
        ])
    }

    #[test]
    fn only_the_named_values_are_reported() {
        let document = br#"{"id":"x","choices":[{"delta":{"role":"a","content":"Hi \"you\""},
            "token_ids":[1,22],"logprobs":{"content":[{"a":[]}]}}],"usage":{"total":12}}"#;
        let (seen, complete) = seen(&table(), &[document]);
        assert!(complete);
        assert_eq!(
            seen,
            [
                "choice=Object",
                "content=Some(\"Hi \\\"you\\\"\")",
                "token=1",
                "token=22",
                "choice=End",
                "total=12"
            ]
        );
    }

    #[test]
    fn an_escaped_name_is_the_name_it_spells() {
        let (seen, _) = seen(&table(), &[br#"{"err\u006fr":{"a":1}}"#]);
        assert_eq!(seen, ["error=Object", "error=End"]);
    }

    #[test]
    fn a_long_text_is_reported_truncated_and_still_measured() {
        let long = format!(r#"{{"error":"{}"}}"#, "a".repeat(10_000));
        let mut scanner = Scanner::default();
        let mut lengths = Vec::new();
        for piece in long.as_bytes().chunks(100) {
            scanner.push(&table(), piece, |_, value| {
                let Value::Text(text) = value else { panic!("not a text") };
                lengths.push((text.len, text.decode().map(Cow::into_owned)));
            });
        }
        assert_eq!(lengths, [(10_000, None)]);
    }

    #[test]
    fn what_is_not_json_fails_and_stays_failed() {
        for bad in ["[DONE]", "{\"a\" 1}", "{]", "}", "{\"a\":1,}", "nul", "{\"usage\":{]"] {
            let mut scanner = Scanner::default();
            scanner.push(&table(), bad.as_bytes(), |_, _| {});
            assert!(!scanner.is_complete(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn splitting_the_document_never_changes_what_is_seen(
            cuts in proptest::collection::vec(0_usize..200, 0..6),
        ) {
            let document: &[u8] = "{\"choices\":[{\"delta\":{\"content\":\"a\\\\\\\"é\\n\"}},{\"token_ids\":[10,-2.5e3]}],\
                \"x\":[[\"}\\\"\"],{}],\"usage\":{\"total\":null},\"error\":true}".as_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(document.len())).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&document[from..cut]);
                from = cut;
            }
            pieces.push(&document[from..]);
            prop_assert_eq!(seen(&table(), &pieces), seen(&table(), &[document]));
            prop_assert!(seen(&table(), &pieces).1);
        }

        #[test]
        fn it_agrees_with_serde_json_about_every_number(total in any::<u64>(), cut in 0_usize..40) {
            let document = serde_json::json!({"z": [{"usage": {"total": 1}}], "usage": {"total": total}});
            let bytes = document.to_string().into_bytes();
            let cut = cut.min(bytes.len());
            let (seen, complete) = seen(&table(), &[&bytes[..cut], &bytes[cut..]]);
            prop_assert!(complete);
            prop_assert_eq!(seen, vec![format!("total={total}")]);
        }

        #[test]
        fn no_input_makes_it_panic(pieces in proptest::collection::vec(
            proptest::collection::vec(prop_oneof![
                Just(b'{'), Just(b'}'), Just(b'['), Just(b']'), Just(b'"'), Just(b'\\'), Just(b':'),
                Just(b','), Just(b'e'), Just(b'1'), Just(b' '), any::<u8>()
            ], 0..40), 0..6)) {
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            seen(&table(), &pieces);
        }
    }
}
