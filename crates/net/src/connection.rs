//! HTTP/1.1 connections to a backend that have no task of their own.
//!
//! The task that waits for the response reads from the socket, so a chunk wakes only that task. An
//! idle connection is an entry of an [`IdlePool`].

use crate::client::SendError;
use crate::file_descriptors::FileDescriptorPermit;
use crate::idle_pool::IdlePool;
use crate::tls::MaybeTlsStream;
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
use tokenweir_core::http1::{self, Http1ParseError, ResponseHead};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection to a backend.
pub struct Connection {
    /// The TCP or TLS stream.
    pub stream: MaybeTlsStream,
    /// Whether the connection has carried a complete response.
    has_served_request: bool,
    /// When the last response ended, or when the connection was opened.
    idle_since: Instant,
    /// The file descriptor permit. Declared after the stream, so that it is returned only after the
    /// stream is closed.
    _descriptor: FileDescriptorPermit,
}

/// The body of a backend's response. It reads from its connection and returns the connection to the
/// pool at the end. Dropping it before the end closes the connection.
pub struct BackendBody {
    decoder: http1::BodyDecoder,
    /// Body bytes that were read together with the head.
    prefetched: Bytes,
    /// The rest of the request, if the backend began its response before it had read the request.
    unsent_request: Option<Box<UnsentRequest>>,
    /// `None` after the end of the body.
    connection: Option<Connection>,
    /// Whether the connection may carry another request.
    is_reusable: bool,
    idle_pool: IdlePool,
}

/// The unsent rest of a request: head and body.
type UnsentRequest = Chain<Bytes, Bytes>;

/// Why a response failed while it was read.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The backend closed the connection before the end of the response.
    #[error("the backend closed the connection before the end of the response")]
    Closed,
    /// The response is not valid HTTP/1.1.
    #[error(transparent)]
    Malformed(#[from] Http1ParseError),
}

/// Maximum size of a response head, in bytes. Heads over 100 KB occur: embeddings in the binary
/// format carry their usage in a header.
const MAX_RESPONSE_HEAD_BYTES: usize = 256 << 10;
/// Size of one read, in bytes. It bounds the bytes that are read ahead of a slow client.
const READ_BUFFER_BYTES: usize = 16 << 10;
/// A close that is seen within this time after the request was written is treated as a race: it
/// crossed the request on the wire. A backend that reads, executes and then closes takes longer. A
/// later close is a failure of the request.
const CLOSE_RACE_WINDOW: Duration = Duration::from_millis(5);

// === impl Connection ===

impl Connection {
    /// Creates an HTTP/1.1 connection on a stream. `descriptor` is the permit of its file
    /// descriptor.
    pub fn new(stream: MaybeTlsStream, descriptor: FileDescriptorPermit) -> Self {
        Self {
            stream,
            has_served_request: false,
            idle_since: clock::now(),
            _descriptor: descriptor,
        }
    }

    /// Sends a request and waits for the response head. The head may arrive before the whole
    /// request is sent.
    pub async fn send(
        mut self,
        request: Request<Bytes>,
        idle: &IdlePool,
    ) -> Result<Response<BackendBody>, SendError> {
        let (parts, body) = request.into_parts();
        let mut unsent = http1::encode_request_head(&parts, body.len()).chain(body);
        let (mut is_writing, mut written_at, mut read) = (true, None, BytesMut::new());
        let head = poll_fn(|cx| {
            if is_writing {
                match self.poll_write_request(cx, &mut unsent) {
                    Poll::Pending => {}
                    Poll::Ready(Ok(())) => {
                        is_writing = false;
                        written_at = self.has_served_request.then(clock::now);
                    }
                    // A backend that responds before it has read the request may close its side.
                    Poll::Ready(Err(_)) => is_writing = false,
                }
            }
            self.poll_response_head(cx, &parts.method, &mut read)
        });
        let ResponseHead { response, body, is_keep_alive, length } = match head.await {
            Ok(head) => head,
            Err(ConnectionError::Malformed(error)) => {
                return Err(SendError::InvalidResponse(error.to_string()));
            }
            Err(error) => {
                let elapsed = written_at.map(|at| clock::now().saturating_duration_since(at));
                let is_race = elapsed.is_none_or(|elapsed| elapsed < CLOSE_RACE_WINDOW);
                if self.has_served_request && read.is_empty() && is_race {
                    return Err(SendError::StaleConnection {
                        was_request_written: written_at.is_some(),
                    });
                }
                return Err(SendError::Closed(error.to_string()));
            }
        };
        read.advance(length);
        let unsent = unsent.has_remaining().then(|| Box::new(unsent));
        let mut body = BackendBody {
            decoder: body,
            prefetched: read.freeze(),
            unsent_request: unsent,
            connection: Some(self),
            is_reusable: is_keep_alive,
            idle_pool: idle.clone(),
        };
        if body.decoder.is_complete() {
            body.finish();
        }
        Ok(response.map(|()| body))
    }

