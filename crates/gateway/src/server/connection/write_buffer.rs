//! The write buffer of an HTTP/1.1 connection. Short chunks are copied into one buffer and written together. A
//! long chunk is not copied: a vectored write sends it together with the bytes before and after it.

use bytes::{Buf, Bytes, BytesMut};
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;

/// The bytes that wait to be written, in the order `copied`, `chunk`, `suffix`.
#[derive(Debug, Default)]
pub(super) struct WriteBuffer {
    /// Response heads, short chunks and chunk framing.
    copied: BytesMut,
    /// A long chunk that is not copied. Empty: no such chunk.
    chunk: Bytes,
    /// The bytes that end `chunk` in the framing of the body.
    suffix: &'static [u8],
}

/// Maximum length of a chunk that is copied, in bytes. A longer chunk is written from its own
/// memory.
const MAX_COPIED_CHUNK_BYTES: usize = 4 << 10;
/// Number of copied bytes at which the buffer accepts no more data until it is written.
const MAX_COPIED_BYTES: usize = 16 << 10;
/// Maximum capacity in bytes that the buffer for copied bytes keeps when all bytes are written. A larger buffer
/// is freed.
const MAX_RETAINED_CAPACITY_BYTES: usize = 1 << 10;

impl WriteBuffer {
    pub(super) fn is_empty(&self) -> bool {
        self.copied.is_empty() && self.chunk.is_empty() && self.suffix.is_empty()
    }

    /// Whether more data may be added before the buffered bytes are written.
    pub(super) fn has_capacity(&self) -> bool {
        self.chunk.is_empty() && self.suffix.is_empty() && self.copied.len() < MAX_COPIED_BYTES
    }

    /// The buffer for copied bytes, to append to. Requires [`has_capacity`](Self::has_capacity).
    pub(super) fn copied_mut(&mut self) -> &mut BytesMut {
        &mut self.copied
    }

    /// Adds a few static bytes. Requires [`has_capacity`](Self::has_capacity).
    pub(super) fn put_static(&mut self, bytes: &'static [u8]) {
        self.copied.extend_from_slice(bytes);
    }

    /// Adds a chunk, and the bytes after the chunk in the framing of the body. Requires
    /// [`has_capacity`](Self::has_capacity).
    pub(super) fn put_chunk(&mut self, data: Bytes, suffix: &'static [u8]) {
        if data.len() <= MAX_COPIED_CHUNK_BYTES {
            self.copied.reserve(data.len() + suffix.len());
            self.copied.extend_from_slice(&data);
            self.copied.extend_from_slice(suffix);
        } else {
            (self.chunk, self.suffix) = (data, suffix);
        }
    }

    /// Writes all buffered bytes to `stream`. After an error, unwritten bytes stay in the buffer.
    pub(super) fn poll_write(
        &mut self,
        mut stream: Pin<&mut impl AsyncWrite>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            let slices = [&*self.copied, &*self.chunk, self.suffix].map(IoSlice::new);
            let written = if self.chunk.is_empty() && self.suffix.is_empty() {
                ready!(stream.as_mut().poll_write(cx, &self.copied))?
            } else {
                ready!(stream.as_mut().poll_write_vectored(cx, &slices))?
            };
            if written == 0 {
                return Poll::Ready(Err(ErrorKind::WriteZero.into()));
            }
            self.advance(written);
        }
        if self.copied.capacity() > MAX_RETAINED_CAPACITY_BYTES {
            self.copied = BytesMut::new();
        } else {
            self.copied.clear();
        }
        Poll::Ready(Ok(()))
    }

    /// Removes the first `written` bytes of the buffer.
    fn advance(&mut self, written: usize) {
        let from_copied = written.min(self.copied.len());
        self.copied.advance(from_copied);
        let from_chunk = (written - from_copied).min(self.chunk.len());
        self.chunk.advance(from_chunk);
        self.suffix = &self.suffix[written - from_copied - from_chunk..];
        if self.chunk.is_empty() {
            // Frees the chunk's memory, to which an empty remainder would still refer.
            self.chunk = Bytes::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::io::{AsyncReadExt, duplex};

    #[tokio::test]
    async fn partial_writes_keep_the_order() {
        let long_chunk: Vec<u8> = (0..20_000_u32).map(|index| index as u8).collect();
        for capacity in [1, 7, 4_096, 1 << 20] {
            let (mut stream, mut client_side) = duplex(capacity);
            let writing = tokio::spawn({
                let long_chunk = long_chunk.clone();
                async move {
                    let mut buffer = WriteBuffer::default();
                    buffer.put_static(b"head ");
                    buffer.put_chunk(Bytes::from_static(b"short"), b" end ");
                    buffer.put_chunk(Bytes::from(long_chunk), b" END");
                    assert!(!buffer.has_capacity());
                    poll_fn(|cx| buffer.poll_write(Pin::new(&mut stream), cx))
                        .await
                        .unwrap();
                    assert!(buffer.is_empty() && buffer.has_capacity());
                }
            });
            let mut read = Vec::new();
            client_side.read_to_end(&mut read).await.unwrap();
            writing.await.unwrap();
            assert_eq!(
                read,
                [b"head short end ", &long_chunk[..], b" END"].concat(),
                "{capacity}"
            );
        }
    }
}
