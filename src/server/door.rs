//! The clients' door: who may come in, and what happens on a connection until it ends.

use super::Limits;
use super::connections::{Activity, Connections, Counted, Full, Open};
use super::front::Closing;
use super::leashing::Leashing;
use super::pace::Paced;
use super::wire::{Shared, Upload};
use super::{http1, http2};
use crate::proxy::{Answer, Gateway, Opened, Peer, handle, open};
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
use tokenweir_core::error::{Envelope, Error};
use tokenweir_core::observe::{Leash, Leashes};
use tokenweir_net::tls::{Acceptor, Stream};
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

/// Longest time for that.
const REFUSAL_LIMIT: Duration = Duration::from_secs(1);
/// How a client says that it speaks HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A client that has been let in.
pub(super) struct Guest {
    door: Arc<Door>,
    ip: IpAddr,
    place: Counted,
    leashing: Leashing,
}

/// The body of a request.
pub(super) enum Incoming {
    Http1(Upload),
    Http2(hyper::body::Incoming),
}

impl Door {
    pub(super) fn new(
        acceptor: Option<Acceptor>,
        limits: Arc<ArcSwap<Limits>>,
        connections: Arc<Connections>,
        leashes: Arc<Leashes>,
        gateway: Arc<ArcSwap<Gateway>>,
        is_draining: Arc<AtomicBool>,
    ) -> Arc<Self> {
        let refusals = Arc::new(Semaphore::new(limits.load().refusals));
        Arc::new(Self { acceptor, limits, connections, leashes, gateway, is_draining, refusals })
    }

    /// Lets a connection in, or tells it that there are too many.
    pub(super) fn admit(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> Option<(TcpStream, Counted)> {
        let mut entered = self.connections.enter(peer.ip());
        // A connection to a backend that no request uses has the file descriptor that this one lacks.
        while matches!(entered, Err(Full::Descriptors)) && self.gateway.load().pool.close_idle() {
            entered = self.connections.enter(peer.ip());
        }
        let error = match entered {
            Ok(place) => return Some((stream, place)),
            Err(Full::All) => Error::Overloaded,
            Err(Full::Descriptors) => {
                self.connections.descriptors_ran_out();
                Error::Overloaded
            }
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
        mut closing: Closing,
    ) {
        let Some(stream) = self.shake_hands(stream, peer).await else { return };
        let (leash, limits) = (Leash::default(), **self.limits.load());
        let stream = Paced::new(stream, limits.write_timeout, leash.clone());
        let leashing = Leashing::new(self.leashes.clone(), leash);
        let guest = Guest { door: self, ip: peer.ip(), place, leashing };
        let shared = Shared::new(stream);
        let served = match spoken(&shared, &mut closing, limits.head_timeout).await {
            Ok(Some(Version::HTTP_2)) => {
                let Some(parts) = shared.into_parts() else { return };
                // Not boxed, it would have room here on each connection.
                let serving = Box::pin(http2::serve(&guest, parts, &limits, closing));
                serving.await.map_err(io::Error::other)
            }
            Ok(Some(_)) => http1::serve(&guest, shared, &limits, closing).await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            tracing::debug!(%peer, %error, "connection ended");
        }
    }

    async fn shake_hands(&self, stream: TcpStream, peer: SocketAddr) -> Option<Stream> {
        let Some(acceptor) = &self.acceptor else { return Some(Stream::Plain(stream)) };
        // Not boxed, it would have room here as long as the connection lives.
        let accepting = Box::pin(acceptor.accept(stream));
        let error = match tokio::time::timeout(self.limits.load().head_timeout, accepting).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "not in time".to_owned(),
        };
        self.connections.handshake_failed();
        tracing::debug!(%peer, error, "no TLS handshake");
        None
    }
}

/// Reads until it is known whether the client speaks HTTP/2 (RFC 9113, section 3.4). `None`: it has
/// left, or said nothing before the gateway ends.
async fn spoken(
    shared: &Shared,
    closing: &mut Closing,
    patience: Duration,
) -> io::Result<Option<Version>> {
    let reading = poll_fn(|cx| {
        let mut wire = shared.wire();
        loop {
            let ahead = wire.ahead();
            let same =
                PREFACE.iter().zip(ahead).take_while(|(ours, theirs)| ours == theirs).count();
            if same == PREFACE.len() {
                return Poll::Ready(Ok(Some(Version::HTTP_2)));
            }
            if same < ahead.len() {
                return Poll::Ready(Ok(Some(Version::HTTP_11)));
            }
            match wire.poll_more(cx)? {
                Poll::Ready(0) => return Poll::Ready(Ok(None)),
                Poll::Ready(_) => {}
                Poll::Pending if wire.ahead().is_empty() => {
                    return closing.poll(cx).map(|()| Ok(None));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    });
    let in_time = tokio::time::timeout(patience, reading).await;
    in_time.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

// === impl Guest ===

impl Guest {
    /// Has a request answered. It counts until what is given is dropped; `activity` is for a connection
    /// that has several at the same time.
    ///
    /// The request is on record when this returns, and nothing is done for it before its answer is
    /// waited for.
    pub(super) fn ask(
        &self,
        mut request: Request<Incoming>,
        activity: Option<&Arc<Activity>>,
    ) -> (Open, Pin<Box<impl Future<Output = Response<Answer>> + Send + use<>>>) {
        let open_request = self.place.request(activity.cloned());
        let peer = Peer { ip: self.ip, requests: open_request.number() };
        let gateway = self.door.gateway.load_full();
        let opened = catch_unwind(AssertUnwindSafe(|| open(&gateway, &peer, &mut request)));
        // In a box, its room is free again while the answer is sent, which may take long.
        (open_request, Box::pin(answer(gateway, peer, opened, request, self.leashing.clone())))
    }

    /// Runs the streams of an HTTP/2 connection.
    pub(super) fn leashing(&self) -> &Leashing {
        &self.leashing
    }

    /// Whether the gateway is about to end.
    pub(super) fn is_leaving(&self) -> bool {
        self.door.is_draining.load(Ordering::Relaxed)
    }
}

/// A panic ends one request, never the process.
async fn answer(
    gateway: Arc<Gateway>,
    peer: Peer,
    opened: thread::Result<Opened>,
    request: Request<Incoming>,
    leashing: Leashing,
) -> Response<Answer> {
    // Known only now that the stream runs.
    let leash = leashing.leash();
    let envelope = Envelope::of(request.uri().path());
    let response = match opened {
        Ok(opened) => {
            // It is large, and made where it stays: in the box around it, it would be copied.
            let handling = Box::pin(handle(&gateway, opened, leash, request));
            AssertUnwindSafe(handling).catch_unwind().await
        }
        Err(panic) => Err(panic),
    };
    response.unwrap_or_else(|_| {
        tracing::error!(ip = %peer.ip, "a request made the gateway panic");
        Error::Internal.response_in(envelope, None).map(Either::Left)
    })
}

/// Answers a connection before its request has come, and closes it. What comes meanwhile is read,
/// or the system would throw the answer away with it.
async fn refuse(mut stream: TcpStream, error: Error, _permit: OwnedSemaphorePermit) {
    let telling = async {
        stream.write_all(&http1::whole(&error)).await?;
        stream.shutdown().await?;
        let mut scrap = [0; 1_024];
        while stream.read(&mut scrap).await? > 0 {}
        Ok::<_, io::Error>(())
    };
    // Whoever does not listen is closed all the same.
    let _ = tokio::time::timeout(REFUSAL_LIMIT, telling).await;
}

// === impl Incoming ===

impl Body for Incoming {
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
