//! HTTP/1.1 connections to backends, without a Tokio task for each connection.
//!
//! The task that waits for a response also reads from the socket, so an arriving chunk wakes only that task. An
//! idle connection is an entry of an [`IdlePool`](crate::idle_pool::IdlePool).

use crate::file_descriptors::FileDescriptorPermit;
use crate::request_stream::RequestStream;
use crate::tls::MaybeTlsStream;
use bytes::buf::Chain;
use bytes::{Buf, Bytes, BytesMut};
use http::Method;
use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};
use tokenweir_protocol::http1::{self, Http1ParseError, ResponseHead};
use tokenweir_protocol::units;
use tokenweir_protocol::{clock, settings};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// An HTTP/1.1 connection to a backend. It carries at most one request at a time.
pub struct Connection {
    /// The stream on which requests are written and responses are read.
    pub stream: MaybeTlsStream,
    pub(crate) opened_at: Instant,
    /// Number of complete responses that the connection has carried.
    pub(crate) served_requests: u32,
    /// Time at which the last response ended. Before the first response: the time at which the
    /// connection was opened.
    pub(crate) idle_since: Instant,
    /// The permit of the file descriptor. Fields are dropped in the order of their declaration, so the stream
    /// closes before the permit returns to its pool.
    _descriptor: FileDescriptorPermit,
}

settings! {
    /// Timeouts of requests to backends.
    #[derive(Copy, Eq)]
    pub struct HttpClientTimeouts {
        /// Timeout for a new connection to a backend. The TLS handshake has the same timeout again.
        #[serde(with = "units::Duration")]
        pub connect: Duration,
        /// Timeout for the response head of a backend, and for each further part of a body that is no
        /// event stream. Without streaming, vLLM sends the head when it has generated the whole
        /// response.
        #[serde(with = "units::Duration")]
        pub response_headers: Duration,
        /// Timeout for the first output of a stream, from the head of the client's request. `None`: no
        /// limit.
        #[serde(with = "units::OptionalDuration")]
        pub first_output: Option<Duration>,
        /// Timeout for the whole request, from its head to the end of the response, or without
        /// streaming to the response head. `None`: no limit.
        #[serde(with = "units::OptionalDuration")]
        pub total: Option<Duration>,
        /// Time after which an idle connection to a backend is closed. Keep it below that of the
        /// backends (vLLM: 5 s).
        #[serde(with = "units::Duration")]
        pub idle_connection: Duration,
        /// Time after which a connection to a backend gets no further request. Within this time the
        /// gateway follows a host name that moves to another address. `None`: no limit.
        #[serde(with = "units::OptionalDuration")]
        pub connection_age: Option<Duration>,
        /// Number of requests after which a connection to a backend gets no further request, for load
        /// balancers that distribute connections. `None`: no limit.
        pub connection_requests: Option<NonZeroU32>,
    }
}

/// The part of a request that is not yet written.
pub(crate) struct UnsentRequest {
    /// The next bytes to write: first bytes of the head or of the framing, then bytes of the body.
    buffered: Chain<Bytes, Bytes>,
    /// The further parts of the body, as they arrive. `None`: the rest of the body is in `buffered`.
    stream: Option<RequestStream>,
}

/// Why sending a request or reading its response failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The socket reported an error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The backend closed the connection before the end of the response.
    #[error("the backend closed the connection before the end of the response")]
    Closed,
    /// The backend sent no further part of the response in time.
    #[error("the backend sent no further part of the response for {} s", .0.as_secs_f64())]
    Silent(Duration),
    /// The response is not valid HTTP/1.1.
    #[error(transparent)]
    Malformed(#[from] Http1ParseError),
    /// The request body of the client ended with an error, which is not a fault of the backend.
    #[error("the request body of the client ended with an error: {0}")]
    RequestBody(io::Error),
}

/// Maximum size of a response head, in bytes. Heads of more than 100 KB occur: embeddings in the binary format
/// have their usage in a header.
const MAX_RESPONSE_HEAD_BYTES: usize = 256 << 10;
/// Maximum size of one read from the socket, in bytes. It also limits the bytes that are buffered for a slow
/// client.
pub const READ_BUFFER_BYTES: usize = 16 << 10;

impl Default for HttpClientTimeouts {
    /// Default timeouts: 2 s to connect, 10 min for the response head, 10 min for the first output, 3 s for
    /// idle connections, and 30 s for the age of a connection. The whole request has no limit.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            response_headers: Duration::from_mins(10),
            first_output: Some(Duration::from_mins(10)),
            total: None,
            idle_connection: Duration::from_secs(3),
            connection_age: Some(Duration::from_secs(30)),
            connection_requests: None,
        }
    }
}

