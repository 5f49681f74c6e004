//! The part of the data exchange with other gateways that requests use: they put their load changes into
//! a bounded queue.

use super::status::{PeerCounters, PeerExchangeStatus, add};
use crate::backend::facets::{BackendFacet, LoadChange};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use tokenweir_peers::bus::BusSettings;
use tokenweir_peers::{BackendBacklog, ExchangeKey, Receiver, SentPrompt, SessionId};
use tokenweir_protocol::mutex::lock;
use tokenweir_routing::PromptFingerprint;
use tokio::sync::mpsc;

/// Where the message bus is, and the key that the gateways share.
#[derive(Debug, Clone)]
pub struct PeerExchangeSettings {
    /// The connection to the message bus.
    pub bus: BusSettings,
    /// The key that all gateways before the same backends share.
    pub key: ExchangeKey,
}

/// The data exchange with other gateways.
#[derive(Debug)]
pub struct PeerExchange {
    pub(crate) settings: PeerExchangeSettings,
    pub(crate) counters: PeerCounters,
    /// The state of the received messages. Only background tasks and the status lock it, never a
    /// request.
    receiver: Mutex<Receiver>,
    decisions: mpsc::Sender<Decision>,
    /// The decisions that wait for the exchange task. The task holds the lock while it runs.
    pub(crate) queue: tokio::sync::Mutex<mpsc::Receiver<Decision>>,
}

/// A change of the load that this gateway puts on a backend.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) backlog: BackendBacklog,
    /// The prompt that was sent. `None`: the first output of a request arrived, or a request ended.
    pub(crate) prompt: Option<SentPrompt>,
}

/// The exchange as an optional part of a backend.
#[derive(Debug, Default)]
pub(crate) struct ExchangeFacet {
    /// The exchange of the pool. `None`: the backend is in no pool, or the pool has no exchange.
    pub(crate) exchange: Option<Arc<PeerExchange>>,
}

impl BackendFacet for ExchangeFacet {
    fn on_load_change(&self, change: &LoadChange<'_>) {
        if let Some(exchange) = &self.exchange {
            let pending_tokens = change.estimator.local_load().backlog;
            exchange.enqueue(change.backend, pending_tokens, change.prompt);
        }
    }
}

/// Maximum number of decisions that wait for the exchange task. Further decisions are dropped.
const QUEUE_SIZE: usize = 1_024;

impl PeerExchange {
    /// An exchange without a connection. `drivers/exchange.rs` connects it to the message bus.
    pub fn new(settings: PeerExchangeSettings) -> Arc<Self> {
        let (decisions, queue) = mpsc::channel(QUEUE_SIZE);
        let receiver = Receiver::new(settings.key.clone(), SessionId::default());
        Arc::new(Self {
            settings,
            counters: PeerCounters::default(),
            receiver: Mutex::new(receiver),
            decisions,
            queue: tokio::sync::Mutex::new(queue),
        })
    }

    /// The seed of the hashes of a prompt for `model` with the `cache_salt` `salt`, which all gateways share.
    pub(crate) fn prompt_seed(&self, model: Option<&str>, salt: Option<&str>) -> u64 {
        self.settings.key.prompt_seed(model, salt)
    }

    /// Enqueues a report to the other gateways: the prompt tokens of this gateway that a backend must
    /// still compute, and the prompt that the gateway sent to it. `backend`: the hash of the backend's
    /// name. Never waits.
    fn enqueue(&self, backend: u64, pending_tokens: u64, prompt: Option<&Arc<PromptFingerprint>>) {
        let decision = Decision {
            backlog: BackendBacklog { backend, pending_tokens },
            prompt: prompt.map(|prompt| SentPrompt { backend, prompt: prompt.clone() }),
        };
        if self.decisions.try_send(decision).is_err() {
            add(&self.counters.dropped_decisions, 1);
        }
    }

    pub(crate) fn receiver(&self) -> MutexGuard<'_, Receiver> {
        lock(&self.receiver)
    }

    /// The counters and the state of the exchange at `now`.
    pub fn status(&self, now: Instant) -> PeerExchangeStatus {
        self.counters.status(self.receiver().ages(now))
    }
}
