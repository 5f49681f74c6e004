//! HTTP/1.1 without I/O (RFC 9112), from both of its sides: bytes become the heads and the bodies of
//! clients' requests and of replicas' answers, and requests and answers become bytes. A connection that
//! waits for more keeps nothing here but a few words, and what comes of a body goes on in one
//! piece; the reading of heads is httparse's.

mod body;
mod head;
mod head_scan;
mod reply;
mod request;
mod request_head;
#[cfg(test)]
mod tests;

pub use body::Body;
pub use head::{Head, has_blank_line, head};
pub use head_scan::HeadScan;
pub use reply::{CHUNK_END, CONTINUE, Client, Framed, LAST_CHUNK, put_chunk_size, put_head};
pub use request::encode;
pub use request_head::{Most, RequestHead, request_head};

use crate::headers::connection_options;
use bytes::{BufMut, BytesMut};
use http::header::InvalidHeaderValue;
use http::{HeaderMap, HeaderName, HeaderValue};

/// The bytes are no HTTP/1.1, or can be read in two ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unsound {
    /// The head.
    #[error("the head is not HTTP/1.1")]
    Head,
    /// The head is longer than allowed.
    #[error("the head is too long")]
    TooLong,
    /// The target of a request is.
    #[error("the target is too long")]
    Target,
    /// The headers that say how long the body is.
    #[error("the headers do not say how long the body is")]
    Length,
    /// The chunks of the body.
    #[error("the body is not chunked as its head says")]
    Chunks,
}

/// Digits of a radix, and nothing but digits.
pub fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let is_digits = digits.iter().all(|byte| char::from(*byte).is_digit(radix));
    let digits = str::from_utf8(digits).ok().filter(|_| is_digits)?;
    u64::from_str_radix(digits, radix).ok()
}

/// Whether the sender of these headers may use the connection again.
fn is_kept(headers: &HeaderMap, is_old: bool) -> bool {
    let says = |word| connection_options(headers).any(|option| option.eq_ignore_ascii_case(word));
    !says("close") && (!is_old || says("keep-alive"))
}

/// Headers or trailers as httparse found them, with values made by `value`. `None`: one of them is
/// none.
fn fields(
    found: &[httparse::Header<'_>],
    value: impl Fn(&[u8]) -> Result<HeaderValue, InvalidHeaderValue>,
) -> Option<HeaderMap> {
    // The gateway adds some of its own.
    let mut map = HeaderMap::with_capacity(found.len() + 4);
    for field in found {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        map.append(name, value(field.value).ok()?);
    }
    Some(map)
}

/// Puts a header behind what is in `wire`.
fn put_field(name: &str, value: &[u8], wire: &mut BytesMut) {
    wire.put_slice(name.as_bytes());
    wire.put_slice(b": ");
    wire.put_slice(value);
    wire.put_slice(b"\r\n");
}
