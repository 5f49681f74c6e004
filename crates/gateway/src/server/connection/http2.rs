//! Serves the requests of one HTTP/2 connection with hyper, and closes the connection when it is
//! idle for too long.

use super::activity::ConnectionActivity;
use super::request::{ConnectionContext, RequestBody};
use super::shutdown::ShutdownSignal;
use super::stream_executor::StreamExecutor;
use crate::server::guarded_body::guarded;
use crate::server::limits::ServerLimits;
use crate::server::write_timeout::{KeyedTimer, WriteTimeoutStream};
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
use std::time::{Duration, Instant};
use tokenweir_net::tls::MaybeTlsStream;
use tokenweir_request::error::GatewayError;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Flow-control window of one stream, in bytes: the maximum of request body bytes that a client may
/// send before the gateway reads them.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// Flow-control window of all streams of one connection together, in bytes.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;
/// Maximum number of response bytes that are buffered for one stream until the client reads them.
const STREAM_SEND_BUFFER_BYTES: usize = 64 << 10;
/// Maximum number of streams that a client may open and reset before the gateway accepts them. One
/// more such stream closes the connection, as a protection against reset floods.
const MAX_PENDING_RESETS: usize = 20;
/// Maximum number of streams that the gateway resets because of protocol errors of the client. One
/// more such stream closes the connection.
const MAX_LOCAL_RESETS: usize = 1_024;
/// Time between two PING frames, with which the gateway checks whether the client is reachable.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Serves an HTTP/2 connection until it ends. `prefetched` are the bytes of the connection that
/// were already read to detect the protocol.
pub(super) async fn serve(
    context: &ConnectionContext,
    (stream, prefetched): (WriteTimeoutStream<MaybeTlsStream>, Bytes),
    limits: &ServerLimits,
    mut shutdown: ShutdownSignal,
) -> hyper::Result<()> {
    let stream = IdleTimeoutStream {
        stream,
        prefetched,
        activity: context.permit.activity.clone(),
        limits: *limits,
        timer: KeyedTimer::new(),
    };
    let executor = StreamExecutor::default();
    let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
        let abort_handle = executor.prepare_stream(context.register_stream());
        let request = request.map(RequestBody::Http2);
        // hyper limits the size of a request head, but not the number of its headers.
        let started = if request.headers().len() > limits.max_headers {
            Err(context.refuse_request(&GatewayError::HeadTooLarge, &request))
        } else {
            Ok(context.start_request(request, abort_handle))
        };
        async {
            let (permit, response) = match started {
                Ok((permit, responding)) => (permit, responding.await),
                Err(refused) => refused,
            };
            Ok::<_, Infallible>(response.map(|body| guarded(body, permit)))
        }
    });
    let builder = connection_builder(executor.clone(), limits);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut is_shutting_down = false;
    poll_fn(|cx| {
        if !is_shutting_down && shutdown.poll(cx).is_ready() {
            is_shutting_down = true;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(cx)
    })
    .await
}

fn connection_builder(
    executor: StreamExecutor,
    limits: &ServerLimits,
) -> http2::Builder<StreamExecutor> {
    let mut builder = http2::Builder::new(executor);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_concurrent_streams)
        .max_header_list_size(u32::try_from(limits.max_head_bytes).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_LOCAL_RESETS)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(STREAM_SEND_BUFFER_BYTES)
        .keep_alive_interval(Some(PING_INTERVAL));
    builder
}

/// The byte stream of an HTTP/2 connection with an idle timeout for reads, because hyper has no
/// such timeout. When the client sends no request for too long, a read reports the end of the input.
struct IdleTimeoutStream {
    stream: WriteTimeoutStream<MaybeTlsStream>,
    /// Bytes that were read to detect the protocol and not passed to hyper yet.
    prefetched: Bytes,
    activity: Arc<ConnectionActivity>,
    limits: ServerLimits,
    /// The timer of the idle timeout. Its key is the time at which a request last ended.
    timer: KeyedTimer<Option<Instant>>,
}

// === impl IdleTimeoutStream ===

impl IdleTimeoutStream {
    /// Checks the idle timeout when the client has sent no bytes. A connection without any request
    /// fails after `head_timeout`. A connection that has served a request and has no open request
    /// reaches the end of its input after `keep_alive_timeout`.
    fn poll_idle_timeout(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
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

impl AsyncRead for IdleTimeoutStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.prefetched.is_empty() {
            let count = self.prefetched.len().min(buffer.remaining());
            buffer.put_slice(&self.prefetched[..count]);
            self.prefetched.advance(count);
            return Poll::Ready(Ok(()));
        }
        match Pin::new(&mut self.stream).poll_read(cx, buffer) {
            Poll::Pending => self.poll_idle_timeout(cx),
            read @ Poll::Ready(_) => read,
        }
    }
}

impl AsyncWrite for IdleTimeoutStream {
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
