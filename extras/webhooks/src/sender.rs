//! Posts messages to one webhook, in their order.

use super::settings::RetryTimes;
use bytes::Bytes;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tokenweir_net::client::receiver::{Receiver, ReceiverClient};
use tokenweir_protocol::limits::push_bounded;
use tokenweir_protocol::mutex::lock;
use tokio::sync::Notify;

/// Sends messages to one webhook: the queue of messages, and the results of earlier requests.
pub(super) struct WebhookSender {
    pub(super) client: ReceiverClient,
    retries: RetryTimes,
    state: Mutex<SenderState>,
    added: Notify,
}

/// The messages for a webhook that it has not accepted, and the results of earlier messages.
#[derive(Debug, Clone, Default)]
pub(super) struct SenderState {
    /// The message that is being sent. A sender with other settings sends it again.
    sending: Option<Bytes>,
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

impl WebhookSender {
    /// Creates the sender of one webhook. `state`: the messages and results of the sender with the
    /// previous settings.
    pub(super) fn new(endpoint: Receiver, retries: RetryTimes, mut state: SenderState) -> Self {
        endpoint
            .address
            .authority()
            .clone_into(&mut state.status.webhook);
        let client = ReceiverClient::new(endpoint);
        Self {
            client,
            retries,
            state: Mutex::new(state),
            added: Notify::new(),
        }
    }

    /// Returns the messages that the webhook has not accepted, and the results of earlier messages.
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
            match self.next() {
                Some(message) => self.deliver(message).await,
                None => self.added.notified().await,
            }
        }
    }

    /// The message to send now.
    fn next(&self) -> Option<Bytes> {
        let mut state = lock(&self.state);
        if state.sending.is_none() {
            state.sending = state.waiting.pop_front();
        }
        state.sending.clone()
    }

    /// Sends a message until the webhook accepts it, in at most `max_requests` tries.
    async fn deliver(&self, message: Bytes) {
        let RetryTimes {
            max_requests,
            first_pause,
        } = self.retries;
        let mut pause = first_pause;
        for number in 1.. {
            let result = self.client.post("application/json", message.clone()).await;
            let is_last = result.is_ok() || number >= max_requests;
            self.record(result, is_last);
            if is_last {
                return;
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }

    /// Stores the result of a request. Counts its message as accepted, or after the last request
    /// for it as failed. Logs the first of several consecutive failures, and the first success
    /// after a failure.
    fn record(&self, result: Result<(), String>, is_last: bool) {
        let error = result.err();
        let mut state = lock(&self.state);
        if is_last {
            state.sending = None;
        }
        match &error {
            None => state.status.ok += 1,
            Some(_) => state.status.failed += u64::from(is_last),
        }
        let previous = std::mem::replace(&mut state.status.error, error.clone());
        drop(state);
        let webhook = self.client.receiver().address.authority();
        match (previous, error) {
            (None, Some(error)) => {
                tracing::warn!(
                    webhook,
                    error,
                    "a webhook does not accept messages: trying again"
                );
            }
            (Some(_), None) => tracing::info!(webhook, "the webhook accepts messages again"),
            _ => {}
        }
    }
}
