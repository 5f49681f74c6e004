//! Reads HTTP/1.1 requests, for the scripted servers of tests and benches.

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Reads the next request of a connection. Returns its head with the blank line, and its body. `buffer` keeps
/// the bytes that follow the request. `None`: the connection has ended.
pub(crate) async fn read_request(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> Option<(String, Bytes)> {
    let end = loop {
        if let Some(end) = memchr::memmem::find(buffer, b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&buffer.split_to(end)).into_owned();
    let names = head.to_ascii_lowercase();
    let length = names
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    let length = length.map_or(0, |length| length.trim().parse().unwrap());
    while buffer.len() < length {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    Some((head, buffer.split_to(length).freeze()))
}
