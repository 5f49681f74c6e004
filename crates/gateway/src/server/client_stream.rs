//! The byte stream of a client connection. It detects the HTTP version and has timeouts for slow clients. This
//! module also has the timer type of the write timeout and of the read timeouts of HTTP/1.1 and HTTP/2.
//!
//! A timer is created only when the connection waits for the client. A connection whose client reads without
//! delay has no timer.

use super::activity::ConnectionActivity;
use super::limits::ServerLimits;
use bytes::{Buf, Bytes, BytesMut};
use http::Version;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokenweir_net::connection::poll_read;
use tokenweir_protocol::clock;
use tokenweir_request::observe::ResponseAbortHandle;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// The byte stream of a client connection. Writes fail with [`io::ErrorKind::TimedOut`] when the client
/// reads nothing for `write_timeout` while bytes wait to be written or flushed.
pub(super) struct ClientStream<S> {
    stream: S,
    /// The read-ahead buffer: bytes that were read from the stream but not consumed.
    pub read_ahead: Bytes,
    write_timeout: Duration,
    /// Aborts the open responses of the connection when the write timeout expires, so that their
    /// records show the write timeout.
    abort_handle: ResponseAbortHandle,
    write_timer: KeyedTimer<WriteOperation>,
    /// The timeout of reads. `None`: no limit.
    idle_timeout: Option<Box<IdleTimeout>>,
}

/// The idle timeout of an HTTP/2 connection, which hyper lacks. When the client sends no request for too long,
/// a read reports the end of the input.
struct IdleTimeout {
    activity: Arc<ConnectionActivity>,
    limits: ServerLimits,
    /// The timer. Its key is the time at which a request last ended.
    timer: KeyedTimer<Option<Instant>>,
}

/// A timer for one wait at a time. The key `K` identifies the wait: the timeout counts from the first call of
/// [`KeyedTimer::has_elapsed`] with a new key. To save work, a new wait with a later deadline resets the Tokio
/// timer only when it fires too early.
pub(super) struct KeyedTimer<K> {
    /// The Tokio timer. `None` before the first wait.
    sleep: Option<Pin<Box<Sleep>>>,
    /// The key and the deadline of the current wait. `None`: no wait is in progress.
    pending: Option<(K, Instant)>,
}

/// The connection preface of an HTTP/2 client (RFC 9113, section 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteOperation {
    /// The connection accepts no more bytes at present.
    Write,
    /// The connection accepted bytes that it has not sent yet.
    Flush,
}

impl<K: PartialEq> KeyedTimer<K> {
    pub(super) const fn new() -> Self {
        Self {
            sleep: None,
            pending: None,
        }
    }

    /// Whether the wait for `key` has lasted for `limit` or longer. If not, the task of `cx` is woken at that
    /// time. A new key starts a new wait.
    pub(super) fn has_elapsed(&mut self, key: K, limit: Duration, cx: &mut Context<'_>) -> bool {
        let deadline = match &self.pending {
            Some((awaited, deadline)) if *awaited == key => *deadline,
            _ => clock::now() + limit,
        };
        self.pending = Some((key, deadline));
        let deadline = deadline.into();
        let sleep = self
            .sleep
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if deadline < sleep.deadline() {
            sleep.as_mut().reset(deadline);
        }
        while sleep.as_mut().poll(cx).is_ready() {
            if deadline <= sleep.deadline() {
                return true;
            }
            sleep.as_mut().reset(deadline);
        }
        false
    }

    /// The key of the current wait. `None`: no wait is in progress.
    fn pending_key(&self) -> Option<&K> {
        self.pending.as_ref().map(|(key, _)| key)
    }

    /// Cancels the current wait, so that it cannot time out. The next wait uses the same Tokio timer.
    pub(super) fn clear(&mut self) {
        self.pending = None;
    }
}

impl IdleTimeout {
    /// Checks the timeout when the client has sent no bytes. A connection without any request fails after
    /// `head_timeout`. A connection whose requests have all ended reaches the end of its input after
    /// `keep_alive_timeout`.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.activity.is_busy(cx.waker()) {
            self.timer.clear();
            return Poll::Pending;
        }
        let last_end = self.activity.last_end_at.get();
        let limits = &self.limits;
        let timeout = last_end.map_or(limits.head_timeout, |_| limits.keep_alive_timeout);
        match (self.timer.has_elapsed(last_end, timeout, cx), last_end) {
            (false, _) => Poll::Pending,
            (true, None) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            (true, Some(_)) => Poll::Ready(Ok(())),
        }
    }
}

impl<S> ClientStream<S> {
    pub(super) fn new(
        stream: S,
        write_timeout: Duration,
        abort_handle: ResponseAbortHandle,
    ) -> Self {
        Self {
            stream,
            read_ahead: Bytes::new(),
            write_timeout,
            abort_handle,
            write_timer: KeyedTimer::new(),
            idle_timeout: None,
        }
    }

