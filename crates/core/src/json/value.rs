//! Values as they stand in a document: uncopied, and decoded only when somebody asks.

use super::carry::MAX_KEPT;
use std::borrow::Cow;
use std::time::Duration;

/// A value that a path of the table names, or the end of a container that one names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number as it was written; its first 256 bytes if it is longer.
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

    /// The number as an integer of 64 bits. `None` if it is not one.
    pub fn as_integer(self) -> Option<i64> {
        let Value::Number(digits) = self else { return None };
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// The number. `None` if it is not one, or not finite.
    pub fn as_real(self) -> Option<f64> {
        let Value::Number(digits) = self else { return None };
        std::str::from_utf8(digits).ok()?.parse().ok().filter(|real: &f64| real.is_finite())
    }

    /// The number as milliseconds. `None` if it is not one, negative or not finite.
    pub fn as_millis(self) -> Option<Duration> {
        let Value::Number(digits) = self else { return None };
        let millis: f64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
        Duration::try_from_secs_f64(millis / 1e3).ok()
    }

    /// The text, unescaped. `None` for anything else, and for a text of more than 256 bytes: that
    /// one is cut short or not, as its pieces happen to come.
    pub fn as_text(self) -> Option<Cow<'a, str>> {
        match self {
            Value::Text(text) if text.len <= MAX_KEPT => text.decode(),
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

    /// Its first 256 bytes, as they were written: escapes are kept.
    pub fn beginning(self) -> &'a [u8] {
        &self.raw[..self.raw.len().min(MAX_KEPT)]
    }

    /// What of it was kept, as it was written: all of it, unless a piece cut it and it is longer
    /// than [`Scanner::keep_long`](super::Scanner::keep_long) says.
    pub fn kept(self) -> &'a [u8] {
        self.raw
    }

    /// Whether nothing stands between the quotes.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The text, unescaped, if it has escapes. `None` without them, and as [`Text::decode`].
    pub(super) fn unescaped(self) -> Option<Cow<'a, str>> {
        memchr::memchr(b'\\', self.raw).and_then(|_| self.decode())
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
