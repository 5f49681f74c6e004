//! Serves the admin listener over HTTP/1.1 and HTTP/2, with or without TLS.
//!
//! The number of admin connections is limited to a small number, and every connection has timeouts.
//! So the admin listener does not use the file descriptors that clients need, and stays reachable
//! for probes.

use super::client_stream::ClientStream;
use super::connection::limiter::ConnectionLimiter;
use super::guarded_body::guarded;
use super::limits::ServerLimits;
use super::listener::accept;
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
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
use tokenweir_net::tls::{Acceptor, MaybeTlsStream};
use tokenweir_request::observe::ResponseAbortHandle;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tower::ServiceExt;

/// Timeout of the TLS handshake.
const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a complete request head, from the start of the connection or from the end of the
/// previous response. The timeout is longer than the usual time between two scrapes of Prometheus
/// and between two updates of the live page, so their connections stay open.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of open requests of an HTTP/2 connection.
const MAX_STREAMS: u32 = 32;
/// Time between two PING frames, which find out that the client of an HTTP/2 connection is gone.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// The open connections of the admin listener.
#[derive(Default)]
struct AdminConnections {
    /// One task for each open connection.
    tasks: JoinSet<()>,
    /// The open connections, from the oldest to the newest.
    connections: Vec<AdminConnection>,
}

struct AdminConnection {
    task: AbortHandle,
    /// Counts the open requests by its references: this field and the connection have one each, and
    /// each open request has one until its response is sent or dropped.
    requests: Arc<()>,
}

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
        connections.wait_for_capacity(limits.max_admin_connections.max(1)).await;
        let requests = Arc::new(());
        let connection = serve_connection(
            stream,
            peer,
            acceptor.clone(),
            router.clone(),
            limits,
            requests.clone(),
        );
        let task = connections.tasks.spawn(connection);
        connections.connections.push(AdminConnection { task, requests });
    }
}

async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    acceptor: Option<Acceptor>,
    router: Router,
    limits: ServerLimits,
    requests: Arc<()>,
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
        // The log line about a drain names the address of the client that requested it.
        request.extensions_mut().insert(ConnectInfo(peer));
        let guard = requests.clone();
        let response = router.clone().oneshot(request.map(Body::new));
        async { response.await.map(|response| response.map(|body| guarded(body, guard))) }
    });
    let mut stream =
        ClientStream::new(stream, limits.write_timeout, ResponseAbortHandle::default());
    let detecting = poll_fn(|cx| stream.poll_version(cx));
    let version = tokio::time::timeout(HEADER_READ_TIMEOUT, detecting).await;
    let Ok(Ok(Some(version))) = version else { return };
    let stream = TokioIo::new(stream);
    let served = if version == Version::HTTP_2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).keep_alive_interval(Some(PING_INTERVAL));
        builder.max_concurrent_streams(MAX_STREAMS);
        builder.serve_connection(stream, service).await
    } else {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEADER_READ_TIMEOUT);
        builder.serve_connection(stream, service).await
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "connection to the admin listener failed");
    }
}

// === impl AdminConnections ===

impl AdminConnections {
    /// Waits until the number of connections is below `limit`. At the limit, closes the oldest
    /// connection without an open request. If every connection has an open request, waits until one
    /// of them ends. So idle connections cannot keep probes out.
    async fn wait_for_capacity(&mut self, limit: usize) {
        loop {
            while self.tasks.try_join_next().is_some() {}
            self.connections.retain(|connection| !connection.task.is_finished());
            if self.connections.len() < limit {
                return;
            }
            let is_idle =
                |connection: &&AdminConnection| Arc::strong_count(&connection.requests) <= 2;
            if let Some(oldest) = self.connections.iter().find(is_idle) {
                oldest.task.abort();
            }
            self.tasks.join_next().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_protocol::clock;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn an_idle_admin_connection_is_closed_after_the_header_read_timeout() {
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
            assert!(clock::now() - start >= HEADER_READ_TIMEOUT, "{sent_bytes:?}");
        }
    }
}
