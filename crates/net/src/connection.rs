//! Connections to a replica, without a task of their own: whoever waits for an answer reads it, so a
//! piece of it wakes nobody else. One that nobody uses is a place in a list.

use crate::client::SendError;
use crate::descriptors::Descriptor;
use crate::idle::Idle;
use crate::tls::Stream;
use bytes::buf::Chain;
use bytes::{Buf, Bytes, BytesMut};
use http::{Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};
use tokenweir_core::clock;
use tokenweir_core::http1::{self, Head, Unsound};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// One connection.
pub struct Connection {
    /// The TCP or TLS stream.
    pub stream: Stream,
    /// It has carried an answer before.
    is_used: bool,
    /// When the last one ended.
    idle_since: Instant,
    /// Its file descriptor. Declared after the stream, so that it is free only when that is closed.
    _descriptor: Descriptor,
}

/// The body of an answer, which reads the connection that it comes on and gives it back at its end.
/// Dropping it before closes the connection.
pub struct ReplicaBody {
    body: http1::Body,
    /// What came with the head.
    first: Bytes,
    /// What of the request has not gone: the server began to answer before it had all.
    unsent: Option<Box<Unsent>>,
    /// `None` when the body is over.
    connection: Option<Connection>,
    /// The connection may carry another request.
    is_kept: bool,
    idle: Idle,
}

/// Head and body of a request, or what is left of them.
type Unsent = Chain<Bytes, Bytes>;

/// Why a body breaks off.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It ended before the body did.
    #[error("the connection was closed before the end of the answer")]
    Closed,
    /// It carries something else.
    #[error(transparent)]
    Unsound(#[from] Unsound),
}

/// Longest head of an answer, in bytes. Some have over 100 KB: embeddings in bytes carry their usage
/// there.
const LONGEST_HEAD: usize = 256 << 10;
/// What is read at once, in bytes, and so what is read ahead of a client that reads slowly.
const PIECE: usize = 16 << 10;
/// A close that is seen within this time after the request was written has crossed the request: a
/// backend that reads, executes and then closes takes longer than a round trip and a look at the
/// socket. A later close is a failure of the request.
const CLOSE_RACE: Duration = Duration::from_millis(5);

// === impl Connection ===

impl Connection {
    /// Speaks HTTP/1.1 on a stream, which has this file descriptor.
    pub fn new(stream: Stream, descriptor: Descriptor) -> Self {
        Self { stream, is_used: false, idle_since: clock::now(), _descriptor: descriptor }
    }

    /// Sends a request and waits for the head of its answer, which may come before the request has
    /// gone.
    pub async fn send(
        mut self,
        request: Request<Bytes>,
        idle: &Idle,
    ) -> Result<Response<ReplicaBody>, SendError> {
        let (parts, body) = request.into_parts();
        let mut unsent = http1::encode(&parts, body.len()).chain(body);
        let (mut is_writing, mut written_at, mut read) = (true, None, BytesMut::new());
        let head = poll_fn(|cx| {
            if is_writing {
                match self.poll_write(cx, &mut unsent) {
                    Poll::Pending => {}
                    Poll::Ready(Ok(())) => {
                        is_writing = false;
                        written_at = self.is_used.then(clock::now);
                    }
                    // A server that answers before it has read the request may close its side.
                    Poll::Ready(Err(_)) => is_writing = false,
                }
            }
            self.poll_head(cx, &parts.method, &mut read)
        });
        let Head { response, body, is_kept, length } = match head.await {
            Ok(head) => head,
            Err(Broken::Unsound(error)) => return Err(SendError::Garbage(error.to_string())),
            Err(error) => {
                let waited = written_at.map(|at| clock::now().saturating_duration_since(at));
                let is_race = waited.is_none_or(|waited| waited < CLOSE_RACE);
                if self.is_used && read.is_empty() && is_race {
                    return Err(SendError::Stale { was_written: written_at.is_some() });
                }
                return Err(SendError::Closed(error.to_string()));
            }
        };
        read.advance(length);
        let (first, idle, connection) = (read.freeze(), idle.clone(), Some(self));
        let unsent = unsent.has_remaining().then(|| Box::new(unsent));
        let mut body = ReplicaBody { body, first, unsent, connection, is_kept, idle };
        if body.body.is_over() {
            body.end();
        }
        Ok(response.map(|()| body))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, unsent: &mut Unsent) -> Poll<io::Result<()>> {
        while unsent.has_remaining() {
            let mut slices = [IoSlice::new(&[]); 2];
            let count = unsent.chunks_vectored(&mut slices);
            let stream = Pin::new(&mut self.stream);
            let written = ready!(stream.poll_write_vectored(cx, &slices[..count]))?;
            if written == 0 {
                return Poll::Ready(Err(ErrorKind::WriteZero.into()));
            }
            unsent.advance(written);
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        method: &Method,
        read: &mut BytesMut,
    ) -> Poll<Result<Head, Broken>> {
        loop {
            let count = ready!(self.poll_read(cx, |bytes| read.extend_from_slice(bytes)))?;
            if count == 0 {
                return Poll::Ready(Err(Broken::Closed));
            }
            // One that comes byte by byte is not read anew for each.
            let may_be_whole = count == read.len() || http1::has_blank_line(read, count);
            if may_be_whole && let Some(head) = http1::head(method, read)? {
                return Poll::Ready(Ok(head));
            }
            if read.len() > LONGEST_HEAD {
                return Poll::Ready(Err(Unsound::TooLong.into()));
            }
        }
    }

    /// Reads once, into a room of its own: a connection that waits has none. Gives how many bytes came; 0
    /// at the end.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        take: impl FnOnce(&[u8]),
    ) -> Poll<io::Result<usize>> {
        let mut space = [const { MaybeUninit::uninit() }; PIECE];
        let mut buffer = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
        take(buffer.filled());
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Whether it has been idle for as long as `most`.
    pub fn is_older(&self, most: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.idle_since) >= most
    }

