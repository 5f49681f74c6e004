//! What is to be written to a client. What is short is gathered; what is long is written from where
//! it is, with what stands before and behind it, in one call.

use bytes::{Buf, Bytes, BytesMut};
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;

/// What is to be written, in this order.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    short: BytesMut,
    long: Bytes,
    behind: &'static [u8],
}

/// What is longer is not copied.
const SHORT: usize = 4 << 10;
/// No more is gathered.
const FULL: usize = 16 << 10;
/// Room that is kept when all is written.
const KEPT: usize = 1 << 10;

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.short.is_empty() && self.long.is_empty() && self.behind.is_empty()
    }

    /// Whether more can be put in before it is written.
    pub(super) fn has_room(&self) -> bool {
        self.long.is_empty() && self.behind.is_empty() && self.short.len() < FULL
    }

    /// The room for what is short. There must be [room](Self::has_room).
    pub(super) fn short(&mut self) -> &mut BytesMut {
        &mut self.short
    }

    /// Puts a few bytes in. There must be room.
    pub(super) fn put(&mut self, bytes: &'static [u8]) {
        self.short.extend_from_slice(bytes);
    }

    /// Puts data in, and what stands behind it. There must be room.
    pub(super) fn put_data(&mut self, data: Bytes, behind: &'static [u8]) {
        if data.len() <= SHORT {
            self.short.reserve(data.len() + behind.len());
            self.short.extend_from_slice(&data);
            self.short.extend_from_slice(behind);
        } else {
            (self.long, self.behind) = (data, behind);
        }
    }

    /// Writes all of it.
    pub(super) fn poll_write(
        &mut self,
        mut stream: Pin<&mut impl AsyncWrite>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            let slices = [&*self.short, &*self.long, self.behind].map(IoSlice::new);
            let written = if self.long.is_empty() && self.behind.is_empty() {
                ready!(stream.as_mut().poll_write(cx, &self.short))?
            } else {
                ready!(stream.as_mut().poll_write_vectored(cx, &slices))?
            };
            if written == 0 {
                return Poll::Ready(Err(ErrorKind::WriteZero.into()));
            }
            self.advance(written);
        }
        if self.short.capacity() > KEPT {
            self.short = BytesMut::new();
        } else {
            self.short.clear();
        }
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, written: usize) {
        let short = written.min(self.short.len());
        self.short.advance(short);
        let long = (written - short).min(self.long.len());
        self.long.advance(long);
        self.behind = &self.behind[written - short - long..];
        if self.long.is_empty() {
            // What it was part of may be long.
            self.long = Bytes::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::io::{AsyncReadExt, duplex};

    #[tokio::test]
    async fn all_is_written_in_its_order_however_little_is_taken_at_once() {
        let long: Vec<u8> = (0..20_000_u32).map(|at| at as u8).collect();
        for room in [1, 7, 4_096, 1 << 20] {
            let (mut near, mut far) = duplex(room);
            let writing = tokio::spawn({
                let long = long.clone();
                async move {
                    let mut outbox = Outbox::default();
                    outbox.put(b"head ");
                    outbox.put_data(Bytes::from_static(b"short"), b" end ");
                    outbox.put_data(Bytes::from(long), b" END");
                    assert!(!outbox.has_room());
                    poll_fn(|cx| outbox.poll_write(Pin::new(&mut near), cx)).await.unwrap();
                    assert!(outbox.is_empty() && outbox.has_room());
                }
            });
            let mut read = Vec::new();
            far.read_to_end(&mut read).await.unwrap();
            writing.await.unwrap();
            assert_eq!(read, [b"head short end ", &long[..], b" END"].concat(), "{room}");
        }
    }
}
