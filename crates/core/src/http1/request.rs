//! The head of a request as it stands on the wire.

use super::put_field;
use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{Method, request};

/// The head of a request with a body of so many bytes. The target is the path of its URI.
pub fn encode(head: &request::Parts, length: usize) -> Bytes {
    let target = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let lines = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    let room = head.method.as_str().len() + target.len() + lines.sum::<usize>() + 64;
    let mut bytes = BytesMut::with_capacity(room);
    bytes.put_slice(head.method.as_str().as_bytes());
    bytes.put_u8(b' ');
    bytes.put_slice(target.as_bytes());
    bytes.put_slice(b" HTTP/1.1\r\n");
    for (name, value) in &head.headers {
        if *name == CONTENT_LENGTH || *name == TRANSFER_ENCODING {
            continue;
        }
        put_field(name.as_str(), value.as_bytes(), &mut bytes);
    }
    // Servers wait for no body where they expect none.
    if length > 0 || !matches!(head.method, Method::GET | Method::HEAD) {
        let mut digits = itoa::Buffer::new();
        put_field("content-length", digits.format(length).as_bytes(), &mut bytes);
    }
    bytes.put_slice(b"\r\n");
    bytes.freeze()
}