    /// Whether it can carry another request, as far as this side knows: nothing has come, not even
    /// its end.
    pub fn is_quiet(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.poll_read(&mut cx, |_| {}).is_pending()
    }
}

// === impl ReplicaBody ===

impl ReplicaBody {
    /// The answer is over: its connection may carry another.
    fn end(&mut self) {
        let is_kept = self.is_kept && self.first.is_empty() && self.unsent.is_none();
        let connection = self.connection.take().filter(|_| is_kept);
        if let Some(mut connection) = connection {
            (connection.is_used, connection.idle_since) = (true, clock::now());
            self.idle.put(connection);
        }
    }

    /// Reads until something of the body has come. `None`: it is over.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Broken>> {
        let mut data = BytesMut::new();
        while !self.body.is_over() {
            let first = std::mem::take(&mut self.first);
            let Some(connection) = &mut self.connection else { break };
            if let Some(unsent) = &mut self.unsent
                && let Poll::Ready(Ok(())) = connection.poll_write(cx, unsent)
            {
                self.unsent = None;
            }
            let mut took = (0, Ok(0));
            let mut take = |bytes: &[u8]| {
                data.reserve(bytes.len());
                took = (bytes.len(), self.body.read(bytes, &mut data));
            };
            if first.is_empty() {
                let count = ready!(connection.poll_read(cx, take))?;
                if count == 0 {
                    return Poll::Ready(self.at_close());
                }
            } else {
                take(&first);
            }
            let (came, read) = took;
            // What stands behind an answer belongs to none.
            self.is_kept &= read? == came;
            if !data.is_empty() {
                break;
            }
        }
        if self.body.is_over() {
            self.end();
        }
        Poll::Ready(Ok(Some(data.freeze()).filter(|data| !data.is_empty())))
    }

    fn at_close(&mut self) -> Result<Option<Bytes>, Broken> {
        self.connection = None;
        match self.body {
            http1::Body::UntilClose => {
                self.body = http1::Body::empty();
                Ok(None)
            }
            _ => Err(Broken::Closed),
        }
    }
}

impl Body for ReplicaBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match ready!(self.poll_data(cx)) {
            Ok(Some(data)) => Poll::Ready(Some(Ok(Frame::data(data)))),
            Ok(None) => Poll::Ready(self.body.take_trailers().map(|map| Ok(Frame::trailers(map)))),
            Err(error) => {
                self.connection = None;
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_over() && !self.body.has_trailers()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.left().map(SizeHint::with_exact).unwrap_or_default()
    }
}

impl std::fmt::Debug for ReplicaBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplicaBody").field("body", &self.body).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
