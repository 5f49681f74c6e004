//! The admin port, with TLS or without. It has few connections, and none of them waits for ever: the
//! port must neither take the file descriptors of clients nor become unreachable for probes.

use super::Connections;
use super::held::Held;
use super::limits::Limits;
use super::listener::accept;
use super::pace::Paced;
use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokenweir_core::observe::Leash;
use tokenweir_net::tls::{Acceptor, Stream};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, Id, JoinSet};
use tower::ServiceExt;

/// Longest time for a handshake of TLS.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Longest wait for a whole request head, from the beginning of the connection or from the end of the
/// answer before it. Longer than the usual pauses between two scrapes or two looks of the live page.
const HEAD_LIMIT: Duration = Duration::from_secs(30);

/// The open connections of the port.
struct Open {
    most: usize,
    tasks: JoinSet<()>,
    /// Oldest first.
    connections: Vec<Connection>,
}

struct Connection {
    task: AbortHandle,
    /// Requests that are being answered: 0 or 1.
    requests: Arc<AtomicUsize>,
}

/// A request that is being answered, until its answer has been sent or dropped.
struct Answering(Arc<AtomicUsize>);

/// Serves until it is aborted. That ends its connections.
pub(super) async fn serve(
    listener: TcpListener,
    acceptor: Option<Acceptor>,
    router: Router,
    limits: Limits,
    failures: Arc<Connections>,
) {
    let mut open = Open::new(limits.admin_connections);
    loop {
        let (stream, peer) = tokio::select! {
            accepted = accept(&listener, &failures) => accepted,
            Some(ended) = open.tasks.join_next_with_id() => {
                open.remove(ended);
                continue;
            }
        };
        open.make_room().await;
        let requests = Arc::new(AtomicUsize::new(0));
        let connection =
            connection(stream, peer, acceptor.clone(), router.clone(), limits, requests.clone());
        open.add(connection, requests);
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    acceptor: Option<Acceptor>,
    router: Router,
    limits: Limits,
    requests: Arc<AtomicUsize>,
) {
    let stream = match acceptor {
        None => Stream::Plain(stream),
        Some(acceptor) => match shake_hands(&acceptor, stream).await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%peer, %error, "admin port: no TLS handshake");
                return;
            }
        },
    };
    let service = service_fn(move |request: Request<Incoming>| {
        let answering = Answering::new(&requests);
        let answer = router.clone().oneshot(request.map(Body::new));
        async { Ok::<_, Infallible>(held(answer.await, answering)) }
    });
    let stream = TokioIo::new(Paced::new(stream, limits.write_timeout, Leash::default()));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT);
    if let Err(error) = builder.serve_connection(stream, service).await {
        tracing::debug!(%peer, %error, "admin port: connection ended");
    }
}

async fn shake_hands(acceptor: &Acceptor, stream: TcpStream) -> io::Result<Stream> {
    let shaken = tokio::time::timeout(HANDSHAKE_LIMIT, acceptor.accept(stream)).await;
    shaken.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn held(
    answer: Result<Response<Body>, Infallible>,
    answering: Answering,
) -> Response<Held<Body, Answering>> {
    let Ok(answer) = answer;
    answer.map(|body| Held::new(body, answering))
}

// === impl Answering ===

impl Answering {
    fn new(requests: &Arc<AtomicUsize>) -> Self {
        requests.fetch_add(1, Ordering::Relaxed);
        Self(requests.clone())
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Open ===

impl Open {
    fn new(most: usize) -> Self {
        Self { most: most.max(1), tasks: JoinSet::new(), connections: Vec::new() }
    }

    fn add(
        &mut self,
        connection: impl Future<Output = ()> + Send + 'static,
        requests: Arc<AtomicUsize>,
    ) {
        let task = self.tasks.spawn(connection);
        self.connections.push(Connection { task, requests });
    }

    fn remove(&mut self, ended: Result<(Id, ()), tokio::task::JoinError>) {
        let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
        self.connections.retain(|connection| connection.task.id() != id);
    }

    /// Waits until there is room for one more. The oldest connection without a request makes room;
    /// if each has one, the first that ends does. Thus connections that say nothing keep no probe
    /// away.
    async fn make_room(&mut self) {
        while self.connections.len() >= self.most {
            let is_idle = |one: &&Connection| one.requests.load(Ordering::Relaxed) == 0;
            if let Some(oldest) = self.connections.iter().find(is_idle) {
                oldest.task.abort();
            }
            match self.tasks.join_next_with_id().await {
                Some(ended) => self.remove(ended),
                None => self.connections.clear(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_core::clock;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_is_closed_whether_it_had_one_or_not() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let limits = Limits::default();
        let failures = Connections::new(&limits, Arc::default());
        let router = Router::new().fallback(|| async { "ok" });
        let serving = tokio::spawn(serve(listener, None, router, limits, failures));
        let request = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        for sent in ["", "GET / HT", request] {
            let mut stream = TcpStream::connect(addr).await.unwrap();
            let begun = clock::now();
            stream.write_all(sent.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer.starts_with(b"HTTP/1.1 200"), sent == request, "{sent:?}");
            assert!(clock::now() - begun >= HEAD_LIMIT, "{sent:?}");
        }
        serving.abort();
    }
}
