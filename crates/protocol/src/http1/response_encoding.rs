//! Encoding of response heads and chunks for clients.

use super::fields::{encode_header, parse_digits};
use bytes::{BufMut, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use http::{Method, StatusCode, response};
use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

/// Length of the value of a `date` header in bytes, such as `Thu, 01 Jan 1970 00:00:00 GMT`.
const DATE_BYTES: usize = 29;

/// The way in which a response indicates the end of its body to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseFraming {
    /// The response has no body, by its status or method.
    NoBody,
    /// `content-length` states the number of bytes of the body.
    ContentLength(u64),
    /// The body is sent in chunks.
    Chunked,
    /// The connection is closed after the body.
    UntilClose,
}

/// The properties of a request that determine the encoding of its response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestSummary {
    /// `HEAD` and `CONNECT` change the framing of the response.
    pub method: Method,
    /// Whether the client uses HTTP/1.0.
    pub is_http10: bool,
    /// Whether the client may send another request on the connection.
    pub is_keep_alive: bool,
}

impl ResponseFraming {
    /// The framing of a response body. `exact_length`: the number of bytes of the body, which counts if the
    /// head has no `content-length`. `None`: the number is unknown.
    pub fn for_response(
        client: &RequestSummary,
        head: &response::Parts,
        exact_length: Option<u64>,
    ) -> Self {
        let has_no_body = client.method == Method::HEAD
            || matches!(
                head.status,
                StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
            );
        let content_length = head.headers.get(CONTENT_LENGTH);
        let content_length = content_length.and_then(|length| parse_digits(length.as_bytes(), 10));
        match content_length.or(exact_length) {
            _ if has_no_body => Self::NoBody,
            _ if head.status == StatusCode::SWITCHING_PROTOCOLS => Self::UntilClose,
            Some(length) => Self::ContentLength(length),
            None if client.is_http10 => Self::UntilClose,
            None => Self::Chunked,
        }
    }

    /// Whether the client can find the end of the body while the connection stays open, so that another
    /// response can follow.
    pub fn is_self_delimiting(self) -> bool {
        self != Self::UntilClose
    }
}

/// Appends the head of a response to `wire`. `now` is called if the head has no `date`.
pub fn encode_response_head(
    client: &RequestSummary,
    head: &response::Parts,
    framing: ResponseFraming,
    now: impl FnOnce() -> SystemTime,
    wire: &mut BytesMut,
) {
    wire.put_slice(if client.is_http10 {
        b"HTTP/1.0 "
    } else {
        b"HTTP/1.1 "
    });
    wire.put_slice(head.status.as_str().as_bytes());
    wire.put_u8(b' ');
    wire.put_slice(
        head.status
            .canonical_reason()
            .unwrap_or_default()
            .as_bytes(),
    );
    wire.put_slice(b"\r\n");
    for (name, value) in &head.headers {
        let is_replaced = *name == CONNECTION || *name == TRANSFER_ENCODING;
        // A response to HEAD and a 304 keep their `content-length`, which states the length of the body of a
        // GET response. A 204 must not have one (RFC 9110, section 8.6).
        let keeps_length =
            framing == ResponseFraming::NoBody && head.status != StatusCode::NO_CONTENT;
        if !is_replaced && (*name != CONTENT_LENGTH || keeps_length) {
            encode_header(name.as_str(), value.as_bytes(), wire);
        }
    }
    match framing {
        ResponseFraming::ContentLength(length) => {
            let mut digits = itoa::Buffer::new();
            encode_header("content-length", digits.format(length).as_bytes(), wire);
        }
        ResponseFraming::Chunked => encode_header("transfer-encoding", b"chunked", wire),
        ResponseFraming::NoBody | ResponseFraming::UntilClose => {}
    }
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        encode_header("connection", b"upgrade", wire);
    } else if !client.is_keep_alive {
        encode_header("connection", b"close", wire);
    } else if client.is_http10 {
        encode_header("connection", b"keep-alive", wire);
    }
    if !head.headers.contains_key(DATE) {
        encode_header("date", &date_of(now()), wire);
    }
    wire.put_slice(b"\r\n");
}

/// The value of the `date` header at the time `now`. Each thread stores its last formatted value and uses it
/// again within the second: formatting takes half as long as writing the rest of a head.
fn date_of(now: SystemTime) -> [u8; DATE_BYTES] {
    thread_local! {
        static LAST: Cell<(u64, [u8; DATE_BYTES])> = const { Cell::new((u64::MAX, [0; DATE_BYTES])) };
    }
    let second = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (last, date) = LAST.get();
    if last == second {
        return date;
    }
    let date = httpdate::fmt_http_date(now)
        .as_bytes()
        .try_into()
        .unwrap_or([b' '; DATE_BYTES]);
    LAST.set((second, date));
    date
}

