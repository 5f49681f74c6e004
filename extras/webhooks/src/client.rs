//! Posts bodies to one URL. Other options that deliver to a URL use the same client.

use super::settings::WebhookEndpoint;
use bytes::Bytes;
use http::Request;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http_body_util::{BodyExt, Limited};
use std::time::Duration;
use tokenweir_net::client::{HttpClient, HttpClientTimeouts, SendError};
use tokenweir_net::idle_pool::IdlePool;
use tokenweir_net::tls::{Alpn, OutboundTls};

/// The client of one URL, with its own connections.
pub struct WebhookClient {
    pub(super) endpoint: WebhookEndpoint,
    client: HttpClient,
    idle: IdlePool,
}

/// Timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of a response body, in bytes. The body is read only so that the connection can be
/// reused.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

impl WebhookClient {
    /// Creates the client of a URL.
    pub fn new(endpoint: WebhookEndpoint) -> Self {
        let outbound = OutboundTls::with_native_roots(Alpn::Http1);
        let client = HttpClient::with_tls(HttpClientTimeouts::default(), outbound);
        Self {
            endpoint,
            client,
            idle: IdlePool::default(),
        }
    }

    /// Posts a body. The error states why the server did not accept it, without the path of the URL.
    pub async fn post(&self, content_type: &'static str, body: Bytes) -> Result<(), String> {
        let posted = tokio::time::timeout(TIMEOUT, self.send(content_type, body)).await;
        let late = format!("its response was not complete within {TIMEOUT:?}");
        posted.unwrap_or(Err(late))
    }

    async fn send(&self, content_type: &'static str, body: Bytes) -> Result<(), String> {
        let WebhookEndpoint {
            address,
            path,
            authorization,
        } = &self.endpoint;
        let mut request = Request::post(address.uri(path))
            .header(HOST, address.host_header())
            .header(CONTENT_TYPE, content_type);
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(body).map_err(|_| "the request is invalid")?;
        let response = self.client.send(&self.idle, request).await;
        let response = response.map_err(|error| match error {
            SendError::Connect(problem) => format!("cannot connect: {problem}"),
            error => format!("no response: {}", error.reason()),
        })?;
        let status = response.status();
        // The body is read only so that the connection can be reused.
        let _ = Limited::new(response.into_body(), MAX_RESPONSE_BYTES)
            .collect()
            .await;
        if status.is_success() {
            Ok(())
        } else {
            Err(format!("it responded with status {status}"))
        }
    }
}
