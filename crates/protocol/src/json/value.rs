//! JSON values that borrow the bytes of the document and are decoded only when asked.

use super::members;
use super::token_buffer::MAX_TOKEN_BYTES;
use std::borrow::Cow;
use std::str::FromStr;
use std::time::Duration;

/// A value at a path of the [`PathTable`](super::PathTable), or the end of the container at a path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum JsonValue<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number as the document encodes it, truncated to 256 bytes.
    Number(&'a [u8]),
    /// A string, which is decoded on request.
    Text(JsonText<'a>),
    /// The start of an object. Reports of its members follow.
    Object,
    /// The start of an array. Reports of its elements follow.
    Array,
    /// The end of the object or array whose start was the last report at this path.
    End {
        /// Whether the object or array has no members or elements.
        is_empty: bool,
    },
}

/// A string value: the complete string, or its beginning if it was split and is too long to store.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JsonText<'a> {
    /// The stored bytes between the quotes, with escapes. Invariant: `raw.len() <= len`.
    raw: &'a [u8],
    /// Number of bytes between the quotes, stored or not.
    len: usize,
}

/// Longest duration that [`JsonValue::as_millis`] accepts, in milliseconds, so that sums of durations stay
/// small.
const MAX_MILLIS: f64 = 1e9;

impl<'a> JsonValue<'a> {
    /// Whether the value is a number, `true` or a string that is not empty.
    pub fn is_scalar_with_content(self) -> bool {
        match self {
            JsonValue::Number(_) | JsonValue::Bool(true) => true,
            JsonValue::Text(text) => !text.is_empty(),
            _ => false,
        }
    }

    /// Whether the value is a number, `true`, a string that is not empty, or the end of an object or array that
    /// is not empty.
    pub fn has_content(self) -> bool {
        self == (JsonValue::End { is_empty: false }) || self.is_scalar_with_content()
    }

    /// Whether the value can be the answer of a response: any text, number, `true` or `false`, or the end of an
    /// object or array that is not empty.
    pub fn is_answer(self) -> bool {
        matches!(
            self,
            Self::Text(_) | Self::Number(_) | Self::Bool(_) | Self::End { is_empty: false }
        )
    }

    /// The number as a count. `12.0` and `1e3` are accepted too. `None`: the value is not an integer from 0 to
    /// 2⁶³ − 1.
    pub fn as_count(self) -> Option<u64> {
        let JsonValue::Number(digits) = self else {
            return None;
        };
        members::count(digits)
    }

    /// The number as a signed 64-bit integer. `None`: the value is not such an integer.
    pub fn as_integer(self) -> Option<i64> {
        self.as_number()
    }

    /// The number. `None`: the value is not a finite number.
    pub fn as_real(self) -> Option<f64> {
        self.as_number().filter(|real: &f64| real.is_finite())
    }

    /// The number as a duration in milliseconds. `None`: the value is not a number from 0 to 10⁹. 10⁹
    /// milliseconds are eleven days.
    pub fn as_millis(self) -> Option<Duration> {
        let millis = self
            .as_number()
            .filter(|millis: &f64| *millis <= MAX_MILLIS)?;
        Duration::try_from_secs_f64(millis / 1e3).ok()
    }

    fn as_number<T: FromStr>(self) -> Option<T> {
        let JsonValue::Number(digits) = self else {
            return None;
        };
        members::number(digits)
    }

    /// The text, unescaped. `None`: the value is not a valid string of at most 256 bytes. Whether a longer
    /// string is stored completely depends on where the document is split, so longer strings are always
    /// excluded.
    pub fn as_text(self) -> Option<Cow<'a, str>> {
        match self {
            JsonValue::Text(text) if text.len <= MAX_TOKEN_BYTES => text.decode(),
            _ => None,
        }
    }
}

impl<'a> JsonText<'a> {
    /// A text of `len` bytes. `raw` is its stored part.
    pub fn new(raw: &'a [u8], len: usize) -> Self {
        debug_assert!(raw.len() <= len);
        Self { raw, len }
    }

    /// Length of the encoded text in bytes, with escapes. Bytes that are not stored count too.
    pub fn len(self) -> usize {
        self.len
    }

    /// The first 256 bytes of the encoded text, with escapes.
    pub fn prefix(self) -> &'a [u8] {
        &self.raw[..self.raw.len().min(MAX_TOKEN_BYTES)]
    }

    /// The stored bytes of the encoded text. Only a text that was split can be incomplete: up to 256 bytes of
    /// it are stored, or the capacity set by
    /// [`JsonScanner::set_text_capacity`](super::JsonScanner::set_text_capacity).
    pub fn raw(self) -> &'a [u8] {
        self.raw
    }

    /// Whether the string is `""`.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The text, unescaped. `None`: the text has no escapes, or [`JsonText::decode`] returns
    /// `None`.
    pub fn decode_if_escaped(self) -> Option<Cow<'a, str>> {
        memchr::memchr(b'\\', self.raw).and_then(|_| self.decode())
    }

    /// The text, unescaped. `None`: the text is invalid, or not all of its bytes are stored.
    pub fn decode(self) -> Option<Cow<'a, str>> {
        if self.raw.len() < self.len {
            return None;
        }
        let raw = std::str::from_utf8(self.raw).ok()?;
        // Most of these texts are too short for a vector search.
        if !self.raw.contains(&b'\\') {
            return Some(Cow::Borrowed(raw));
        }
        serde_json::from_str(&format!("\"{raw}\""))
            .ok()
            .map(Cow::Owned)
    }
}

/// The value of a number, `true`, `false` or `null`. `None`: `raw` is another text.
pub(super) fn read_literal(raw: &[u8]) -> Option<JsonValue<'_>> {
    let is_number_byte = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
    match raw {
        b"null" => Some(JsonValue::Null),
        b"true" => Some(JsonValue::Bool(true)),
        b"false" => Some(JsonValue::Bool(false)),
        [b'-' | b'0'..=b'9', rest @ ..] if rest.iter().all(is_number_byte) => {
            Some(JsonValue::Number(raw))
        }
        _ => None,
    }
}
