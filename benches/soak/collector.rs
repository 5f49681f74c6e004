//! A collector of spans. It accepts OTLP over gRPC and counts spans by their field numbers in the protobuf
//! message: field 1 has the resources, field 2 of a resource the scopes, and field 2 of a scope the spans.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::TcpListener;

/// A running collector.
pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    spans: Arc<AtomicU64>,
}

impl Collector {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let spans = Arc::new(AtomicU64::new(0));
        tokio::spawn(accept(listener, spans.clone()));
        Self { address, spans }
    }

    /// Number of spans that the collector has accepted.
    pub(crate) fn spans(&self) -> u64 {
        self.spans.load(Ordering::Relaxed)
    }
}

async fn accept(listener: TcpListener, spans: Arc<AtomicU64>) {
    while let Ok((stream, _)) = listener.accept().await {
        let spans = spans.clone();
        let service = service_fn(move |request| {
            let spans = spans.clone();
            async move { answer(request, &spans).await }
        });
        let http = http2::Builder::new(TokioExecutor::new());
        // An error means that the client disconnected.
        tokio::spawn(
            async move { drop(http.serve_connection(TokioIo::new(stream), service).await) },
        );
    }
}

async fn answer(
    request: Request<Incoming>,
    spans: &AtomicU64,
) -> Result<Response<impl hyper::body::Body<Data = Bytes, Error = Infallible> + use<>>, hyper::Error>
{
    let body = request.into_body().collect().await?.to_bytes();
    // The gRPC prefix of the message: one compression byte and four length bytes.
    spans.fetch_add(count(&body[5..], &[1, 2, 2]), Ordering::Relaxed);
    let mut response =
        Response::new(Full::new(Bytes::from_static(&[0; 5])).with_trailers(trailers()));
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert("content-type", grpc);
    Ok(response)
}

fn trailers() -> std::future::Ready<Option<Result<HeaderMap, Infallible>>> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    std::future::ready(Some(Ok(trailers)))
}

/// The number of messages at a path of protobuf field numbers. All fields on the path must be messages.
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

/// Decodes a varint of protobuf: each byte has seven bits of the number, the lowest first. Its eighth bit
/// says that another byte follows.
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