/// Reads once from a stream and passes the bytes to `on_bytes`. Returns the number of bytes; 0 means that the
/// other end closed the connection. The buffer is on the stack, so that a waiting connection uses no memory for
/// it.
pub fn poll_read(
    stream: &mut (impl AsyncRead + Unpin),
    cx: &mut Context<'_>,
    on_bytes: impl FnOnce(&[u8]),
) -> Poll<io::Result<usize>> {
    let mut storage = [const { MaybeUninit::uninit() }; READ_BUFFER_BYTES];
    let mut buffer = ReadBuf::uninit(&mut storage);
    ready!(Pin::new(stream).poll_read(cx, &mut buffer))?;
    on_bytes(buffer.filled());
    Poll::Ready(Ok(buffer.filled().len()))
}

impl UnsentRequest {
    /// A request of which nothing has been written. `head` and `body` are its first bytes, and `stream` has the
    /// further parts of its body.
    pub(crate) fn new(head: Bytes, body: Bytes, stream: Option<RequestStream>) -> Self {
        Self {
            buffered: head.chain(body),
            stream,
        }
    }

    pub(crate) fn is_written(&self) -> bool {
        !self.buffered.has_remaining() && self.stream.is_none()
    }
}

impl Connection {
    /// Creates an HTTP/1.1 connection on a stream. `descriptor` is the permit of its file descriptor.
    ///
    /// The connection is boxed, because it moves through several calls with each response.
    pub fn new(stream: MaybeTlsStream, descriptor: FileDescriptorPermit) -> Box<Self> {
        let now = clock::now();
        Box::new(Self {
            stream,
            opened_at: now,
            served_requests: 0,
            idle_since: now,
            _descriptor: descriptor,
        })
    }

    /// Writes the unsent part of a request and flushes the stream.
    pub(crate) fn poll_write_request(
        &mut self,
        cx: &mut Context<'_>,
        unsent: &mut UnsentRequest,
    ) -> Poll<Result<(), ConnectionError>> {
        loop {
            ready!(self.poll_write_all(cx, &mut unsent.buffered))?;
            let Some(stream) = &mut unsent.stream else {
                return Poll::Ready(Ok(()));
            };
            // The next part is read from the client only after the previous part is written, so at most one
            // part is buffered.
            match ready!(stream.poll_part(cx)).map_err(ConnectionError::RequestBody)? {
                Some(part) => unsent.buffered = part,
                None => unsent.stream = None,
            }
        }
    }

    /// Writes all bytes and flushes the stream.
    fn poll_write_all(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &mut Chain<Bytes, Bytes>,
    ) -> Poll<io::Result<()>> {
        while bytes.has_remaining() {
            let mut slices = [IoSlice::new(&[]); 2];
            let count = bytes.chunks_vectored(&mut slices);
            let stream = Pin::new(&mut self.stream);
            let written = ready!(stream.poll_write_vectored(cx, &slices[..count]))?;
            if written == 0 {
                return Poll::Ready(Err(ErrorKind::WriteZero.into()));
            }
            bytes.advance(written);
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Reads until the response head is complete. `received` collects the bytes, which can include
    /// the start of the body.
    pub(crate) fn poll_response_head(
        &mut self,
        cx: &mut Context<'_>,
        method: &Method,
        is_upgrade: bool,
        received: &mut BytesMut,
    ) -> Poll<Result<ResponseHead, ConnectionError>> {
        loop {
            let count = ready!(poll_read(&mut self.stream, cx, |bytes| received
                .extend_from_slice(bytes)))?;
            if count == 0 {
                return Poll::Ready(Err(ConnectionError::Closed));
            }
            // The head is parsed only if it can be complete: after the first read, and after a read
            // with a blank line.
            let may_be_complete = count == received.len() || http1::has_blank_line(received, count);
            if may_be_complete
                && let Some(head) = http1::parse_response_head(method, is_upgrade, received)?
            {
                return Poll::Ready(Ok(head));
            }
            if received.len() > MAX_RESPONSE_HEAD_BYTES {
                return Poll::Ready(Err(Http1ParseError::HeadTooLong.into()));
            }
        }
    }

    /// Waits until the backend closes the connection or sends bytes that belong to no response.
    pub async fn until_closed(&mut self) {
        // Both a close and an error end the wait.
        let _ = poll_fn(|cx| poll_read(&mut self.stream, cx, |_| {})).await;
    }

    /// Whether the connection has been idle for at least `duration`.
    pub fn has_been_idle_for(&self, duration: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.idle_since) >= duration
    }

    /// Whether the connection may carry another request, judged by its age and by its number of requests.
    pub(crate) fn is_within(&self, limits: &HttpClientTimeouts, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.opened_at);
        let requests = self.served_requests;
        limits.connection_age.is_none_or(|limit| age < limit)
            && limits
                .connection_requests
                .is_none_or(|limit| requests < limit.get())
    }

    /// Whether the connection can carry another request: it has no unread bytes, and the backend has not closed
    /// it.
    pub fn is_reusable(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        poll_read(&mut self.stream, &mut cx, |_| {}).is_pending()
    }
}
