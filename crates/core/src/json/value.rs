//! JSON values as they are encoded in the document: not copied, and decoded on request.

use super::token_buffer::MAX_TOKEN_BYTES;
use std::borrow::Cow;
use std::time::Duration;

/// A value at a path of the table, or the end of a container at one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum JsonValue<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number as it is encoded; truncated to 256 bytes.
    Number(&'a [u8]),
    /// A string.
    Text(JsonText<'a>),
    /// The start of an object; its members follow.
    Object,
    /// The start of an array; its elements follow.
    Array,
    /// The end of the object or array that was last reported at this path.
    End,
}

/// A string value: complete if it is short, its beginning if it is long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JsonText<'a> {
    /// The bytes between the quotes, with escapes. Invariant: `raw.len() <= len`.
    raw: &'a [u8],
    len: usize,
}

// === impl JsonValue, JsonText ===

impl<'a> JsonValue<'a> {
    /// The number as a count. `None` if it is not an integer from 0 to 2⁶³ − 1.
    pub fn as_count(self) -> Option<u64> {
        let JsonValue::Number(digits) = self else { return None };
        std::str::from_utf8(digits).ok()?.parse().ok().filter(|n| i64::try_from(*n).is_ok())
    }

    /// The number as a signed 64-bit integer. `None` if it is not one.
    pub fn as_integer(self) -> Option<i64> {
        let JsonValue::Number(digits) = self else { return None };
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// The number. `None` if the value is not a finite number.
    pub fn as_real(self) -> Option<f64> {
        let JsonValue::Number(digits) = self else { return None };
        std::str::from_utf8(digits).ok()?.parse().ok().filter(|real: &f64| real.is_finite())
    }

    /// The number as milliseconds. `None` if the value is not a finite number of at least 0.
    pub fn as_millis(self) -> Option<Duration> {
        let JsonValue::Number(digits) = self else { return None };
        let millis: f64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
        Duration::try_from_secs_f64(millis / 1e3).ok()
    }

    /// The text, unescaped. `None` for any other value, and for a text of more than 256 bytes,
    /// because whether that one is truncated depends on how the document is split.
    pub fn as_text(self) -> Option<Cow<'a, str>> {
        match self {
            JsonValue::Text(text) if text.len <= MAX_TOKEN_BYTES => text.decode(),
            _ => None,
        }
    }
}

impl<'a> JsonText<'a> {
    /// A text of `len` bytes, of which `raw` was kept.
    pub(super) fn new(raw: &'a [u8], len: usize) -> Self {
        debug_assert!(raw.len() <= len);
        Self { raw, len }
    }

    /// Length of the encoded text, in bytes.
    pub fn len(self) -> usize {
        self.len
    }

    /// The first 256 bytes of the encoded text, with escapes.
    pub fn prefix(self) -> &'a [u8] {
        &self.raw[..self.raw.len().min(MAX_TOKEN_BYTES)]
    }

    /// The bytes of the encoded text that were kept: all of them, unless the text was split and is
    /// longer than the capacity set by
    /// [`JsonScanner::set_text_capacity`](super::JsonScanner::set_text_capacity).
    pub fn raw(self) -> &'a [u8] {
        self.raw
    }

    /// Whether the string is empty.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The text, unescaped, if it has escapes. `None` without them, and as [`JsonText::decode`].
    pub(super) fn decode_if_escaped(self) -> Option<Cow<'a, str>> {
        memchr::memchr(b'\\', self.raw).and_then(|_| self.decode())
    }

    /// The text, unescaped. `None` if it is not valid, or too long to have been kept.
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
