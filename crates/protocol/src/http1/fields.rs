//! Functions that request heads and response heads share: header fields, numbers, and the parse error.

use crate::headers::has_token;
use bytes::BufMut;
use http::header::{CONNECTION, InvalidHeaderValue};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Error for bytes that are not valid HTTP/1.1, or that can be interpreted in two ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Http1ParseError {
    /// The start line or a header is malformed.
    #[error("the head is not HTTP/1.1")]
    InvalidHead,
    /// The head exceeds its limit of bytes or headers.
    #[error("the head has too many bytes or headers")]
    HeadTooLong,
    /// The request target exceeds its length limit.
    #[error("the request target is too long")]
    TargetTooLong,
    /// The headers that state the body length are malformed or contradict each other.
    #[error("the headers that state the body length are invalid or contradict each other")]
    InvalidBodyLength,
    /// The chunked framing of the body is malformed.
    #[error("the chunked encoding of the body is invalid")]
    InvalidChunks,
}

/// Parses a number in this radix that consists only of digits. `None`: the text is empty, has another character
/// (such as a sign or a blank), or does not fit into 64 bits.
pub fn parse_digits(digits: &[u8], radix: u32) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, byte| {
        let digit = char::from(*byte).to_digit(radix)?;
        number.checked_mul(radix.into())?.checked_add(digit.into())
    })
}

/// Whether the sender of a message with these headers keeps the connection open for further
/// messages.
pub(super) fn is_keep_alive(headers: &HeaderMap, is_http10: bool) -> bool {
    let has_option = |option| has_token(headers, &CONNECTION, option);
    !has_option("close") && (!is_http10 || has_option("keep-alive"))
}

/// A map of headers or trailers that httparse parsed, with room for `more` headers. `to_value` makes a header value
/// from its bytes. `None`: a name or a value is invalid.
pub(super) fn to_header_map(
    headers: &[httparse::Header<'_>],
    more: usize,
    to_value: impl Fn(&[u8]) -> Result<HeaderValue, InvalidHeaderValue>,
) -> Option<HeaderMap> {
    let mut map = HeaderMap::with_capacity(headers.len() + more);
    for header in headers {
        let name = HeaderName::from_bytes(header.name.as_bytes()).ok()?;
        map.append(name, to_value(header.value).ok()?);
    }
    Some(map)
}

/// Appends the line of a header to the bytes in `wire`.
pub(super) fn encode_header(name: &str, value: &[u8], wire: &mut impl BufMut) {
    wire.put_slice(name.as_bytes());
    wire.put_slice(b": ");
    wire.put_slice(value);
    wire.put_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_digits_only_and_fit() {
        assert_eq!(parse_digits(b"0042", 10), Some(42));
        assert_eq!(parse_digits(b"18446744073709551615", 10), Some(u64::MAX));
        for text in ["", "+1", " 1", "a", "18446744073709551616"] {
            assert_eq!(parse_digits(text.as_bytes(), 10), None, "{text}");
        }
    }
}
