//! A collector of spans. It accepts OTLP over gRPC and counts the spans.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::TcpListener;

/// The message `ExportTraceServiceRequest`. These messages have only the fields that contain spans.
#[derive(prost::Message)]
struct Exported {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<ResourceSpans>,
}

#[derive(prost::Message)]
struct ResourceSpans {
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<ScopeSpans>,
}

#[derive(prost::Message)]
struct ScopeSpans {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(prost::Message)]
struct Span {}

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
    spans.fetch_add(count(&body[5..]), Ordering::Relaxed);
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

/// The number of spans in a message.
fn count(message: &[u8]) -> u64 {
    let exported = Exported::decode(message).unwrap();
    let scopes = exported.resources.iter().flat_map(|resource| &resource.scopes);
    scopes.map(|scope| scope.spans.len() as u64).sum()
}
