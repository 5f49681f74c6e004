//! Fetches small pages from a backend for health checks and scrapes.
//!
//! All fetches share one connection and one buffer. The calling task reads from the connection itself, so a
//! fetch wakes no other task.

use crate::backend_body::{BackendBody, BackendResponse};
use crate::client::{HttpClient, SendError};
use crate::connection::Connection;
use crate::file_descriptors::FileDescriptorPermit;
use crate::idle_pool::IdlePool;
use bytes::{Buf, Bytes};
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HOST};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use std::time::Duration;
use tokenweir_engine::address::BackendAddress;
use tokenweir_engine::engine_metrics::ScrapeError;
use tokenweir_protocol::clock;

/// Fetches pages from one backend for health checks and scrapes.
pub struct PageFetcher {
    client: HttpClient,
    address: BackendAddress,
    /// The headers of every request.
    headers: HeaderMap,
    /// Timeout for a complete response.
    timeout: Duration,
    /// Maximum size of a page, in bytes.
    max_page_bytes: usize,
    /// The connection of the last fetch, if it is reusable.
    idle: IdlePool,
    /// The body of the last page.
    page_buffer: Vec<u8>,
    /// Whether the last fetch opened a connection.
    has_connected: bool,
}

/// The body and the additional header of a POST request.
#[derive(Debug, Clone)]
pub struct PagePost {
    /// The body, in JSON. It may be empty.
    pub body: Bytes,
    /// An additional header of this request only.
    pub header: Option<(HeaderName, HeaderValue)>,
}

/// Maximum buffer capacity that is kept between fetches, in bytes. Metrics pages of engines are smaller.
const MAX_RETAINED_BUFFER_BYTES: usize = 1 << 20;

/// Why the fetch of a page failed.
#[derive(Debug)]
pub enum FetchError {
    /// The gateway has no file descriptor or port for a connection.
    Exhausted(String),
    /// The TCP connection or the TLS handshake failed.
    Connect(String),
    /// The backend closed the connection before the response head, or sent invalid HTTP.
    Closed,
    /// The backend closed the connection before the end of the body.
    Truncated,
    /// The response was not complete within the timeout.
    Timeout {
        /// Whether the backend accepted a connection meanwhile. An idle connection does not show that it still does.
        has_connected: bool,
    },
    /// The body is larger than the maximum page size.
    TooLarge,
    /// The response is compressed although the request accepts only `identity`.
    UnexpectedEncoding,
}

impl FetchError {
    /// The error as a text for operators.
    pub fn describe(&self) -> String {
        match self {
            Self::Timeout {
                has_connected: true,
            } => "timeout: the backend accepts connections and does not respond: its \
                  process is stopped, still loads, or waits for its engine"
                .to_owned(),
            Self::Timeout {
                has_connected: false,
            } => "timeout: no answer: its process is stopped, or its machine cannot be reached"
                .to_owned(),
            error => format!("{error:?}"),
        }
    }
}

impl PageFetcher {
    /// Creates a fetcher for the pages of one backend. `timeout` limits the duration of each fetch.
    /// `max_page_bytes` limits the size of each body. `authorization`: the value of the `Authorization` header.
    /// `None`: the header is not sent.
    pub fn new(
        client: HttpClient,
        address: BackendAddress,
        authorization: Option<&HeaderValue>,
        timeout: Duration,
        max_page_bytes: usize,
    ) -> Self {
        let mut headers = HeaderMap::with_capacity(4);
        headers.insert(HOST, address.host_header().clone());
        // The fetcher requests the Prometheus text format, because some servers rename their metrics in
        // OpenMetrics.
        headers.insert(
            ACCEPT,
            HeaderValue::from_static("text/plain; version=0.0.4"),
        );
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(key) = authorization {
            headers.insert(AUTHORIZATION, key.clone());
        }
        Self {
            client,
            address,
            headers,
            timeout,
            max_page_bytes,
            idle: IdlePool::default(),
            page_buffer: Vec::new(),
            has_connected: false,
        }
    }

    /// Requests pages of this media type instead of the text format of metrics.
    #[must_use]
    pub fn accepting(mut self, media_type: HeaderValue) -> Self {
        self.headers.insert(ACCEPT, media_type);
        self
    }

    /// Fetches a page by its path. Returns the response status and the body.
    pub async fn get(&mut self, path: &'static str) -> Result<(StatusCode, &[u8]), FetchError> {
        self.fetch(&PathAndQuery::from_static(path), None).await
    }

    /// Sends a POST. Returns the response status and the body. If the backend has closed the idle connection,
    /// the request is sent twice.
    pub async fn post(
        &mut self,
        path: &'static str,
        post: &PagePost,
    ) -> Result<(StatusCode, &[u8]), FetchError> {
        self.fetch(&PathAndQuery::from_static(path), Some(post))
            .await
    }

