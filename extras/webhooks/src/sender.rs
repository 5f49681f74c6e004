//! Posts messages to one webhook, in their order.

use super::settings::{RetryTimes, WebhookEndpoint};
use bytes::Bytes;
use http::Request;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http_body_util::{BodyExt, Limited};
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokenweir_net::client::{HttpClient, HttpClientTimeouts, SendError};
use tokenweir_net::idle_pool::IdlePool;
use tokenweir_net::tls::{Alpn, OutboundTls};
use tokenweir_protocol::limits::push_bounded;
use tokenweir_protocol::mutex::lock;
use tokio::sync::Notify;

/// Sends messages to one webhook: the queue of messages, and the results of earlier requests.
pub(super) struct WebhookSender {
    pub(super) endpoint: WebhookEndpoint,
    retries: RetryTimes,
    client: HttpClient,
    idle: IdlePool,
    state: Mutex<SenderState>,
    added: Notify,
}

/// The messages that wait to be sent to a webhook, and the results of earlier messages.
#[derive(Debug, Clone, Default)]
pub(super) struct SenderState {
    waiting: VecDeque<Bytes>,
    pub(super) status: WebhookStatus,
}

/// The state of the requests to one webhook.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct WebhookStatus {
    /// Host and port of the URL of the webhook. The path is left out, because it can be a secret.
    pub webhook: String,
    /// Number of messages that the webhook accepted.
    pub ok: u64,
    /// Number of messages that the webhook did not accept, or that did not fit into the queue.
    pub failed: u64,
    /// Why the webhook did not accept the last request. `None`: the webhook accepted the request, or no
    /// request was sent.
    pub error: Option<String>,
}

/// Maximum number of messages that wait for one webhook. A further message displaces the oldest one.
const MAX_WAITING: usize = 100;
/// Timeout of one request to a webhook.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of a response body of a webhook, in bytes. The body is read only so that the
/// connection can be reused.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

impl WebhookSender {
    /// Creates the sender of one webhook. `state`: the messages and results of the sender with the
    /// previous settings.
    pub(super) fn new(
        endpoint: WebhookEndpoint,
        retries: RetryTimes,
        mut state: SenderState,
    ) -> Self {
        endpoint.address.authority().clone_into(&mut state.status.webhook);
        let outbound = OutboundTls::with_native_roots(Alpn::Http1);
        let client = HttpClient::with_tls(HttpClientTimeouts::default(), outbound);
        Self {
            endpoint,
            retries,
            client,
            idle: IdlePool::default(),
            state: Mutex::new(state),
            added: Notify::new(),
        }
    }

    /// Returns the messages that wait to be sent, and the results of earlier messages.
    pub(super) fn state(&self) -> SenderState {
        lock(&self.state).clone()
    }

    /// Adds a message to the queue of the webhook. Does not wait.
    pub(super) fn push(&self, message: Bytes) {
        let mut state = lock(&self.state);
        let replaced = push_bounded(&mut state.waiting, message, MAX_WAITING);
        state.status.failed += u64::from(replaced.is_some());
        drop(state);
        self.added.notify_one();
    }

    /// Sends the queued messages to the webhook until the future is dropped.
    pub(super) async fn run(self: Arc<Self>) {
        loop {
            let next = lock(&self.state).waiting.pop_front();
            match next {
                Some(message) => self.deliver(message).await,
                None => self.added.notified().await,
            }
        }
    }

    /// Sends a message until the webhook accepts it, in at most `max_requests` tries.
    async fn deliver(&self, message: Bytes) {
        let RetryTimes { max_requests, first_pause } = self.retries;
        let mut pause = first_pause;
        for number in 1.. {
            let result = tokio::time::timeout(TIMEOUT, self.post(message.clone())).await;
            let late = format!("its response was not complete within {TIMEOUT:?}");
            let result = result.unwrap_or(Err(late));
            let is_last = result.is_ok() || number >= max_requests;
            self.record(result, is_last);
            if is_last {
                return;
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }

    /// Posts a message. The error states why the webhook did not accept it, without the path of the URL.
    async fn post(&self, message: Bytes) -> Result<(), String> {
        let WebhookEndpoint { address, path, authorization } = &self.endpoint;
        let mut request = Request::post(address.uri(path))
            .header(HOST, address.host_header())
            .header(CONTENT_TYPE, "application/json");
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(message).map_err(|_| "the request is invalid")?;
        let response = self.client.send(&self.idle, request).await;
        let response = response.map_err(|error| match error {
            SendError::Connect(problem) => format!("cannot connect: {problem}"),
            error => format!("no response: {}", error.reason()),
        })?;
        let status = response.status();
        // The body is read only so that the connection can be reused.
        let _ = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
        if status.is_success() { Ok(()) } else { Err(format!("it responded with status {status}")) }
    }

    /// Stores the result of a request. Counts its message as accepted, or after the last request
    /// for it as failed. Logs the first of several consecutive failures, and the first success
    /// after a failure.
    fn record(&self, result: Result<(), String>, is_last: bool) {
        let error = result.err();
        let mut state = lock(&self.state);
        match &error {
            None => state.status.ok += 1,
            Some(_) => state.status.failed += u64::from(is_last),
        }
        let previous = std::mem::replace(&mut state.status.error, error.clone());
        drop(state);
        let webhook = self.endpoint.address.authority();
        match (previous, error) {
            (None, Some(error)) => {
                tracing::warn!(webhook, error, "a webhook does not accept messages: trying again");
            }
            (Some(_), None) => tracing::info!(webhook, "the webhook accepts messages again"),
            _ => {}
        }
    }
}