    /// Sets the idle timeout of an HTTP/2 connection.
    pub(super) fn with_idle_timeout(
        self,
        activity: Arc<ConnectionActivity>,
        limits: ServerLimits,
    ) -> Self {
        let idle_timeout = IdleTimeout {
            activity,
            limits,
            timer: KeyedTimer::new(),
        };
        Self {
            idle_timeout: Some(Box::new(idle_timeout)),
            ..self
        }
    }

    /// Applies the timeout to the result of a write operation. A completed write ends the wait. A completed
    /// flush ends only a wait for a flush, because a flush without pending bytes always completes. A pending
    /// operation fails when the wait exceeds the timeout.
    fn apply_timeout<T>(
        &mut self,
        operation: WriteOperation,
        polled: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            let pending = self.write_timer.pending_key();
            if operation == WriteOperation::Write || pending == Some(&operation) {
                self.write_timer.clear();
            }
            return polled;
        }
        let operation = self.write_timer.pending_key().copied().unwrap_or(operation);
        if self
            .write_timer
            .has_elapsed(operation, self.write_timeout, cx)
        {
            self.abort_handle.abort();
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> ClientStream<S> {
    /// Reads until the first bytes of a new connection equal the HTTP/2 preface or differ from it. These bytes
    /// stay in the read-ahead buffer. `None`: the client closed the connection.
    pub(super) fn poll_version(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Version>>> {
        loop {
            let bytes = HTTP2_PREFACE.iter().zip(&self.read_ahead);
            let matching = bytes
                .take_while(|(expected, actual)| expected == actual)
                .count();
            if matching == HTTP2_PREFACE.len() {
                return Poll::Ready(Ok(Some(Version::HTTP_2)));
            }
            if matching < self.read_ahead.len() {
                return Poll::Ready(Ok(Some(Version::HTTP_11)));
            }
            if ready!(self.poll_read_ahead(cx))? == 0 {
                return Poll::Ready(Ok(None));
            }
        }
    }

    /// Reads once from the stream and appends the bytes to `read_ahead`. Returns the number of bytes, or 0 at
    /// the end of the input.
    pub(super) fn poll_read_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let read_ahead = &mut self.read_ahead;
        poll_read(&mut self.stream, cx, |bytes| {
            if read_ahead.is_empty() {
                *read_ahead = Bytes::copy_from_slice(bytes);
            } else {
                let mut longer = BytesMut::from(std::mem::take(read_ahead));
                longer.extend_from_slice(bytes);
                *read_ahead = longer.freeze();
            }
        })
    }

    /// Reads once from the stream and discards the bytes. Returns the number of bytes, or 0 at the end of the
    /// input.
    pub(super) fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        poll_read(&mut self.stream, cx, |_| {})
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.read_ahead.is_empty() {
            let count = self.read_ahead.len().min(buffer.remaining());
            buffer.put_slice(&self.read_ahead[..count]);
            self.read_ahead.advance(count);
            return Poll::Ready(Ok(()));
        }
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        match &mut self.idle_timeout {
            Some(idle_timeout) if polled.is_pending() => idle_timeout.poll(cx),
            _ => polled,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.apply_timeout(WriteOperation::Write, polled, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.apply_timeout(WriteOperation::Write, polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.apply_timeout(WriteOperation::Flush, polled, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.apply_timeout(WriteOperation::Flush, polled, cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    const WRITE_TIMEOUT: Duration = Duration::from_mins(1);

    #[tokio::test(start_paused = true)]
    async fn the_write_timeout_aborts_responses() {
        let (gateway_side, _client_side) = duplex(4);
        let abort_handle = ResponseAbortHandle::default();
        let mut stream = ClientStream::new(gateway_side, WRITE_TIMEOUT, abort_handle.clone());
        let start = clock::now();
        let error = stream.write_all(b"12345").await.unwrap_err();
        let elapsed = clock::now().duration_since(start);
        assert_eq!(
            (error.kind(), elapsed),
            (io::ErrorKind::TimedOut, WRITE_TIMEOUT)
        );
        assert!(abort_handle.is_aborted());
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reads_do_not_time_out() {
        let (gateway_side, mut client_side) = duplex(1);
        let abort_handle = ResponseAbortHandle::default();
        let mut stream = ClientStream::new(gateway_side, WRITE_TIMEOUT, abort_handle.clone());
        let client_task = tokio::spawn(async move {
            let mut received = Vec::new();
            for _ in 0..5 {
                tokio::time::sleep(WRITE_TIMEOUT / 2).await;
                received.push(client_side.read_u8().await.unwrap());
            }
            received
        });
        stream.write_all(b"12345").await.unwrap();
        assert_eq!(client_task.await.unwrap(), b"12345");
        assert!(!abort_handle.is_aborted());
    }
}
