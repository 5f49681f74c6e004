//! The requests of one HTTP/2 connection, by hyper.

use super::connections::Activity;
use super::door::{Guest, Incoming};
use super::front::Closing;
use super::held::Held;
use super::limits::Limits;
use super::pace::{Paced, Timer};
use bytes::{Buf, Bytes};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokenweir_net::tls::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What an HTTP/2 client may send ahead on a stream and on a connection, and what is kept for it to
/// take on a stream, in bytes.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
const STREAM_BUFFER: usize = 64 << 10;
/// Streams that a client may open and reset before they have been looked at, and streams that it may
/// make the gateway reset by its own mistakes; then its connection is closed.
const PENDING_RESETS: usize = 20;
const LOCAL_RESETS: usize = 1_024;
/// How often a client is asked whether it is there.
const PING_EVERY: Duration = Duration::from_secs(20);

/// Serves a connection on which these bytes have come until it ends.
pub(super) async fn serve(
    guest: &Guest,
    (stream, first): (Paced<Stream>, Bytes),
    limits: &Limits,
    mut closing: Closing,
) -> hyper::Result<()> {
    let activity = Arc::new(Activity::default());
    let stream = Patient { stream, first, activity, limits: *limits, timer: Timer::new() };
    let activity = stream.activity.clone();
    let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
        let (open, answering) = guest.ask(request.map(Incoming::Http2), Some(&activity));
        async { Ok::<_, Infallible>(answering.await.map(|body| Held::new(body, open))) }
    });
    let mut connection =
        pin!(builder(guest, limits).serve_connection(TokioIo::new(stream), service));
    let mut is_closing = false;
    poll_fn(|cx| {
        if !is_closing && closing.poll(cx).is_ready() {
            is_closing = true;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(cx)
    })
    .await
}

fn builder(guest: &Guest, limits: &Limits) -> http2::Builder<super::leashing::Leashing> {
    let mut builder = http2::Builder::new(guest.leashing().clone());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(limits.head).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(PENDING_RESETS)
        .max_local_error_reset_streams(LOCAL_RESETS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(STREAM_BUFFER)
        .keep_alive_interval(Some(PING_EVERY));
    builder
}

/// A connection that ends when its client has asked nothing for too long: hyper waits for ever.
struct Patient {
    stream: Paced<Stream>,
    /// What has come before it was known to be HTTP/2.
    first: Bytes,
    activity: Arc<Activity>,
    limits: Limits,
    timer: Timer<u32>,
}

// === impl Patient ===

impl Patient {
    /// Nothing has come. Without a request for too long, the connection is over.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.activity.is_busy(cx.waker()) {
            self.timer.forget();
            return Poll::Pending;
        }
        let before = self.activity.begun();
        let limit = if before == 0 { self.limits.head_timeout } else { self.limits.keep_alive };
        match (self.timer.is_over(before, limit, cx), before) {
            (false, _) => Poll::Pending,
            (true, 0) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            (true, _) => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let count = self.first.len().min(buffer.remaining());
            buffer.put_slice(&self.first[..count]);
            self.first.advance(count);
            return Poll::Ready(Ok(()));
        }
        match Pin::new(&mut self.stream).poll_read(cx, buffer) {
            Poll::Pending => self.poll_patience(cx),
            read @ Poll::Ready(_) => read,
        }
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
