//! The HTTP client of the span export to an OTLP collector: TLS settings, connections, and an adapter for
//! exporters that run outside the async runtime.

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{HttpClient, HttpError};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_net::tls::{
    Alpn, Connector, OutboundTls, TlsClientContext, TlsClientSettings, TlsError,
};
use tokio::runtime::Handle;

/// Maximum length of a response body of the collector, in bytes. A longer body is an error.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// Maximum wait for a connection to the collector.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Creates the TLS settings of connections to a collector: the client certificate of the gateway,
/// the accepted CA certificates, and the HTTP version.
pub(super) fn outbound(
    security: &TlsClientSettings,
    alpn: Alpn,
) -> Result<Arc<OutboundTls>, TlsError> {
    Ok(OutboundTls::new(TlsClientContext::new(security, alpn)?))
}

pub(super) fn connector(outbound: &Arc<OutboundTls>) -> Connector {
    Connector::new(outbound.clone(), CONNECT_TIMEOUT)
}

/// Sends the requests of an exporter on a tokio runtime. The exporter itself runs on a thread outside the
/// runtime.
#[derive(Debug)]
pub(super) struct OtlpHttpSender {
    client: Client<Connector, Full<Bytes>>,
    runtime: Handle,
    timeout: Duration,
}

impl OtlpHttpSender {
    /// Creates a sender that uses `runtime`. `timeout`: the maximum wait for a complete response.
    pub(super) fn new(outbound: &Arc<OutboundTls>, runtime: Handle, timeout: Duration) -> Self {
        let client = Client::builder(TokioExecutor::new()).build(connector(outbound));
        Self {
            client,
            runtime,
            timeout,
        }
    }
}

#[tonic::async_trait]
impl HttpClient for OtlpHttpSender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let timeout = self.timeout;
        let response = async move {
            let response = client.request(request.map(Full::new)).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_RESPONSE_BYTES)
                .collect()
                .await?
                .to_bytes();
            Ok::<_, HttpError>(Response::from_parts(head, body))
        };
        // The SDK keeps only the status of a failed request. So a collector that is too slow is reported as
        // status 504, which the SDK retries like a missing response.
        let response = async move {
            let late = || {
                let mut late = Response::new(Bytes::new());
                *late.status_mut() = StatusCode::GATEWAY_TIMEOUT;
                Ok(late)
            };
            tokio::time::timeout(timeout, response)
                .await
                .unwrap_or_else(|_| late())
        };
        self.runtime.spawn(response).await?
    }
}