/// Appends the line that precedes the data of a chunk of `size` bytes. `size` must not be 0.
/// [`LAST_CHUNK`] encodes the empty chunk that ends a body.
pub fn encode_chunk_size(size: usize, wire: &mut BytesMut) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut remaining_digits = (usize::BITS - size.leading_zeros()).div_ceil(4);
    while remaining_digits > 0 {
        remaining_digits -= 1;
        wire.put_u8(DIGITS[size >> (4 * remaining_digits) & 15]);
    }
    wire.put_slice(b"\r\n");
}

/// The bytes after the data of a chunk.
pub const CHUNK_END: &[u8] = b"\r\n";
/// The bytes that end a chunked body, after its last chunk with data.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
/// The response to a client that waits for `100 Continue` before it sends the body of its request.
pub const CONTINUE_RESPONSE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderValue, Response};

    const KEEP_ALIVE_REQUEST: RequestSummary = RequestSummary {
        method: Method::GET,
        is_http10: false,
        is_keep_alive: true,
    };

    fn response_parts(status: u16, length: Option<&'static str>) -> response::Parts {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        if let Some(length) = length {
            response
                .headers_mut()
                .insert(CONTENT_LENGTH, HeaderValue::from_static(length));
        }
        response.into_parts().0
    }

    fn encoded_head(
        client: &RequestSummary,
        head: &response::Parts,
        exact_length: Option<u64>,
    ) -> String {
        let mut wire = BytesMut::new();
        let framing = ResponseFraming::for_response(client, head, exact_length);
        encode_response_head(client, head, framing, || UNIX_EPOCH, &mut wire);
        String::from_utf8(wire.to_vec()).unwrap()
    }

    #[test]
    fn bodies_are_framed_by_length_chunks_or_close() {
        let http10 = RequestSummary {
            is_http10: true,
            is_keep_alive: false,
            ..KEEP_ALIVE_REQUEST
        };
        let head = RequestSummary {
            method: Method::HEAD,
            ..KEEP_ALIVE_REQUEST
        };
        let usual = &KEEP_ALIVE_REQUEST;
        let ok = |length| response_parts(200, length);
        for (client, response, exact_length, expected) in [
            (
                usual,
                ok(Some("7")),
                None,
                "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n",
            ),
            (
                usual,
                ok(None),
                Some(0),
                "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n",
            ),
            (
                usual,
                ok(None),
                None,
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n",
            ),
            (
                &http10,
                ok(None),
                None,
                "HTTP/1.0 200 OK\r\nconnection: close\r\n",
            ),
            (
                &head,
                ok(Some("7")),
                None,
                "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n",
            ),
            (
                usual,
                response_parts(204, Some("0")),
                None,
                "HTTP/1.1 204 No Content\r\n",
            ),
            (
                usual,
                response_parts(304, Some("7")),
                None,
                "HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n",
            ),
        ] {
            let expected = format!("{expected}date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n");
            assert_eq!(encoded_head(client, &response, exact_length), expected);
        }
        assert!(!ResponseFraming::for_response(&http10, &ok(None), None).is_self_delimiting());
        assert_eq!(
            ResponseFraming::for_response(&KEEP_ALIVE_REQUEST, &response_parts(204, None), Some(0)),
            ResponseFraming::NoBody
        );
    }

    #[test]
    fn connection_headers_of_a_backend_are_not_forwarded() {
        let mut head = response_parts(200, Some("1"));
        head.headers
            .insert(CONNECTION, HeaderValue::from_static("close"));
        head.headers
            .insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        head.headers.insert(DATE, HeaderValue::from_static("then"));
        let expected = "HTTP/1.1 200 OK\r\ndate: then\r\ncontent-length: 1\r\n\r\n";
        assert_eq!(encoded_head(&KEEP_ALIVE_REQUEST, &head, None), expected);
    }

    #[test]
    fn a_chunk_size_is_encoded_in_hexadecimal_digits() {
        for size in [1, 9, 15, 16, 255, 256, 4_096, 65_535, 1 << 20, usize::MAX] {
            let mut wire = BytesMut::new();
            encode_chunk_size(size, &mut wire);
            assert_eq!(wire, format!("{size:x}\r\n").as_bytes());
        }
    }
}
