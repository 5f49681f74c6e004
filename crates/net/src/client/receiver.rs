//! Posts bodies to one URL that the operator configured: a webhook, or a receiver of events.

use super::{HttpClient, HttpClientTimeouts, SendError};
use crate::idle_pool::IdlePool;
use crate::tls::{Alpn, OutboundTls};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::uri::PathAndQuery;
use http::{HeaderValue, Request};
use http_body_util::{BodyExt, Limited};
use std::fmt;
use std::time::Duration;
use tokenweir_engine::address::BackendAddress;

/// The URL and the token of a receiver. `Debug` shows only the host, because the path can be a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Receiver {
    /// Scheme, host and port of the URL.
    pub address: BackendAddress,
    /// Path and query of the URL, which may contain a secret.
    pub path: PathAndQuery,
    /// The value of the `Authorization` header. `None`: the header is not sent.
    pub authorization: Option<HeaderValue>,
}

/// The client of one receiver, with its own connections.
pub struct ReceiverClient {
    receiver: Receiver,
    client: HttpClient,
    idle: IdlePool,
}

const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of a response body, in bytes. The body is read only so that the connection can be
/// reused.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Receiver({})", self.address.authority())
    }
}

impl ReceiverClient {
    /// Creates the client of a receiver.
    pub fn new(receiver: Receiver) -> Self {
        let outbound = OutboundTls::with_native_roots(Alpn::Http1);
        let client = HttpClient::with_tls(HttpClientTimeouts::default(), outbound);
        Self {
            receiver,
            client,
            idle: IdlePool::default(),
        }
    }

    /// The URL and the token with which the client was created.
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// Posts a body. The error states why the server did not accept the body, and does not contain the path of
    /// the URL.
    pub async fn post(&self, content_type: &'static str, body: Bytes) -> Result<(), String> {
        let posted = tokio::time::timeout(TIMEOUT, self.send(content_type, body)).await;
        let late = format!("its response was not complete within {TIMEOUT:?}");
        posted.unwrap_or(Err(late))
    }

    async fn send(&self, content_type: &'static str, body: Bytes) -> Result<(), String> {
        let Receiver {
            address,
            path,
            authorization,
        } = &self.receiver;
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
