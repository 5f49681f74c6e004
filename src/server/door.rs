//! The clients' door: who may come in, and what happens on a connection until it ends.

use super::Limits;
use super::connections::{Connections, Counted, Full, Open};
use super::guard::{self, Answered, Guarded, Patience};
use super::held::Held;
use super::leashing::Leashing;
use super::pace::Paced;
use crate::error::Error;
use crate::observe::{Leash, Leashes};
use crate::proxy::{Answer, Gateway, Opened, Peer, handle, open};
use crate::tls::{Acceptor, Stream};
use arc_swap::ArcSwap;
use futures_util::FutureExt;
use http::header::CONNECTION;
use http::{HeaderValue, Version};
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::Watcher;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The clients' door.
pub(super) struct Door {
    acceptor: Option<Acceptor>,
    limits: Arc<ArcSwap<Limits>>,
    connections: Arc<Connections>,
    leashes: Arc<Leashes>,
    gateway: Arc<ArcSwap<Gateway>>,
    /// Whether connections are to be left after the answer that is under way.
    is_draining: Arc<AtomicBool>,
    refusals: Arc<Semaphore>,
}

/// Connections that are told at the same time that they are too many. Others are closed without a
/// word.
const REFUSALS: usize = 64;
/// Longest time for that.
const REFUSAL_LIMIT: Duration = Duration::from_secs(1);
/// What an HTTP/2 client may send ahead on a stream and on a connection, and what is kept for it to
/// take on a stream, in bytes.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
const STREAM_BUFFER: usize = 64 << 10;
/// Streams that a client may open and reset before they have been looked at, and streams that it may
/// make the gateway reset by its own mistakes; then its connection is closed.
const PENDING_RESETS: usize = 20;
const LOCAL_RESETS: usize = 1_024;
/// How often an HTTP/2 client is asked whether it is there.
const PING_EVERY: Duration = Duration::from_secs(20);

impl Door {
    pub(super) fn new(
        acceptor: Option<Acceptor>,
        limits: Arc<ArcSwap<Limits>>,
        connections: Arc<Connections>,
        leashes: Arc<Leashes>,
        gateway: Arc<ArcSwap<Gateway>>,
        is_draining: Arc<AtomicBool>,
    ) -> Arc<Self> {
        let refusals = Arc::new(Semaphore::new(REFUSALS));
        Arc::new(Self { acceptor, limits, connections, leashes, gateway, is_draining, refusals })
    }

    /// Lets a connection in, or tells it that there are too many.
    pub(super) fn admit(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> Option<(TcpStream, Counted)> {
        let error = match self.connections.enter(peer.ip()) {
            Ok(place) => return Some((stream, place)),
            Err(Full::All) => Error::Overloaded,
            Err(Full::Client) => Error::ClientBusy,
        };
        tracing::debug!(%peer, %error, "connection refused");
        // A handshake for a refusal would be more work than is refused.
        if self.acceptor.is_none()
            && let Ok(permit) = self.refusals.clone().try_acquire_owned()
        {
            tokio::spawn(refuse(stream, error, permit));
        }
        None
    }

    /// Serves a connection until it ends.
    pub(super) async fn serve(
        self: Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        place: Counted,
        watcher: Watcher,
    ) {
        let Some(stream) = self.shake_hands(stream, peer).await else { return };
        let (leash, answered) = (Leash::default(), Answered::default());
        let limits = **self.limits.load();
        let Limits { head_timeout: head, keep_alive: next, write_timeout, .. } = limits;
        let stream = Paced::new(stream, write_timeout, leash.clone());
        let stream = Guarded::new(stream, answered.clone(), Patience { head, next });
        let leashing = Leashing::new(self.leashes.clone(), leash);
        let service = service_fn(|mut request| {
            let counted = place.request(answered.activity().clone());
            let peer = Peer { ip: peer.ip(), requests: counted.number() };
            let gateway = self.gateway.load_full();
            let opened = catch_unwind(AssertUnwindSafe(|| open(&gateway, &peer, &mut request)));
            let is_draining = self.is_draining.clone();
            let (answered, leashing) = (answered.clone(), leashing.clone());
            let ending = Ending { answered, counted, leashing, is_draining };
            answer(gateway, peer, opened, request, ending)
        });
        let http = http(&limits, leashing.clone());
        let connection = http.serve_connection(TokioIo::new(stream), service);
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!(%peer, %error, "connection ended");
        }
    }

    async fn shake_hands(&self, stream: TcpStream, peer: SocketAddr) -> Option<Stream> {
        let Some(acceptor) = &self.acceptor else { return Some(Stream::Plain(stream)) };
        let error =
            match tokio::time::timeout(self.limits.load().head_timeout, acceptor.accept(stream))
                .await
            {
                Ok(Ok(stream)) => return Some(stream),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "not in time".to_owned(),
            };
        self.connections.handshake_failed();
        tracing::debug!(%peer, error, "no TLS handshake");
        None
    }
}

fn http(limits: &Limits, leashing: Leashing) -> auto::Builder<Leashing> {
    let mut builder = auto::Builder::new(leashing);
    // How long a head may take is the guard's: it can tell a head from a pause.
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_headers(limits.headers)
        .max_buf_size(limits.head);
    builder
        .http2()
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

/// What hears of the end of a request.
struct Ending {
    answered: Answered,
    counted: Open,
    leashing: Leashing,
    is_draining: Arc<AtomicBool>,
}

/// A panic ends one request, never the process.
async fn answer(
    gateway: Arc<Gateway>,
    peer: Peer,
    opened: thread::Result<Opened>,
    request: Request<Incoming>,
    Ending { answered, counted, leashing, is_draining }: Ending,
) -> Result<Response<Held<Answer, Open>>, Infallible> {
    // Known only now that the stream runs.
    let leash = leashing.leash();
    let is_http1 = request.version() < Version::HTTP_2;
    let response = match opened {
        Ok(opened) => {
            AssertUnwindSafe(handle(&gateway, opened, leash, request)).catch_unwind().await
        }
        Err(panic) => Err(panic),
    };
    let mut response = response.unwrap_or_else(|_| {
        tracing::error!(ip = %peer.ip, "a request made the gateway panic");
        Error::Internal.response().map(Either::Left)
    });
    if is_http1 && is_draining.load(Ordering::Relaxed) {
        // A client that comes again on this connection might come when it is closed.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answered.tell();
    Ok(response.map(|body| Held::new(body, counted)))
}

/// Answers a connection before its request has come, and closes it. What comes meanwhile is read,
/// or the system would throw the answer away with it.
async fn refuse(mut stream: TcpStream, error: Error, _permit: OwnedSemaphorePermit) {
    let telling = async {
        stream.write_all(&guard::whole(&error)).await?;
        stream.shutdown().await?;
        let mut scrap = [0; 1_024];
        while stream.read(&mut scrap).await? > 0 {}
        Ok::<_, std::io::Error>(())
    };
    // Whoever does not listen is closed all the same.
    let _ = tokio::time::timeout(REFUSAL_LIMIT, telling).await;
}
