//! An answer as it stands on the wire of its client.

use super::{number, put_field};
use bytes::{BufMut, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use http::{Method, StatusCode, response};
use std::time::SystemTime;

/// How the client sees the end of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framed {
    /// There is none.
    Nothing,
    /// It has so many bytes.
    Length(u64),
    /// It comes in chunks.
    Chunks,
    /// The connection is closed behind it.
    UntilClose,
}

/// What the client of an answer asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Its method.
    pub method: Method,
    /// It speaks HTTP/1.0.
    pub is_old: bool,
    /// It may send another request on the connection.
    pub is_kept: bool,
}

impl Framed {
    /// How the body of this answer is framed, if it has so many bytes. `None`: nobody knows how many.
    pub fn of(client: &Client, head: &response::Parts, exact: Option<u64>) -> Self {
        let is_empty = client.method == Method::HEAD
            || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let told = head.headers.get(CONTENT_LENGTH);
        let told = told.and_then(|length| number(length.as_bytes(), 10));
        match told.or(exact) {
            _ if is_empty => Self::Nothing,
            Some(length) => Self::Length(length),
            None if client.is_old => Self::UntilClose,
            None => Self::Chunks,
        }
    }

    /// Another answer may follow.
    pub fn has_end(self) -> bool {
        self != Self::UntilClose
    }
}

/// Puts the head of an answer behind what is in `wire`.
pub fn put_head(
    client: &Client,
    head: &response::Parts,
    framed: Framed,
    now: impl FnOnce() -> SystemTime,
    wire: &mut BytesMut,
) {
    wire.put_slice(if client.is_old { b"HTTP/1.0 " } else { b"HTTP/1.1 " });
    wire.put_slice(head.status.as_str().as_bytes());
    wire.put_u8(b' ');
    wire.put_slice(head.status.canonical_reason().unwrap_or_default().as_bytes());
    wire.put_slice(b"\r\n");
    for (name, value) in &head.headers {
        let is_ours = *name == CONNECTION || *name == TRANSFER_ENCODING;
        // Whoever asked for the head alone is told how long the body would be.
        if !is_ours && (*name != CONTENT_LENGTH || framed == Framed::Nothing) {
            put_field(name.as_str(), value.as_bytes(), wire);
        }
    }
    match framed {
        Framed::Length(length) => {
            let mut digits = itoa::Buffer::new();
            put_field("content-length", digits.format(length).as_bytes(), wire);
        }
        Framed::Chunks => put_field("transfer-encoding", b"chunked", wire),
        Framed::Nothing | Framed::UntilClose => {}
    }
    if !client.is_kept {
        put_field("connection", b"close", wire);
    } else if client.is_old {
        put_field("connection", b"keep-alive", wire);
    }
    if !head.headers.contains_key(DATE) {
        put_field("date", httpdate::fmt_http_date(now()).as_bytes(), wire);
    }
    wire.put_slice(b"\r\n");
}

/// Puts the line before a chunk of so many bytes.
pub fn put_chunk_size(size: usize, wire: &mut BytesMut) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut digits = (usize::BITS - size.leading_zeros()).div_ceil(4);
    while digits > 0 {
        digits -= 1;
        wire.put_u8(DIGITS[size >> (4 * digits) & 15]);
    }
    wire.put_slice(b"\r\n");
}

/// What stands behind a chunk.
pub const CHUNK_END: &[u8] = b"\r\n";
/// What stands behind the last chunk.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
/// What a client that waits for it is told before it sends its body.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderValue, Response};
    use std::time::UNIX_EPOCH;

    const KEPT: Client = Client { method: Method::GET, is_old: false, is_kept: true };

    fn answer(status: u16, length: Option<&'static str>) -> response::Parts {
        let mut answer = Response::new(());
        *answer.status_mut() = StatusCode::from_u16(status).unwrap();
        if let Some(length) = length {
            answer.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static(length));
        }
        answer.into_parts().0
    }

    fn written(client: &Client, head: &response::Parts, exact: Option<u64>) -> String {
        let mut wire = BytesMut::new();
        let framed = Framed::of(client, head, exact);
        put_head(client, head, framed, || UNIX_EPOCH, &mut wire);
        String::from_utf8(wire.to_vec()).unwrap()
    }

    #[test]
    fn a_body_is_framed_by_its_length_or_in_chunks_or_by_the_end() {
        let date = "date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n";
        let expected = |lines: &str| format!("HTTP/1.1 200 OK\r\n{lines}{date}");
        let ok = |length| answer(200, length);
        assert_eq!(written(&KEPT, &ok(Some("7")), None), expected("content-length: 7\r\n"));
        assert_eq!(written(&KEPT, &ok(None), Some(0)), expected("content-length: 0\r\n"));
        assert_eq!(written(&KEPT, &ok(None), None), expected("transfer-encoding: chunked\r\n"));
        let old = Client { is_old: true, is_kept: false, ..KEPT };
        let closed = format!("HTTP/1.0 200 OK\r\nconnection: close\r\n{date}");
        assert_eq!(written(&old, &ok(None), None), closed);
        assert!(!Framed::of(&old, &ok(None), None).has_end());
        let head = Client { method: Method::HEAD, ..KEPT };
        assert_eq!(written(&head, &ok(Some("7")), None), expected("content-length: 7\r\n"));
        assert_eq!(Framed::of(&KEPT, &answer(204, None), Some(0)), Framed::Nothing);
    }

    #[test]
    fn what_a_replica_said_of_its_own_connection_is_not_repeated() {
        let mut head = answer(200, Some("1"));
        head.headers.insert(CONNECTION, HeaderValue::from_static("close"));
        head.headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        head.headers.insert(DATE, HeaderValue::from_static("then"));
        let expected = "HTTP/1.1 200 OK\r\ndate: then\r\ncontent-length: 1\r\n\r\n";
        assert_eq!(written(&KEPT, &head, None), expected);
    }

    #[test]
    fn a_chunk_says_its_size_in_hexadecimal_digits() {
        for size in [1, 9, 15, 16, 255, 256, 4_096, 65_535, 1 << 20, usize::MAX] {
            let mut wire = BytesMut::new();
            put_chunk_size(size, &mut wire);
            assert_eq!(wire, format!("{size:x}\r\n").as_bytes());
        }
    }
}