    /// Sends a GET, or the POST `post`. Returns the response status and the body.
    pub async fn fetch(
        &mut self,
        path: &PathAndQuery,
        post: Option<&PagePost>,
    ) -> Result<(StatusCode, &[u8]), FetchError> {
        let idle = self.idle.take(&self.client.timeouts, clock::now());
        // The wait for a file descriptor has a timeout of its own, so it does not shorten the time that the
        // backend has to respond.
        let descriptor = match idle {
            Some(_) => None,
            None => Some(self.client.acquire_probe_descriptor(self.timeout).await?),
        };
        let timeout = self.timeout;
        self.has_connected = false;
        let sending = self.send_with_reconnect(path, post, idle, descriptor);
        let result = tokio::time::timeout(timeout, sending).await;
        if !self.client.descriptors.has_capacity_for_probes() {
            self.idle.close_oldest();
        }
        let has_connected = self.has_connected;
        let status = result.unwrap_or(Err(FetchError::Timeout { has_connected }))?;
        Ok((status, &self.page_buffer))
    }

    /// Sends the request on the idle connection and reads the response. If the backend has closed this
    /// connection, sends the request on a new one. A connection whose response was not read to the end is
    /// closed.
    async fn send_with_reconnect(
        &mut self,
        path: &PathAndQuery,
        post: Option<&PagePost>,
        idle: Option<Box<Connection>>,
        descriptor: Option<FileDescriptorPermit>,
    ) -> Result<StatusCode, FetchError> {
        let response = match idle {
            // An error can mean that the backend has closed the idle connection, so a new connection follows.
            Some(connection) => self.send(connection, path, post).await.ok(),
            None => None,
        };
        let response = if let Some(response) = response {
            response
        } else {
            let descriptor = match descriptor {
                Some(descriptor) => descriptor,
                // The failed connection has returned its descriptor, so no wait is necessary.
                None => self.client.acquire_probe_descriptor(Duration::ZERO).await?,
            };
            let root = self.address.uri(&PathAndQuery::from_static("/"));
            let stream = self.client.connect(root).await?.into_inner();
            self.has_connected = true;
            self.send(Connection::new(stream, descriptor), path, post)
                .await?
        };
        if has_content_encoding(&response) {
            return Err(FetchError::UnexpectedEncoding);
        }
        let status = response.status();
        read_body(
            response.into_body(),
            &mut self.page_buffer,
            self.max_page_bytes,
        )
        .await?;
        Ok(status)
    }

    async fn send(
        &self,
        connection: Box<Connection>,
        path: &PathAndQuery,
        post: Option<&PagePost>,
    ) -> Result<BackendResponse, SendError> {
        let mut request = Request::new(Bytes::new());
        *request.uri_mut() = http::Uri::from(self.address.path(path));
        request.headers_mut().clone_from(&self.headers);
        if let Some(PagePost { body, header }) = post {
            *request.method_mut() = Method::POST;
            *request.body_mut() = body.clone();
            request
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            request.headers_mut().extend(header.clone());
        }
        connection.send(request, None, &self.idle).await
    }
}

/// Reads a body into the buffer `page`. Fails, and stops reading, if the body is longer than `max_bytes`.
async fn read_body(
    mut body: BackendBody,
    page: &mut Vec<u8>,
    max_bytes: usize,
) -> Result<(), FetchError> {
    page.clear();
    // Pages of more than 1 MiB are rare, so the capacity of a larger buffer is not kept.
    page.shrink_to(MAX_RETAINED_BUFFER_BYTES);
    let is_too_large = |length: u64| length > max_bytes as u64;
    if is_too_large(body.size_hint().lower()) {
        return Err(FetchError::TooLarge);
    }
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| FetchError::Truncated)?.into_data() else {
            continue;
        };
        if is_too_large((page.len() + data.remaining()) as u64) {
            // The memory of an oversized page is freed.
            *page = Vec::new();
            return Err(FetchError::TooLarge);
        }
        page.extend_from_slice(&data);
    }
    Ok(())
}

fn has_content_encoding(response: &Response<BackendBody>) -> bool {
    let encoding = response.headers().get(CONTENT_ENCODING);
    encoding.is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

impl From<SendError> for FetchError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Connect(reason) => Self::Connect(reason),
            SendError::Exhausted(problem) => Self::Exhausted(problem),
            SendError::Timeout(_) => Self::Timeout {
                has_connected: true,
            },
            SendError::StaleConnection { .. }
            | SendError::RequestBody(_)
            | SendError::Closed(_)
            | SendError::InvalidResponse(_) => Self::Closed,
        }
    }
}

impl From<FetchError> for ScrapeError {
    fn from(failure: FetchError) -> Self {
        match failure {
            FetchError::Connect(_) | FetchError::Closed => Self::Connect,
            FetchError::Exhausted(_) => Self::Exhausted,
            FetchError::Truncated => Self::Truncated,
            FetchError::Timeout { .. } => Self::Timeout,
            FetchError::TooLarge => Self::TooLarge,
            FetchError::UnexpectedEncoding => Self::Encoded,
        }
    }
}
