//! Serves the admin listener over HTTP/1.1 and HTTP/2, with or without TLS.
//!
//! A low limit on admin connections leaves the file descriptors to clients. Two rules keep the listener
//! reachable for probes: every read of a request has a timeout, and at the limit a new connection replaces
//! another one.

mod connections;
mod timed_body;

use super::client_stream::ClientStream;
use super::connection::limiter::ConnectionLimiter;
use super::guarded_body::guarded;
use super::limits::ServerLimits;
use super::listener::accept;
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use connections::{AdminConnections, ConnectionRequests};
use http::Version;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use timed_body::TimedBody;
use tokenweir_net::tls::{Acceptor, MaybeTlsStream};
use tokenweir_request::observe::ResponseAbortHandle;
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a complete request head, from the start of the connection or from the end of the previous
/// response. It exceeds the usual interval of Prometheus scrapes and of live page updates, so their connections
/// stay open.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for a complete request body, from the end of the request head. Requests of operators have no body,
/// and requests of KEDA have a small one.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of open requests of an HTTP/2 connection.
const MAX_STREAMS: u32 = 32;
/// Time between two PING frames on an HTTP/2 connection. The frames detect that the client is gone.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Accepts and serves admin connections in an endless loop. All connections end when the returned
/// future is dropped.
pub(super) async fn serve(
    listener: TcpListener,
    acceptor: Option<Acceptor>,
    router: Router,
    limits: ServerLimits,
    limiter: Arc<ConnectionLimiter>,
) {
    let mut connections = AdminConnections::default();
    loop {
        let (stream, peer) = accept(&listener, &limiter).await;
        connections
            .make_room(limits.max_admin_connections.max(1))
            .await;
        let requests = Arc::<ConnectionRequests>::default();
        let connection = serve_connection(
            stream,
            peer,
            acceptor.clone(),
            router.clone(),
            limits,
            requests.clone(),
        );
        connections.spawn(peer.ip(), requests, connection);
    }
}

async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    acceptor: Option<Acceptor>,
    router: Router,
    limits: ServerLimits,
    requests: Arc<ConnectionRequests>,
) {
    let stream = match acceptor {
        None => MaybeTlsStream::Plain(stream),
        Some(acceptor) => match acceptor.accept(stream, TLS_HANDSHAKE_TIMEOUT).await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%peer, %error, "TLS handshake on the admin listener failed");
                return;
            }
        },
    };
    let service = service_fn(move |mut request: Request<Incoming>| {
        // The log line about a drain contains the address of the client.
        request.extensions_mut().insert(ConnectInfo(peer));
        let mut guard = requests.begin();
        let request = request.map(|body| Body::new(TimedBody::new(body, BODY_TIMEOUT)));
        let response = router.clone().oneshot(request);
        async {
            response.await.map(|response| {
                guard.on_response(response.headers());
                response.map(|body| guarded(body, guard))
            })
        }
    });
    let mut stream =
        ClientStream::new(stream, limits.write_timeout, ResponseAbortHandle::default());
    let detecting = poll_fn(|cx| stream.poll_version(cx));
    let version = tokio::time::timeout(HEADER_READ_TIMEOUT, detecting).await;
    let Ok(Ok(Some(version))) = version else {
        return;
    };
    let stream = TokioIo::new(stream);
    let served = if version == Version::HTTP_2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(Some(PING_INTERVAL));
        builder.max_concurrent_streams(MAX_STREAMS);
        builder.serve_connection(stream, service).await
    } else {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_READ_TIMEOUT);
        builder.serve_connection(stream, service).await
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "connection to the admin listener failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use tokenweir_protocol::clock;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let limits = ServerLimits::default();
        let limiter = ConnectionLimiter::new(&limits, Arc::default());
        let router = Router::new().fallback(|| async { "ok" });
        tokio::spawn(serve(listener, None, router, limits, limiter));
        let request = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        for sent_bytes in ["", "GET / HT", request] {
            let mut stream = TcpStream::connect(addr).await.unwrap();
            let start = clock::now();
            stream.write_all(sent_bytes.as_bytes()).await.unwrap();
            let mut response = Vec::new();
            stream.read_to_end(&mut response).await.unwrap();
            assert_eq!(
                response.starts_with(b"HTTP/1.1 200"),
                sent_bytes == request,
                "{sent_bytes:?}"
            );
            assert!(
                clock::now() - start >= HEADER_READ_TIMEOUT,
                "{sent_bytes:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_body_must_arrive_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let limits = ServerLimits::default();
        let limiter = ConnectionLimiter::new(&limits, Arc::default());
        let router = Router::new().fallback(|body: Bytes| async move { body });
        tokio::spawn(serve(listener, None, router, limits, limiter));
        for (length, is_whole) in [(3, true), (4, false)] {
            let mut stream = TcpStream::connect(addr).await.unwrap();
            let start = clock::now();
            let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
            stream
                .write_all(format!("{head}abc").as_bytes())
                .await
                .unwrap();
            let mut response = Vec::new();
            stream.read_to_end(&mut response).await.unwrap();
            assert_eq!(response.starts_with(b"HTTP/1.1 200"), is_whole);
            assert!(is_whole || clock::now() - start >= BODY_TIMEOUT);
        }
    }
}
