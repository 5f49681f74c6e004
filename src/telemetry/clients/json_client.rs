//! HTTP client for quality judges: posts a JSON object and reads a JSON object from
//! the response.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use serde::de::DeserializeOwned;
use tokenweir_net::client::{HttpClient, HttpClientTimeouts};
use tokenweir_net::idle_pool::IdlePool;

/// A client that posts JSON objects to one URL.
pub(in crate::telemetry) struct JsonHttpClient {
    url: Uri,
    host: HeaderValue,
    client: HttpClient,
    idle: IdlePool,
    /// Longest response body that is read, in bytes.
    max_response_bytes: usize,
}

impl JsonHttpClient {
    /// Creates a client for this URL. `None`: the URL is invalid or has no host.
    pub(in crate::telemetry) fn new(url: &str, max_response_bytes: usize) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let host = HeaderValue::from_str(uri.authority()?.as_str()).ok()?;
        let client = HttpClient::new(HttpClientTimeouts::default());
        Some(Self { url: uri, host, client, idle: IdlePool::default(), max_response_bytes })
    }

    /// Posts `body` and parses the response. `None`: the request failed, the status is not 200, or
    /// the body is too long or not valid. The caller must set a timeout.
    pub(in crate::telemetry) async fn post_json<T: DeserializeOwned>(
        &self,
        body: Vec<u8>,
    ) -> Option<T> {
        let request = Request::post(self.url.clone())
            .header(HOST, &self.host)
            .header(CONTENT_TYPE, "application/json")
            .body(Bytes::from(body));
        let response = self.client.send(&self.idle, request.ok()?).await.ok()?;
        if response.status() != StatusCode::OK {
            return None;
        }
        let body =
            Limited::new(response.into_body(), self.max_response_bytes).collect().await.ok()?;
        serde_json::from_slice(&body.to_bytes()).ok()
    }
}
