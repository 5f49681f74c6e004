//! The two directions of a client's HTTP/1.1 connection. What comes is a head, then a body, then
//! bytes of the next request, which wait; what goes is gathered and written at once. A connection
//! that waits keeps neither buffer.

use super::outbox::Outbox;
use super::pace::Paced;
use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use tokenweir_core::http1::{self, HeadScan, Most, RequestHead, Unsound};
use tokenweir_net::tls::Stream;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// A connection of a client.
pub(super) struct Wire {
    stream: Paced<Stream>,
    /// What has come and has not been taken.
    ahead: Bytes,
    /// How far that has been searched for a head.
    scan: HeadScan,
    /// What is still to come of the body of the request.
    body: http1::Body,
    /// The client waits to be told that it may send it.
    is_expectant: bool,
    pub(super) out: Outbox,
}

/// A connection that the body of a request reads, too.
#[derive(Clone)]
pub(super) struct Shared(Arc<Mutex<Wire>>);

/// The body of a request of HTTP/1, which reads the connection.
pub(super) struct Upload(Shared);

/// What waiting for a head came to.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub(super) enum Came {
    /// One.
    Head(RequestHead),
    /// What is no head, or none that is taken.
    Unsound(Unsound),
    /// The client has left.
    Nothing,
}

/// What is read at once, in bytes.
const PIECE: usize = 16 << 10;
/// The same, of a long body.
const LONG_PIECE: usize = 64 << 10;
/// Most bytes that are kept of later requests, to see behind them whether the client has left.
const MOST_AHEAD: usize = 16 << 10;

// === impl Wire ===

impl Wire {
    fn new(stream: Paced<Stream>) -> Self {
        Self {
            stream,
            ahead: Bytes::new(),
            scan: HeadScan::default(),
            body: http1::Body::empty(),
            is_expectant: false,
            out: Outbox::default(),
        }
    }

    /// What has come and has not been taken.
    pub(super) fn ahead(&self) -> &[u8] {
        &self.ahead
    }

    /// Reads once. Gives how many bytes came; 0 at the end.
    pub(super) fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // A connection that waits has no room of its own for what may come.
        let mut space = [const { MaybeUninit::uninit() }; PIECE];
        let mut buffer = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
        let came = buffer.filled();
        if self.ahead.is_empty() {
            self.ahead = Bytes::copy_from_slice(came);
        } else {
            let mut ahead = BytesMut::from(std::mem::take(&mut self.ahead));
            ahead.extend_from_slice(came);
            self.ahead = ahead.freeze();
        }
        Poll::Ready(Ok(came.len()))
    }

    /// Reads until a head is there.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>, most: Most) -> Poll<io::Result<Came>> {
        loop {
            match self.scan.read(&mut self.ahead, most) {
                Ok(None) => {}
                Ok(Some(head)) => return Poll::Ready(Ok(Came::Head(self.begin(head)))),
                Err(unsound) => return Poll::Ready(Ok(Came::Unsound(unsound))),
            }
            if ready!(self.poll_more(cx))? == 0 {
                return Poll::Ready(Ok(Came::Nothing));
            }
        }
    }

    fn begin(&mut self, head: RequestHead) -> RequestHead {
        self.body = head.body.clone();
        self.is_expectant = head.is_expectant;
        head
    }

    /// Whether a head has begun to come. Empty lines before it are dropped; half of one may be there.
    pub(super) fn is_in_head(&self) -> bool {
        !matches!(&self.ahead[..], [] | [b'\r'])
    }

    /// Whether all of the request has come, read or not. What has come of it and was not read is
    /// forgotten.
    pub(super) fn has_whole_request(&mut self) -> bool {
        while !self.body.is_over() && !self.ahead.is_empty() {
            if self.body.take(&mut self.ahead).is_err() {
                return false;
            }
        }
        self.body.is_over()
    }

    /// Reads until something of the body is there. `None`: it is over.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        while !self.body.is_over() {
            if !self.ahead.is_empty() {
                let taken = self.body.take(&mut self.ahead);
                let data = taken.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
                if !data.is_empty() {
                    return Poll::Ready(Ok(Some(data)));
                }
                continue;
            }
            if std::mem::take(&mut self.is_expectant) {
                self.out.put(http1::CONTINUE);
            }
            ready!(self.poll_flush(cx))?;
            let count = match self.body.left() {
                Some(left) if left > PIECE as u64 => ready!(self.poll_long(cx, left))?,
                _ => ready!(self.poll_more(cx))?,
            };
            if count == 0 {
                return Poll::Ready(Err(ErrorKind::UnexpectedEof.into()));
            }
        }
        Poll::Ready(Ok(None))
    }

    /// Reads once what is known to be long, into the room that it is then kept in.
    fn poll_long(&mut self, cx: &mut Context<'_>, left: u64) -> Poll<io::Result<usize>> {
        let mut room = BytesMut::with_capacity(LONG_PIECE.min(left as usize));
        let count = ready!(pin!(self.stream.read_buf(&mut room)).poll(cx))?;
        self.ahead = room.freeze();
        Poll::Ready(Ok(count))
    }

    /// Reads behind the request while it is answered. Ready when the client has left.
    pub(super) fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.body.is_over() {
            // It is read when somebody wants it.
            return Poll::Pending;
        }
        while self.ahead.len() < MOST_AHEAD {
            match ready!(self.poll_more(cx)) {
                Ok(0) | Err(_) => return Poll::Ready(()),
                Ok(_) => {}
            }
        }
        Poll::Pending
    }

    /// Writes what is there to be written.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.out.is_empty() {
            ready!(self.out.poll_write(Pin::new(&mut self.stream), cx))?;
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Says that nothing more goes.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    /// Reads and forgets until the client has left, too. If what it still sends were not read, the
    /// system would throw away what it has not taken yet.
    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            self.ahead = Bytes::new();
            match ready!(self.poll_more(cx)) {
                Ok(0) | Err(_) => return Poll::Ready(()),
                Ok(_) => {}
            }
        }
    }
}

// === impl Shared ===

impl Shared {
    pub(super) fn new(stream: Paced<Stream>) -> Self {
        Self(Arc::new(Mutex::new(Wire::new(stream))))
    }

    /// The connection, and what has come on it. `None`: the body of a request reads it.
    pub(super) fn into_parts(self) -> Option<(Paced<Stream>, Bytes)> {
        let wire = Arc::into_inner(self.0)?.into_inner().unwrap_or_else(PoisonError::into_inner);
        Some((wire.stream, wire.ahead))
    }

    pub(super) fn wire(&self) -> MutexGuard<'_, Wire> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The body of the request whose head was read last.
    pub(super) fn upload(&self) -> Upload {
        Upload(self.clone())
    }
}

// === impl Upload ===

impl Body for Upload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let data = ready!(self.0.wire().poll_body(cx));
        Poll::Ready(data.map(|data| data.map(Frame::data)).transpose())
    }

    fn is_end_stream(&self) -> bool {
        self.0.wire().body.is_over()
    }
}
