//! Gets small pages from a replica, over one connection and into one buffer, both kept from page to
//! page. The task that asks also drives the connection, so a page wakes nobody else.

use crate::client::{Client, SendError};
use crate::descriptors::WatchDescriptor;
use crate::tls::Stream;
use bytes::{Buf, Bytes};
use futures_util::future::{Either, select};
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, HOST};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::pin::pin;
use std::time::{Duration, Instant};
use tokenweir_core::address::Address;
use tokenweir_core::clock;
use tokenweir_core::signals::ScrapeError;

/// Asks one replica.
pub struct Fetcher {
    client: Client,
    address: Address,
    /// Those of every request.
    headers: HeaderMap,
    /// Longest wait for a whole answer.
    timeout: Duration,
    /// Longest page, in bytes.
    max_page: usize,
    kept: Option<Connection>,
    page: Vec<u8>,
}

struct Connection {
    sender: http1::SendRequest<Empty<Bytes>>,
    driver: http1::Connection<TokioIo<Stream>, Empty<Bytes>>,
    /// When it last carried an answer.
    used: Instant,
    /// Its file descriptor.
    _descriptor: WatchDescriptor,
}

/// Room that is kept from page to page: metrics of an engine take less.
const MOST_KEPT: usize = 1 << 20;

/// Why there is no whole answer.
#[derive(Debug)]
pub enum Failure {
    /// The gateway has no file descriptor or port for a connection.
    Exhausted(String),
    /// No connection.
    Connect(String),
    /// It closed before the head of an answer, or sent something else.
    Closed,
    /// It closed in the middle of the body.
    Truncated,
    /// Not in time.
    Timeout,
    /// Longer than the limit.
    TooLarge,
    /// Compressed, which was not asked for.
    Encoded,
}

impl Fetcher {
    /// A fetcher for the pages of one backend. `timeout` bounds each fetch; `max_page` bounds its
    /// body, in bytes.
    pub fn new(
        client: Client,
        address: Address,
        authorization: Option<&HeaderValue>,
        timeout: Duration,
        max_page: usize,
    ) -> Self {
        let mut headers = HeaderMap::with_capacity(4);
        headers.insert(HOST, address.host_header().clone());
        // OpenMetrics makes some servers rename their metrics.
        headers.insert(ACCEPT, HeaderValue::from_static("text/plain; version=0.0.4"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(key) = authorization {
            headers.insert(AUTHORIZATION, key.clone());
        }
        Self { client, address, headers, timeout, max_page, kept: None, page: Vec::new() }
    }

    /// How long an unused connection is kept.
    pub fn idle(&self) -> Duration {
        self.client.idle()
    }

    /// The status and the body of a path.
    pub async fn get(&mut self, path: &'static str) -> Result<(StatusCode, &[u8]), Failure> {
        // The wait for a file descriptor is not the backend's time.
        let is_fresh = self.kept.as_ref().is_some_and(|kept| self.is_fresh(kept));
        let mut descriptor = None;
        if !is_fresh {
            self.kept = None;
            descriptor = Some(self.client.watch_descriptor(self.timeout).await?);
        }
        let answer = tokio::time::timeout(self.timeout, self.get_slowly(path, descriptor)).await;
        let status = answer.unwrap_or(Err(Failure::Timeout))?;
        Ok((status, &self.page))
    }

    fn is_fresh(&self, kept: &Connection) -> bool {
        clock::now().saturating_duration_since(kept.used) < self.idle()
    }

    /// A connection that fails is not kept, and neither is one whose answer is not waited for.
    async fn get_slowly(
        &mut self,
        path: &'static str,
        descriptor: Option<WatchDescriptor>,
    ) -> Result<StatusCode, Failure> {
        if let Some(kept) = self.kept.take() {
            match self.exchange(kept, path).await {
                // The replica may have closed it meanwhile.
                Err(Failure::Closed) => {}
                answer => return answer,
            }
        }
        let descriptor = match descriptor {
            Some(descriptor) => descriptor,
            // That of the connection that failed is free again.
            None => self.client.watch_descriptor(Duration::ZERO).await?,
        };
        let connection = self.connect(descriptor).await?;
        self.exchange(connection, path).await
    }

    async fn connect(&self, descriptor: WatchDescriptor) -> Result<Connection, Failure> {
        let root = self.address.uri(&PathAndQuery::from_static("/"));
        let stream = self.client.connect(root).await?;
        let handshake = http1::Builder::new().handshake(stream).await;
        let (sender, driver) = handshake.map_err(|_| Failure::Closed)?;
        Ok(Connection { sender, driver, used: clock::now(), _descriptor: descriptor })
    }

    async fn exchange(
        &mut self,
        mut connection: Connection,
        path: &'static str,
    ) -> Result<StatusCode, Failure> {
        let Connection { sender, driver, .. } = &mut connection;
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = http::Uri::from_static(path);
        request.headers_mut().clone_from(&self.headers);
        let answer = async {
            sender.ready().await.map_err(|_| Failure::Closed)?;
            let response = sender.send_request(request).await.map_err(|_| Failure::Closed)?;
            let status = response.status();
            if is_encoded(&response) {
                return Err(Failure::Encoded);
            }
            read(response.into_body(), &mut self.page, self.max_page).await?;
            Ok(status)
        };
        let (answer, is_open) = match select(driver, pin!(answer)).await {
            Either::Right((answer, _)) => (answer, true),
            // It has ended, and with it whatever the answer waits for.
            Either::Left((_, answer)) => (answer.await, false),
        };
        connection.used = clock::now();
        let is_kept = is_open && answer.is_ok() && self.client.keeps_watching();
        self.kept = is_kept.then_some(connection);
        answer
    }
}

/// Puts a body into a buffer. What is left unread of one that is too long closes its connection.
async fn read(mut body: Incoming, page: &mut Vec<u8>, most: usize) -> Result<(), Failure> {
    page.clear();
    // A list of thousands of models is read seldom.
    page.shrink_to(MOST_KEPT);
    let is_too_large = |length: u64| length > most as u64;
    if is_too_large(body.size_hint().lower()) {
        return Err(Failure::TooLarge);
    }
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Failure::Truncated)?.into_data() else { continue };
        if is_too_large((page.len() + data.remaining()) as u64) {
            // No replica keeps the memory of one long page.
            *page = Vec::new();
            return Err(Failure::TooLarge);
        }
        page.extend_from_slice(&data);
    }
    Ok(())
}

fn is_encoded(response: &Response<Incoming>) -> bool {
    let encoding = response.headers().get(CONTENT_ENCODING);
    encoding.is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Connect(reason) => Self::Connect(reason),
            SendError::Exhausted(problem) => Self::Exhausted(problem),
            SendError::Timeout(_) => Self::Timeout,
            SendError::Stale { .. } | SendError::Closed(_) | SendError::Garbage(_) => Self::Closed,
        }
    }
}

impl From<Failure> for ScrapeError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Connect(_) | Failure::Closed => Self::Connect,
            Failure::Exhausted(_) => Self::Exhausted,
            Failure::Truncated => Self::Truncated,
            Failure::Timeout => Self::Timeout,
            Failure::TooLarge => Self::TooLarge,
            Failure::Encoded => Self::Encoded,
        }
    }
}
