//! The counters and the state of the data exchange with other gateways.

use crate::messages::Rejection;
use serde::Serialize;
use std::sync::Mutex;
use std::time::Duration;
use tokenweir_protocol::atomic::AtomicCounter;
use tokenweir_protocol::mutex::lock;

/// The state of the exchange with other gateways, for metrics and status. `None`: `peer_exchange` is not configured.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PeerExchangeStatus {
    /// Whether the gateway is connected to the message bus.
    pub connected: bool,
    /// Why the gateway is not connected. `None`: the gateway is connected, or has not tried yet.
    pub error: Option<String>,
    /// Number of other gateways that sent a message within the last 5 s.
    pub peers: usize,
    /// Age of the newest message of another gateway. `None`: no message was received for a minute.
    pub newest_message_seconds: Option<f64>,
    /// Number of messages by result: sent, failed, received, or the reason why a received message
    /// was refused.
    pub messages: Vec<(&'static str, u64)>,
    /// Number of decisions by result. A decision is a change of the load that a gateway puts on a backend.
    pub decisions: Vec<(&'static str, u64)>,
    /// Total size of the published messages, in bytes.
    pub sent_bytes: u64,
}

/// Counters of the data exchange with other gateways.
#[derive(Debug, Default)]
pub(crate) struct PeerCounters {
    pub(crate) sent_messages: AtomicCounter,
    pub(crate) sent_bytes: AtomicCounter,
    /// Messages that could not be published.
    pub(crate) failed_messages: AtomicCounter,
    pub(crate) received_messages: AtomicCounter,
    /// Received messages that were refused, by reason, in the order of [`Rejection::ALL`].
    rejected_messages: [AtomicCounter; Rejection::ALL.len()],
    pub(crate) sent_decisions: AtomicCounter,
    /// Decisions that were not sent, because the queue was full or there was no connection to the
    /// message bus.
    pub(crate) dropped_decisions: AtomicCounter,
    pub(crate) received_decisions: AtomicCounter,
    /// Prompts and backlogs of other gateways for backends that this gateway does not have.
    pub(crate) unknown_backends: AtomicCounter,
    /// The result of the last connection attempt, with the reason of a failure. `None`: no attempt has ended.
    connection: Mutex<Option<Result<(), String>>>,
}

/// Maximum age of the last message of another gateway that counts as present.
const PRESENT_WITHIN: Duration = Duration::from_secs(5);

impl PeerExchangeStatus {
    /// Returns all results that a message can have, sent or received, in the order of
    /// [`Self::messages`].
    pub fn message_results() -> Vec<&'static str> {
        let rejections = Rejection::ALL.into_iter().map(Rejection::as_str);
        ["sent", "failed", "received"]
            .into_iter()
            .chain(rejections)
            .collect()
    }

    /// All results that a decision (a load change) can have, in the order of [`Self::decisions`].
    pub const DECISION_RESULTS: [&'static str; 4] =
        ["sent", "dropped", "received", "unknown_backend"];
}

impl PeerCounters {
    /// Counts a received message that was refused. Returns whether it is the first one with this reason.
    pub(crate) fn reject(&self, reason: Rejection) -> bool {
        self.rejected_messages[reason as usize].add(1) == 0
    }

    /// Sets the state of the connection to the message bus. Returns whether the connection was made or
    /// lost.
    pub(crate) fn set_connection(&self, state: Result<(), String>) -> bool {
        let mut connection = lock(&self.connection);
        let has_changed = connection
            .as_ref()
            .is_none_or(|known| known.is_ok() != state.is_ok());
        *connection = Some(state);
        has_changed
    }

    /// Returns the counters and the state of the exchange. `ages`: the age of the last message of
    /// each other gateway.
    pub(crate) fn status(&self, ages: impl Iterator<Item = Duration>) -> PeerExchangeStatus {
        let ages: Vec<Duration> = ages.collect();
        let connection = lock(&self.connection).clone();
        let messages = [
            &self.sent_messages,
            &self.failed_messages,
            &self.received_messages,
        ];
        let messages = messages
            .into_iter()
            .chain(&self.rejected_messages)
            .map(AtomicCounter::get);
        let decisions = [
            &self.sent_decisions,
            &self.dropped_decisions,
            &self.received_decisions,
            &self.unknown_backends,
        ];
        let decisions = decisions.map(AtomicCounter::get);
        PeerExchangeStatus {
            connected: connection.as_ref().is_some_and(Result::is_ok),
            error: connection.and_then(Result::err),
            peers: ages.iter().filter(|age| **age <= PRESENT_WITHIN).count(),
            newest_message_seconds: ages.iter().min().map(Duration::as_secs_f64),
            messages: PeerExchangeStatus::message_results()
                .into_iter()
                .zip(messages)
                .collect(),
            decisions: PeerExchangeStatus::DECISION_RESULTS
                .into_iter()
                .zip(decisions)
                .collect(),
            sent_bytes: self.sent_bytes.get(),
        }
    }
}
