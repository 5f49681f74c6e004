//! Reads and writes the bytes of a client's HTTP/1.1 connection.
//!
//! The input is a request head, the request body, and bytes of later requests, which stay in the read-ahead
//! buffer. The write buffer collects the output. An idle connection uses no memory for buffers.

use super::write_buffer::WriteBuffer;
use crate::server::client_stream::ClientStream;
use bytes::{Bytes, BytesMut};
use http_body::Frame;
use std::io::{self, ErrorKind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use tokenweir_net::connection::READ_BUFFER_BYTES;
use tokenweir_net::tls::MaybeTlsStream;
use tokenweir_protocol::http1::{
    self, BodyDecoder, HeadLimits, HeadScanner, Http1ParseError, RequestHead,
};
use tokenweir_protocol::mutex::lock;
use tokio::io::{AsyncReadExt, AsyncWrite};

pub(super) struct Http1Connection {
    pub stream: ClientStream<MaybeTlsStream>,
    /// Finds the end of a request head in the read-ahead buffer without searching any byte twice.
    head_scan: HeadScanner,
    body_decoder: BodyDecoder,
    /// Whether `100 Continue` is still to be sent for the current request. True if the request has `Expect:
    /// 100-continue`, until `100 Continue` is in `write_buffer`.
    is_continue_expected: bool,
    /// Number of bytes of later requests that were discarded because the read-ahead buffer was full.
    discarded_bytes: usize,
    pub write_buffer: WriteBuffer,
}

/// An HTTP/1.1 connection from which both the connection task and the request body read.
#[derive(Clone)]
pub(super) struct SharedHttp1Connection(Arc<Mutex<Http1Connection>>);

/// The result of the wait for a request head.
#[derive(Debug)]
pub(super) enum HeadOutcome {
    /// The client sent a valid head.
    Head(Box<RequestHead>),
    /// The client sent a malformed head, or a head that exceeds the limits.
    Malformed(Http1ParseError),
    /// The client closed the connection, or an idle connection must close.
    Closed,
    /// A new connection replaces this one, whose client has sent no complete head.
    Replaced,
}

/// Maximum number of bytes that one read of a long body returns.
const LARGE_READ_BUFFER_BYTES: usize = 64 << 10;
/// Maximum size of the buffered bytes of later requests, equal to the default limit of a request head. The
/// gateway reads these bytes while it handles a request, because it detects a disconnect only at the end of the
/// input. Clients that pipeline requests send fewer bytes.
const MAX_READ_AHEAD_BYTES: usize = 64 << 10;
/// Maximum number of bytes that are discarded after a request. A client that sends more counts as disconnected.
const MAX_DISCARDED_BYTES: usize = 1 << 20;

impl Http1Connection {
    /// Reads until a request head is complete or malformed, or the client closes the connection.
    pub(super) fn poll_request_head(
        &mut self,
        cx: &mut Context<'_>,
        limits: HeadLimits,
    ) -> Poll<io::Result<HeadOutcome>> {
        loop {
            match self
                .head_scan
                .read_head(&mut self.stream.read_ahead, limits)
            {
                Ok(None) => {}
                Ok(Some(head)) => {
                    self.body_decoder = head.body.clone();
                    self.is_continue_expected = head.is_expectant;
                    return Poll::Ready(Ok(HeadOutcome::Head(head)));
                }
                Err(error) => return Poll::Ready(Ok(HeadOutcome::Malformed(error))),
            }
            if ready!(self.stream.poll_read_ahead(cx))? == 0 {
                return Poll::Ready(Ok(HeadOutcome::Closed));
            }
        }
    }

    /// Whether a part of the next request head was read. Empty lines before the head do not count: complete
    /// ones were dropped already, and a single CR may begin another one.
    pub(super) fn has_partial_head(&self) -> bool {
        !matches!(&self.stream.read_ahead[..], [] | [b'\r'])
    }

    /// Whether the current request was received to the end of its body. Discards buffered parts of the body
    /// that were not consumed.
    pub(super) fn has_complete_request(&mut self) -> bool {
        while !self.body_decoder.is_complete() && !self.stream.read_ahead.is_empty() {
            if self
                .body_decoder
                .decode_bytes(&mut self.stream.read_ahead)
                .is_err()
            {
                return false;
            }
        }
        self.body_decoder.is_complete()
    }

    /// Reads until a part of the request body is available, and returns it. `None`: the body has ended.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        while !self.body_decoder.is_complete() {
            if !self.stream.read_ahead.is_empty() {
                let decoded = self.body_decoder.decode_bytes(&mut self.stream.read_ahead);
                let data =
                    decoded.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
                if !data.is_empty() {
                    return Poll::Ready(Ok(Some(data)));
                }
                continue;
            }
            if std::mem::take(&mut self.is_continue_expected) {
                self.write_buffer.put_static(http1::CONTINUE_RESPONSE);
            }
            // In a WebSocket, a read does not wait for a flush, because the two directions are independent.
            if self.body_decoder != BodyDecoder::UntilClose {
                ready!(self.poll_flush(cx))?;
            }
            let read = match self.body_decoder.remaining_bytes() {
                Some(remaining) if remaining > READ_BUFFER_BYTES as u64 => {
                    ready!(self.poll_read_large(cx, remaining))
                }
                _ => ready!(self.stream.poll_read_ahead(cx)),
            };
            if !matches!(read, Ok(1..)) {
                // The empty decoder lets `poll_client_disconnect` find the end of the input.
                let decoder = std::mem::replace(&mut self.body_decoder, BodyDecoder::empty());
                read?;
                let is_end = decoder == BodyDecoder::UntilClose;
                let result = if is_end {
                    Ok(None)
                } else {
                    Err(ErrorKind::UnexpectedEof.into())
                };
                return Poll::Ready(result);
            }
        }
        Poll::Ready(Ok(None))
    }

    /// Makes the body of the current request return all further input: the bytes of a WebSocket.
    pub(super) fn begin_tunnel(&mut self) {
        self.body_decoder = BodyDecoder::UntilClose;
    }

    /// Reads once from a request body of which `remaining` bytes are left. To avoid a copy, the buffer of the
    /// read becomes `read_ahead`. Returns the number of bytes, or 0 at the end of the input.
    fn poll_read_large(&mut self, cx: &mut Context<'_>, remaining: u64) -> Poll<io::Result<usize>> {
        let mut buffer = BytesMut::with_capacity(LARGE_READ_BUFFER_BYTES.min(remaining as usize));
        let count = ready!(pin!(self.stream.read_buf(&mut buffer)).poll(cx))?;
        self.stream.read_ahead = buffer.freeze();
        Poll::Ready(Ok(count))
    }

    /// Reads ahead while a request is handled, to detect a disconnect. Ready when the client has disconnected.
    /// Pending, without reading, while the request body is incomplete.
    ///
    /// The kernel reports the end of the input only after all bytes before it. So bytes that do not fit into
    /// the read-ahead buffer are discarded, and the connection closes after the current response.
    pub(super) fn poll_client_disconnect(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.body_decoder.is_complete() {
            // Only the request handler reads the body.
            return Poll::Pending;
        }
        while self.stream.read_ahead.len() < MAX_READ_AHEAD_BYTES {
            match ready!(self.stream.poll_read_ahead(cx)) {
                Ok(0) | Err(_) => return Poll::Ready(()),
                Ok(_) => {}
            }
        }
        self.poll_disconnect_behind_requests(cx)
    }

    /// Discards input that does not fit into the read-ahead buffer. Ready when the client has disconnected or
    /// has sent too much.
    #[cold]
    fn poll_disconnect_behind_requests(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.discarded_bytes <= MAX_DISCARDED_BYTES {
            match ready!(self.stream.poll_discard(cx)) {
                Ok(0) | Err(_) => return Poll::Ready(()),
                Ok(count) => self.discarded_bytes += count,
            }
        }
        Poll::Ready(())
    }

    /// Whether bytes of a later request were discarded. The connection cannot serve that request.
    pub(super) fn has_discarded_input(&self) -> bool {
        self.discarded_bytes > 0
    }

    /// Writes all bytes of the write buffer and flushes the stream.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.write_buffer.is_empty() {
            ready!(self.write_buffer.poll_write(Pin::new(&mut self.stream), cx))?;
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Writes the remaining bytes of the write buffer and closes the sending side of the connection.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    /// Reads and discards input until the client closes its side of the connection. Unread input would make the
    /// kernel reset the connection and drop output that the client has not read.
    pub(super) fn poll_discard_input(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.stream.read_ahead = Bytes::new();
        while let Ok(1..) = ready!(self.stream.poll_discard(cx)) {}
        Poll::Ready(())
    }
}