    fn poll_write_request(
        &mut self,
        cx: &mut Context<'_>,
        unsent: &mut UnsentRequest,
    ) -> Poll<io::Result<()>> {
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

    fn poll_response_head(
        &mut self,
        cx: &mut Context<'_>,
        method: &Method,
        read: &mut BytesMut,
    ) -> Poll<Result<ResponseHead, ConnectionError>> {
        loop {
            let count = ready!(self.poll_read(cx, |bytes| read.extend_from_slice(bytes)))?;
            if count == 0 {
                return Poll::Ready(Err(ConnectionError::Closed));
            }
            // A head that arrives byte by byte is not parsed again for each byte.
            let may_be_complete = count == read.len() || http1::has_blank_line(read, count);
            if may_be_complete && let Some(head) = http1::parse_response_head(method, read)? {
                return Poll::Ready(Ok(head));
            }
            if read.len() > MAX_RESPONSE_HEAD_BYTES {
                return Poll::Ready(Err(Http1ParseError::HeadTooLong.into()));
            }
        }
    }

    /// Reads once into a buffer on the stack, so that a waiting connection holds no memory, and
    /// passes the bytes to `take`. Returns the number of bytes; 0 at the end.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        take: impl FnOnce(&[u8]),
    ) -> Poll<io::Result<usize>> {
        let mut storage = [const { MaybeUninit::uninit() }; READ_BUFFER_BYTES];
        let mut buffer = ReadBuf::uninit(&mut storage);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
        take(buffer.filled());
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Whether the connection has been idle for at least `duration`.
    pub fn has_been_idle_for(&self, duration: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.idle_since) >= duration
    }

    /// Whether the connection can carry another request: it has no unread bytes and the backend has
    /// not closed it.
    pub fn is_reusable(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.poll_read(&mut cx, |_| {}).is_pending()
    }
}

// === impl BackendBody ===

impl BackendBody {
    /// Ends the body and returns its connection to the pool if it is reusable.
    fn finish(&mut self) {
        let is_reusable =
            self.is_reusable && self.prefetched.is_empty() && self.unsent_request.is_none();
        let connection = self.connection.take().filter(|_| is_reusable);
        if let Some(mut connection) = connection {
            (connection.has_served_request, connection.idle_since) = (true, clock::now());
            self.idle_pool.put(connection);
        }
    }

    /// Reads until a part of the body is available. `None`: the body has ended.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, ConnectionError>> {
        let mut data = BytesMut::new();
        while !self.decoder.is_complete() {
            let prefetched = std::mem::take(&mut self.prefetched);
            let Some(connection) = &mut self.connection else { break };
            if let Some(unsent) = &mut self.unsent_request
                && let Poll::Ready(Ok(())) = connection.poll_write_request(cx, unsent)
            {
                self.unsent_request = None;
            }
            let mut decoded = (0, Ok(0));
            let mut decode = |bytes: &[u8]| {
                data.reserve(bytes.len());
                decoded = (bytes.len(), self.decoder.decode(bytes, &mut data));
            };
            if prefetched.is_empty() {
                let count = ready!(connection.poll_read(cx, decode))?;
                if count == 0 {
                    return Poll::Ready(self.on_connection_closed());
                }
            } else {
                decode(&prefetched);
            }
            let (received, consumed) = decoded;
            // Bytes after the end of the response belong to no request.
            self.is_reusable &= consumed? == received;
            if !data.is_empty() {
                break;
            }
        }
        if self.decoder.is_complete() {
            self.finish();
        }
        Poll::Ready(Ok(Some(data.freeze()).filter(|data| !data.is_empty())))
    }

    fn on_connection_closed(&mut self) -> Result<Option<Bytes>, ConnectionError> {
        self.connection = None;
        match self.decoder {
            http1::BodyDecoder::UntilClose => {
                self.decoder = http1::BodyDecoder::empty();
                Ok(None)
            }
            _ => Err(ConnectionError::Closed),
        }
    }
}

impl Body for BackendBody {
    type Data = Bytes;
    type Error = ConnectionError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectionError>>> {
        match ready!(self.poll_data(cx)) {
            Ok(Some(data)) => Poll::Ready(Some(Ok(Frame::data(data)))),
            Ok(None) => {
                Poll::Ready(self.decoder.take_trailers().map(|map| Ok(Frame::trailers(map))))
            }
            Err(error) => {
                self.connection = None;
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.decoder.is_complete() && !self.decoder.has_trailers()
    }

    fn size_hint(&self) -> SizeHint {
        self.decoder.remaining_bytes().map(SizeHint::with_exact).unwrap_or_default()
    }
}

impl std::fmt::Debug for BackendBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackendBody").field("body", &self.decoder).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
