//! Values as they stand in a document: uncopied, and decoded only when somebody asks.

use std::borrow::Cow;

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
    /// A text of `len` bytes, of which `raw` were kept.
    pub(super) fn new(raw: &'a [u8], len: usize) -> Self {
        debug_assert!(raw.len() <= len);
        Self { raw, len }
    }

    /// Its length as it was written, in bytes.
    pub fn len(self) -> usize {
        self.len
    }

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
