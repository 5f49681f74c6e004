//! Admits client connections, performs the TLS handshake, detects the HTTP version and serves each
//! connection until it ends.

use super::ServerLimits;
use super::accept_loop::ShutdownSignal;
use super::connection_limiter::{
    ConnectionLimitExceeded, ConnectionLimiter, ConnectionPermit, InFlightRequests, RequestPermit,
};
use super::http1_connection::{Http1RequestBody, SharedHttp1Connection};
use super::stream_executor::AbortableStreamExecutor;
use super::write_timeout::WriteTimeoutStream;
use super::{http1, http2};
use crate::proxy::{
    AcceptedRequest, ClientInfo, ProxyContext, ProxyResponseBody, accept_request, handle_request,
};
use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response, Version};
use http_body::{Body, Frame};
use http_body_util::Either;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;
use tokenweir_core::error::{ErrorEnvelope, GatewayError};
use tokenweir_core::observe::{AbortRegistry, ResponseAbortHandle};
use tokenweir_net::tls::{Acceptor, MaybeTlsStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Serves client connections.
pub(super) struct ConnectionHandler {
    acceptor: Option<Acceptor>,
    limits: Arc<ArcSwap<ServerLimits>>,
    connections: Arc<ConnectionLimiter>,
    abort_registry: Arc<AbortRegistry>,
    gateway: Arc<ArcSwap<ProxyContext>>,
    /// Whether connections are closed after the response in progress.
    is_draining: Arc<AtomicBool>,
    rejection_permits: Arc<Semaphore>,
}

/// Longest time to write an error response to a rejected connection.
const REJECTION_TIMEOUT: Duration = Duration::from_secs(1);
/// The connection preface of an HTTP/2 client (RFC 9113, section 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What the requests of one connection share.
pub(super) struct ConnectionContext {
    handler: Arc<ConnectionHandler>,
    ip: IpAddr,
    permit: ConnectionPermit,
    stream_executor: AbortableStreamExecutor,
}

/// The body of a client's request.
pub(super) enum RequestBody {
    Http1(Http1RequestBody),
    Http2(hyper::body::Incoming),
}

impl ConnectionHandler {
    pub(super) fn new(
        acceptor: Option<Acceptor>,
        limits: Arc<ArcSwap<ServerLimits>>,
        connections: Arc<ConnectionLimiter>,
        abort_registry: Arc<AbortRegistry>,
        gateway: Arc<ArcSwap<ProxyContext>>,
        is_draining: Arc<AtomicBool>,
    ) -> Arc<Self> {
        let rejection_permits = Arc::new(Semaphore::new(limits.load().max_concurrent_rejections));
        Arc::new(Self {
            acceptor,
            limits,
            connections,
            abort_registry,
            gateway,
            is_draining,
            rejection_permits,
        })
    }

    /// Admits a connection, or rejects it with an error response because a limit is reached.
    pub(super) fn admit(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> Option<(TcpStream, ConnectionPermit)> {
        let mut permit = self.connections.try_acquire(peer.ip());
        // An idle connection to a backend is closed to free a file descriptor for this connection.
        while matches!(permit, Err(ConnectionLimitExceeded::Descriptors))
            && self.gateway.load().pool.close_idle_connection()
        {
            permit = self.connections.try_acquire(peer.ip());
        }
        let error = match permit {
            Ok(permit) => return Some((stream, permit)),
            Err(ConnectionLimitExceeded::Total) => GatewayError::Overloaded,
            Err(ConnectionLimitExceeded::Descriptors) => {
                self.connections.record_descriptor_exhaustion();
                GatewayError::Overloaded
            }
            Err(ConnectionLimitExceeded::PerClient) => GatewayError::ClientBusy,
        };
        tracing::debug!(%peer, %error, "client connection rejected");
        // A TLS handshake for a rejection would cost more than the rejected work.
        if self.acceptor.is_none()
            && let Ok(permit) = self.rejection_permits.clone().try_acquire_owned()
        {
            tokio::spawn(reject_connection(stream, error, permit));
        }
        None
    }

    /// Serves a connection until it ends.
    pub(super) async fn serve(
        self: Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        permit: ConnectionPermit,
        mut shutdown: ShutdownSignal,
    ) {
        let Some(stream) = self.tls_handshake(stream, peer).await else { return };
        let (abort_handle, limits) = (ResponseAbortHandle::default(), **self.limits.load());
        let stream = WriteTimeoutStream::new(stream, limits.write_timeout, abort_handle.clone());
        let stream_executor =
            AbortableStreamExecutor::new(self.abort_registry.clone(), abort_handle);
        let connection =
            ConnectionContext { handler: self, ip: peer.ip(), permit, stream_executor };
        let shared = SharedHttp1Connection::new(stream);
        let served = match detect_protocol(&shared, &mut shutdown, limits.head_timeout).await {
            Ok(Some(Version::HTTP_2)) => {
                let Some(parts) = shared.into_parts() else { return };
                // Boxed: otherwise every connection's future would reserve memory for it.
                let serving = Box::pin(http2::serve(&connection, parts, &limits, shutdown));
                serving.await.map_err(io::Error::other)
            }
            Ok(Some(_)) => http1::serve(&connection, shared, &limits, shutdown).await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            tracing::debug!(%peer, %error, "client connection failed");
        }
    }

    async fn tls_handshake(&self, stream: TcpStream, peer: SocketAddr) -> Option<MaybeTlsStream> {
        let Some(acceptor) = &self.acceptor else { return Some(MaybeTlsStream::Plain(stream)) };
        // Boxed: otherwise its memory would be reserved as long as the connection lives.
        let accepting = Box::pin(acceptor.accept(stream));
        let error = match tokio::time::timeout(self.limits.load().head_timeout, accepting).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "timed out (limits.header_timeout)".to_owned(),
        };
        self.connections.record_handshake_failure();
        tracing::debug!(%peer, error, "TLS handshake with a client failed");
        None
    }
}

/// Reads until the bytes match the HTTP/2 preface or differ from it. `None`: the client closed the
/// connection, or sent nothing before the gateway shut down.
async fn detect_protocol(
    shared: &SharedHttp1Connection,
    shutdown: &mut ShutdownSignal,
    timeout: Duration,
) -> io::Result<Option<Version>> {
    let reading = poll_fn(|cx| {
        let mut wire = shared.lock();
        loop {
            let ahead = wire.read_ahead();
            let matching = HTTP2_PREFACE
                .iter()
                .zip(ahead)
                .take_while(|(expected, actual)| expected == actual)
                .count();
            if matching == HTTP2_PREFACE.len() {
                return Poll::Ready(Ok(Some(Version::HTTP_2)));
            }
            if matching < ahead.len() {
                return Poll::Ready(Ok(Some(Version::HTTP_11)));
            }
            match wire.poll_read_more(cx)? {
                Poll::Ready(0) => return Poll::Ready(Ok(None)),
                Poll::Ready(_) => {}
                Poll::Pending if wire.read_ahead().is_empty() => {
                    return shutdown.poll(cx).map(|()| Ok(None));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    });
    let version = tokio::time::timeout(timeout, reading).await;
    version.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

// === impl ConnectionContext ===

impl ConnectionContext {
    /// Starts a request. The request counts as open until the returned permit is dropped.
    /// `connection_requests` counts the requests of a connection that has several at the same time.
    ///
    /// The request has a record when this returns. Its processing begins when the returned future
    /// is polled.
    pub(super) fn start_request(
        &self,
        mut request: Request<RequestBody>,
        connection_requests: Option<&Arc<InFlightRequests>>,
    ) -> (RequestPermit, Pin<Box<impl Future<Output = Response<ProxyResponseBody>> + Send + use<>>>)
    {
        let permit = self.permit.acquire_request(connection_requests.cloned());
        let client = ClientInfo { ip: self.ip, open_requests: permit.client_requests_in_flight() };
        let gateway = self.handler.gateway.load_full();
        let accepted =
            catch_unwind(AssertUnwindSafe(|| accept_request(&gateway, &client, &mut request)));
        // Boxed: its memory is freed while the response is sent, which may take long.
        (
            permit,
            Box::pin(respond(gateway, client, accepted, request, self.stream_executor.clone())),
        )
    }

    /// The executor for the streams of an HTTP/2 connection.
    pub(super) fn stream_executor(&self) -> &AbortableStreamExecutor {
        &self.stream_executor
    }

    /// Whether the gateway drains.
    pub(super) fn is_draining(&self) -> bool {
        self.handler.is_draining.load(Ordering::Relaxed)
    }
}

/// Handles a request. A panic ends only this request: the client gets an internal error.
async fn respond(
    gateway: Arc<ProxyContext>,
    client: ClientInfo,
    accepted: thread::Result<AcceptedRequest>,
    request: Request<RequestBody>,
    stream_executor: AbortableStreamExecutor,
) -> Response<ProxyResponseBody> {
    // Must be called inside the task of the stream.
    let abort_handle = stream_executor.current_abort_handle();
    let envelope = ErrorEnvelope::for_path(request.uri().path());
    let response = match accepted {
        Ok(accepted) => {
            // The future is large. A box of its own avoids a copy into the outer box.
            let handling = Box::pin(handle_request(&gateway, accepted, abort_handle, request));
            AssertUnwindSafe(handling).catch_unwind().await
        }
        Err(panic) => Err(panic),
    };
    response.unwrap_or_else(|_| {
        tracing::error!(ip = %client.ip, "a request caused a panic: responding with an error");
        GatewayError::Internal.to_response_in(envelope, None).map(Either::Left)
    })
}

/// Sends an error response on a connection before its request was read, and closes the connection.
/// The input is read and discarded: if it stayed unread, the kernel would reset the connection and
/// drop the response.
async fn reject_connection(
    mut stream: TcpStream,
    error: GatewayError,
    _permit: OwnedSemaphorePermit,
) {
    let responding = async {
        stream.write_all(&http1::encode_error_response(&error)).await?;
        stream.shutdown().await?;
        let mut discarded = [0; 1_024];
        while stream.read(&mut discarded).await? > 0 {}
        Ok::<_, io::Error>(())
    };
    // The connection is closed even if the client did not read the response.
    let _ = tokio::time::timeout(REJECTION_TIMEOUT, responding).await;
}

// === impl RequestBody ===

impl Body for RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Http1(body) => Pin::new(body).poll_frame(cx),
            Self::Http2(body) => Pin::new(body).poll_frame(cx).map_err(io::Error::other),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.is_end_stream(),
        }
    }
}
