//! An HTTP client for one server, based on the HTTP client of the gateway.

use crate::facts::{GatherError, GatherResult, GatheredResponse, TargetKey};
use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_engine::address::{BackendAddress, MetricsUrl};
use tokenweir_net::backend_body::BackendResponse;
use tokenweir_net::client::{HttpClient, HttpClientTimeouts, SendError};
use tokenweir_net::connection::Connection;
use tokenweir_net::idle_pool::IdlePool;
use tokenweir_net::tls::OutboundTls;
use tokenweir_protocol::clock;

/// Maximum size of a response body, in bytes.
const MAX_RESPONSE_BYTES: usize = 16 << 20;

/// Time after which a [`ServerClient`] closes an idle connection.
const IDLE_CONNECTION_TIMEOUT: Duration = Duration::from_secs(1);

/// A backend from which facts are gathered.
#[derive(Debug, Clone)]
pub struct GatherTarget {
    /// The name of the backend in reports.
    pub id: String,
    /// The URL of the backend.
    pub url: BackendAddress,
    /// The URL of the metrics page. `None`: the page is at a known path of `url`.
    pub metrics_url: Option<MetricsUrl>,
    /// The API key of the backend.
    pub key: TargetKey,
}

/// Options of the requests with which the doctor gathers facts.
#[derive(Debug, Clone)]
pub struct GatherOptions {
    /// The TLS settings of connections.
    pub outbound: Arc<OutboundTls>,
    /// Time limit for each response.
    pub timeout: Duration,
    /// Time limit for the measurement of the idle timeout. Zero: no measurement.
    pub idle: Duration,
    /// Whether the probe is sent: a small streaming request that puts load on the engine.
    pub probe: bool,
}

/// An additional request header. `None`: no additional header.
pub type ExtraHeader = Option<(HeaderName, HeaderValue)>;

/// Sends requests to one server over reused connections.
#[derive(Debug, Clone)]
pub struct ServerClient {
    client: HttpClient,
    /// Idle connections to the server, for further requests.
    idle: IdlePool,
    url: BackendAddress,
    /// The value of the `Authorization` header. `None`: requests have no key.
    key: Option<HeaderValue>,
    /// Time limit for a complete response.
    timeout: Duration,
}

impl ServerClient {
    /// Creates a client for the server at `url`. The client sends `key` with each request.
    pub fn new(
        url: BackendAddress,
        key: TargetKey,
        outbound: Arc<OutboundTls>,
        timeout: Duration,
    ) -> Self {
        let timeouts = HttpClientTimeouts {
            connect: timeout,
            response_headers: timeout,
            idle_connection: IDLE_CONNECTION_TIMEOUT,
            ..HttpClientTimeouts::default()
        };
        let client = HttpClient::with_tls(timeouts, outbound);
        let key = match key {
            TargetKey::Known(key) => Some(key),
            TargetKey::None | TargetKey::Missing(_) => None,
        };
        Self {
            client,
            idle: IdlePool::default(),
            url,
            key,
            timeout,
        }
    }

    /// The URL of the server.
    pub fn url(&self) -> &BackendAddress {
        &self.url
    }

    /// A client for the server that sends no key and shares the connections of this client.
    pub(super) fn without_key(&self) -> Self {
        Self {
            key: None,
            ..self.clone()
        }
    }

    /// A client for the server that sends no key and has connections of its own.
    pub(super) fn on_new_connections(&self) -> Self {
        Self {
            idle: IdlePool::default(),
            ..self.without_key()
        }
    }

    /// Takes an idle connection to the server. `None`: no connection is idle. The usual reason is that the
    /// server closes each connection after its response.
    pub(super) fn take_idle_connection(&self) -> Option<Box<Connection>> {
        self.idle.take(&self.client.timeouts, clock::now())
    }

    /// Time limit for each complete response.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends `GET` for a path and reads the complete response.
    pub async fn get(&self, path: &str) -> GatherResult {
        self.request(Method::GET, path, None).await
    }

    /// Sends a request without a body and reads the complete response. One time limit covers both.
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        extra_header: ExtraHeader,
    ) -> GatherResult {
        let exchange = async {
            let start = clock::now();
            let sent_at = clock::wall_time();
            let (head, body) = self
                .send(method, path, extra_header, Bytes::new())
                .await?
                .into_parts();
            let received_at = clock::wall_time();
            let body = Limited::new(body, MAX_RESPONSE_BYTES)
                .collect()
                .await
                .map_err(|error| {
                    if error.is::<LengthLimitError>() {
                        return GatherError::TooLarge;
                    }
                    GatherError::Closed(error.to_string())
                })?;
            Ok(GatheredResponse {
                status: head.status,
                headers: head.headers,
                body: body.to_bytes(),
                sent_at,
                received_at,
                took: clock::now().saturating_duration_since(start),
            })
        };
        let answer = tokio::time::timeout(self.timeout, exchange).await;
        answer.unwrap_or(Err(GatherError::Timeout(self.timeout)))
    }

    /// Sends a request. Returns the response head and the unread body.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        extra_header: ExtraHeader,
        body: Bytes,
    ) -> Result<BackendResponse, GatherError> {
        let path: PathAndQuery = path
            .parse()
            .map_err(|_| GatherError::NotHttp(format!("invalid path: {path}")))?;
        let request = self.build_request(method, &path, extra_header, body);
        Ok(self.client.send(&self.idle, request).await?)
    }

    fn build_request(
        &self,
        method: Method,
        path: &PathAndQuery,
        extra_header: ExtraHeader,
        body: Bytes,
    ) -> Request<Bytes> {
        let has_body = !body.is_empty();
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = self.url.uri(path);
        let headers = request.headers_mut();
        headers.insert(HOST, self.url.host_header().clone());
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if has_body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        } else {
            // The gateway too requests metrics in this format. Servers ignore the header for other pages.
            let format = HeaderValue::from_static("text/plain; version=0.0.4");
            headers.insert(ACCEPT, format);
        }
        headers.extend(self.key.clone().map(|key| (AUTHORIZATION, key)));
        headers.extend(extra_header);
        request
    }
}

impl From<SendError> for GatherError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Connect(reason) if reason.starts_with("TLS") => Self::Tls(reason),
            SendError::Connect(reason) => Self::Connect(reason),
            SendError::StaleConnection { .. } => {
                Self::Closed("the connection had been closed".into())
            }
            SendError::Closed(reason) => Self::Closed(reason),
            SendError::RequestBody(error) => Self::Closed(error.to_string()),
            SendError::InvalidResponse(reason) => Self::NotHttp(reason),
            SendError::Timeout(limit) => Self::Timeout(limit),
            SendError::Exhausted(problem) => Self::Connect(problem),
        }
    }
}
