//! Encoding of request heads for backends.

use super::fields::encode_header;
use bytes::{BufMut, Bytes};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{Method, request};

/// How a request states the end of its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestFraming {
    /// The body has this number of bytes.
    Length(u64),
    /// The body is sent in chunks.
    Chunked,
    /// The request asks for another protocol. After the response head, the connection carries this protocol
    /// until the client or the backend closes the connection.
    Upgrade,
}

/// Encodes the head of a request. The request target is the path and the query of the URI. The
/// headers for `framing` replace any `content-length` and `transfer-encoding` headers.
pub fn encode_request_head(head: &request::Parts, framing: RequestFraming) -> Bytes {
    let target = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let line_lengths = head
        .headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4);
    let capacity = head.method.as_str().len() + target.len() + line_lengths.sum::<usize>() + 64;
    // A `Vec` is faster: the functions of `BytesMut` that append bytes are not inlined.
    let mut bytes = Vec::with_capacity(capacity);
    bytes.put_slice(head.method.as_str().as_bytes());
    bytes.put_u8(b' ');
    bytes.put_slice(target.as_bytes());
    bytes.put_slice(b" HTTP/1.1\r\n");
    for (name, value) in &head.headers {
        if *name == CONTENT_LENGTH || *name == TRANSFER_ENCODING {
            continue;
        }
        encode_header(name.as_str(), value.as_bytes(), &mut bytes);
    }
    match framing {
        // A GET or HEAD request without a body needs no `content-length`.
        RequestFraming::Length(0) if matches!(head.method, Method::GET | Method::HEAD) => {}
        RequestFraming::Length(length) => {
            let mut digits = itoa::Buffer::new();
            encode_header(
                "content-length",
                digits.format(length).as_bytes(),
                &mut bytes,
            );
        }
        RequestFraming::Chunked => encode_header("transfer-encoding", b"chunked", &mut bytes),
        RequestFraming::Upgrade => {}
    }
    bytes.put_slice(b"\r\n");
    bytes.into()
}
