//! Serves the requests of one HTTP/2 connection with hyper, and closes the connection when it is
//! idle for too long.

use super::request::{ConnectionContext, RequestBody};
use super::shutdown::{CloseReason, ShutdownSignal};
use super::stream_executor::StreamExecutor;
use crate::server::client_stream::ClientStream;
use crate::server::guarded_body::guarded;
use crate::server::limits::ServerLimits;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokenweir_net::tls::MaybeTlsStream;
use tokenweir_request::error::GatewayError;

/// Flow-control window of one stream: the maximum number of request body bytes that a client may send before
/// the gateway reads them.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// Flow-control window of all streams of one connection together, in bytes.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;
/// Maximum number of response bytes that are buffered for one stream until the client reads them.
const STREAM_SEND_BUFFER_BYTES: usize = 64 << 10;
/// Maximum number of streams that a client may open and reset before the gateway accepts them. One more closes
/// the connection, as a protection against reset floods.
const MAX_PENDING_RESETS: usize = 20;
/// Maximum number of streams that the gateway resets because of protocol errors of the client. One more closes
/// the connection.
const MAX_LOCAL_RESETS: usize = 1_024;
/// Time between two PING frames, which check whether the client is reachable.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Serves an HTTP/2 connection until it ends.
pub(super) async fn serve(
    context: &ConnectionContext,
    stream: ClientStream<MaybeTlsStream>,
    limits: &ServerLimits,
    mut shutdown: ShutdownSignal,
) -> hyper::Result<()> {
    let stream = stream.with_idle_timeout(context.permit.activity.clone(), *limits);
    let executor = StreamExecutor::default();
    let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
        // This handle aborts one stream and leaves the other streams of the connection open.
        let stream = context.state.abort_registry.stream(&context.abort_handle);
        let abort_handle = executor.prepare_stream(stream);
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
        if !is_shutting_down && let Poll::Ready(reason) = shutdown.poll(cx) {
            // A client that has sent no request need not confirm the close.
            if reason == CloseReason::Replaced && !context.permit.activity.has_had_request() {
                return Poll::Ready(Ok(()));
            }
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
