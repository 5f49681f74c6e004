//! The way to a collector, for spans and for metrics: whom it must prove to be, and HTTP for an
//! exporter that lives on a thread of its own.

use super::otel::Protocol;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{HttpClient, HttpError};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_net::tls::{Alpn, ClientSettings, Connector, Identity, Outbound, TlsError};
use tokio::runtime::Handle;

/// HTTP over one connector.
pub(super) type Http = Client<Connector, Full<Bytes>>;

/// Longest answer that is read, in bytes.
pub(super) const MAX_ANSWER: usize = 64 << 10;

/// Longest wait for a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Who the gateway is, and believes, at a collector.
pub(super) fn outbound(
    security: &ClientSettings,
    protocol: Protocol,
) -> Result<Arc<Outbound>, TlsError> {
    let alpn = match protocol {
        Protocol::Grpc => Alpn::Http2,
        Protocol::HttpProtobuf => Alpn::Http1,
    };
    Ok(Outbound::new(Identity::new(security, alpn)?))
}

/// What makes connections to it.
pub(super) fn connector(outbound: &Arc<Outbound>) -> Connector {
    Connector::new(outbound.clone(), CONNECT_LIMIT)
}

/// An HTTP client over it.
pub(super) fn http(outbound: &Arc<Outbound>) -> Http {
    Client::builder(TokioExecutor::new()).build(connector(outbound))
}

/// Sends for a thread that has no runtime, on one that is there.
#[derive(Debug)]
pub(super) struct Sender {
    client: Http,
    runtime: Handle,
    limit: Duration,
}

impl Sender {
    /// `limit` is the longest wait for an answer.
    pub(super) fn new(outbound: &Arc<Outbound>, runtime: Handle, limit: Duration) -> Self {
        Self { client: http(outbound), runtime, limit }
    }
}

#[tonic::async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (client, limit) = (self.client.clone(), self.limit);
        let sending = async move {
            let response = client.request(request.map(Full::new)).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
            Ok::<_, HttpError>(Response::from_parts(head, body))
        };
        let sending = async move { tokio::time::timeout(limit, sending).await? };
        self.runtime.spawn(sending).await?
    }
}
