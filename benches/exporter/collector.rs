//! A collector of spans with selectable faults. It accepts OTLP over gRPC and counts the spans by
//! walking the message: field 1 has the resources, their field 2 the scopes, and their field 2 the
//! spans.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The behaviour of the collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    /// Accepts exports.
    Takes,
    /// The port is closed.
    Down,
    /// Accepts connections, reads, and never responds.
    Hangs,
    /// Responds with 503.
    Refuses,
    /// Closes the connection on every export.
    Closes,
}

/// A running collector.
pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    health: watch::Sender<Health>,
    spans: Arc<AtomicU64>,
}

// === impl Collector ===

impl Collector {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (health, changes) = watch::channel(Health::Takes);
        let spans = Arc::new(AtomicU64::new(0));
        tokio::spawn(live(listener, address, changes, spans.clone()));
        Self { address, health, spans }
    }

    /// Changes the behaviour. Every change closes the connections.
    pub(crate) fn set(&self, health: Health) {
        self.health.send_replace(health);
    }

    /// Number of accepted spans.
    pub(crate) fn spans(&self) -> u64 {
        self.spans.load(Ordering::Relaxed)
    }
}

async fn live(
    listener: TcpListener,
    address: SocketAddr,
    mut changes: watch::Receiver<Health>,
    spans: Arc<AtomicU64>,
) {
    let mut listener = Some(listener);
    loop {
        let health = *changes.borrow_and_update();
        let mut connections = JoinSet::new();
        if health == Health::Down {
            listener = None;
        }
        let changed = async {
            let Some(listener) = &listener else { return std::future::pending().await };
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, health, spans.clone()));
            }
        };
        tokio::select! {
            () = changed => return,
            result = changes.changed() => if result.is_err() { return },
        }
        if listener.is_none() {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_reuseaddr(true).unwrap();
            socket.bind(address).unwrap();
            listener = Some(socket.listen(128).unwrap());
        }
    }
}

async fn serve(stream: TcpStream, health: Health, spans: Arc<AtomicU64>) {
    let service = service_fn(move |request| {
        let spans = spans.clone();
        async move { answer(request, health, &spans).await }
    });
    let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    // An error means a disconnected client, or an intended disconnect.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

/// The error that makes the server close the connection.
#[derive(Debug, thiserror::Error)]
#[error("closed")]
struct Closed;

async fn answer(
    request: Request<Incoming>,
    health: Health,
    spans: &AtomicU64,
) -> Result<Response<impl hyper::body::Body<Data = Bytes, Error = Infallible> + use<>>, Closed> {
    let body = request.into_body().collect().await.map_err(|_| Closed)?.to_bytes();
    let mut response = Response::new(Full::new(Bytes::new()).with_trailers(trailers()));
    match health {
        Health::Takes => {
            // The gRPC prefix of the message: one compression byte and four length bytes.
            spans.fetch_add(count(&body[5..], &[1, 2, 2]), Ordering::Relaxed);
            *response.body_mut() = Full::new(Bytes::from_static(&[0; 5])).with_trailers(trailers());
            let grpc = HeaderValue::from_static("application/grpc");
            response.headers_mut().insert("content-type", grpc);
        }
        Health::Refuses => *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE,
        Health::Hangs => std::future::pending().await,
        Health::Closes | Health::Down => return Err(Closed),
    }
    Ok(response)
}

fn trailers() -> std::future::Ready<Option<Result<HeaderMap, Infallible>>> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    std::future::ready(Some(Ok(trailers)))
}

/// Number of messages at a path of field numbers. All fields on the path are messages.
fn count(mut message: &[u8], path: &[u64]) -> u64 {
    let Some((first, rest)) = path.split_first() else { return 1 };
    let mut message_count = 0;
    while !message.is_empty() {
        let tag = varint(&mut message);
        let length = match tag & 7 {
            0 => {
                varint(&mut message);
                0
            }
            1 => 8,
            2 => varint(&mut message) as usize,
            5 => 4,
            other => unreachable!("wire type {other}"),
        };
        let (value, after) = message.split_at(length);
        message = after;
        if tag >> 3 == *first && tag & 7 == 2 {
            message_count += count(value, rest);
        }
    }
    message_count
}

/// Decodes a varint: seven bits per byte, the lowest first; the eighth bit means that another byte
/// follows.
fn varint(message: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first().unwrap();
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}