impl SharedHttp1Connection {
    pub(super) fn new(stream: ClientStream<MaybeTlsStream>) -> Self {
        let connection = Http1Connection {
            stream,
            head_scan: HeadScanner::default(),
            body_decoder: BodyDecoder::empty(),
            is_continue_expected: false,
            discarded_bytes: 0,
            write_buffer: WriteBuffer::default(),
        };
        Self(Arc::new(Mutex::new(connection)))
    }

    /// The stream. `None`: another clone of this value still exists.
    pub(super) fn into_stream(self) -> Option<ClientStream<MaybeTlsStream>> {
        let connection = Arc::into_inner(self.0)?.into_inner();
        Some(connection.unwrap_or_else(PoisonError::into_inner).stream)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Http1Connection> {
        lock(&self.0)
    }

    /// Whether the handler of the current request still holds the body of the request.
    pub(super) fn is_body_in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Reads the next part of the body of the current request from the connection. The current request is the
    /// one whose head was read last.
    pub(super) fn poll_body(&self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let data = ready!(self.lock().poll_body(cx));
        Poll::Ready(data.map(|data| data.map(Frame::data)).transpose())
    }

    /// Whether the body of the current request was read to its end.
    pub(super) fn is_body_complete(&self) -> bool {
        self.lock().body_decoder.is_complete()
    }
}
