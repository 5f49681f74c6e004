//! One question to a server over the gateway's own client, and its whole answer.

use super::{Plan, Target};
use crate::facts::{Answer, Asked, Key, Silence};
use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::time::Duration;
use tokenweir_core::address::Address;
use tokenweir_core::clock;
use tokenweir_net::client::{Client, Limits, SendError};
use tokenweir_net::connection::ReplicaBody;
use tokenweir_net::idle::Idle;

/// Longest answer that is read, in bytes.
const MAX: usize = 16 << 20;

/// A header that a question has besides the usual ones.
pub type More = Option<(HeaderName, HeaderValue)>;

/// Asks one server.
#[derive(Debug, Clone)]
pub struct Asker {
    client: Client,
    /// Connections that wait for the next question.
    idle: Idle,
    url: Address,
    key: Option<HeaderValue>,
    timeout: Duration,
}

impl Asker {
    /// For a server that is asked now and then.
    pub fn to(target: &Target, plan: &Plan) -> Self {
        let limits = Limits { connect: plan.timeout, headers: plan.timeout, ..Limits::default() };
        let client = Client::with_tls(limits, plan.outbound.clone());
        Self::new(client, target, plan.timeout)
    }

    pub(super) fn new(client: Client, target: &Target, timeout: Duration) -> Self {
        let key = match &target.key {
            Key::Known(key) => Some(key.clone()),
            Key::None | Key::Missing(_) => None,
        };
        Self { client, idle: Idle::default(), url: target.url.clone(), key, timeout }
    }

    /// The same for somebody without a key.
    pub(super) fn without_key(&self) -> Self {
        Self { key: None, ..self.clone() }
    }

    /// Longest wait for an answer.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Where it asks.
    pub(super) fn target(&self) -> &Address {
        &self.url
    }

    /// Gets a path.
    pub async fn get(&self, path: &str) -> Asked {
        self.ask(Method::GET, path, None).await
    }

    /// Asks for a path, without a body.
    pub async fn ask(&self, method: Method, path: &str, more: More) -> Asked {
        let asked = async {
            let begun = (clock::now(), clock::wall());
            let (head, body) = self.send(method, path, more, Bytes::new()).await?.into_parts();
            let headed = clock::wall();
            let body = Limited::new(body, MAX).collect().await.map_err(|error| {
                if error.is::<LengthLimitError>() {
                    return Silence::TooLarge;
                }
                Silence::Closed(error.to_string())
            })?;
            Ok(Answer {
                status: head.status,
                headers: head.headers,
                body: body.to_bytes(),
                clock: [begun.1, headed],
                took: clock::now().saturating_duration_since(begun.0),
            })
        };
        let answer = tokio::time::timeout(self.timeout, asked).await;
        answer.unwrap_or(Err(Silence::Timeout(self.timeout)))
    }

    /// Sends a request and gives the head of its answer. That a kept connection had been closed
    /// says nothing.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        more: More,
        body: Bytes,
    ) -> Result<Response<ReplicaBody>, Silence> {
        let path: PathAndQuery =
            path.parse().map_err(|_| Silence::NotHttp(format!("no path: {path}")))?;
        let request = || self.request(method.clone(), &path, more.clone(), body.clone());
        let mut sent = self.client.send(&self.idle, request()).await;
        if matches!(sent, Err(SendError::Stale { .. })) {
            sent = self.client.send(&self.idle, request()).await;
        }
        Ok(sent?)
    }

    fn request(
        &self,
        method: Method,
        path: &PathAndQuery,
        more: More,
        body: Bytes,
    ) -> Request<Bytes> {
        let is_document = !body.is_empty();
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = self.url.uri(path);
        let headers = request.headers_mut();
        headers.insert(HOST, self.url.host_header().clone());
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        // As the gateway asks for metrics; other pages are what they are.
        headers.insert(ACCEPT, HeaderValue::from_static("text/plain; version=0.0.4"));
        if is_document {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        headers.extend(self.key.clone().map(|key| (AUTHORIZATION, key)));
        headers.extend(more);
        request
    }
}

impl From<SendError> for Silence {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Connect(reason) if reason.starts_with("TLS") => Self::Tls(reason),
            SendError::Connect(reason) => Self::Connect(reason),
            SendError::Stale { .. } => Self::Closed("the connection had been closed".into()),
            SendError::Closed(reason) => Self::Closed(reason),
            SendError::Garbage(reason) => Self::NotHttp(reason),
            SendError::Timeout(limit) => Self::Timeout(limit),
            SendError::Exhausted(problem) => Self::Connect(problem),
        }
    }
}
