//! The part of the data exchange with other gateways that requests use: they put their load changes into
//! a bounded queue.

use crate::messages::bus::{BusSettings, ScriptRunner};
use crate::messages::{BackendBacklog, ExchangeKey, Receiver, SentPrompt, SessionId};
use crate::status::{PeerCounters, PeerExchangeStatus};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use tokenweir_diagnose::GatewayConditions;
use tokenweir_gateway::backend::facets::{BackendFacet, LoadChange, PoolFacet};
use tokenweir_option::DiagnosisHooks;
use tokenweir_protocol::mutex::lock;
use tokio::sync::{mpsc, watch};

/// The data exchange with other gateways.
#[derive(Debug)]
pub struct PeerExchange {
    /// The connection to the message bus.
    pub(crate) bus: BusSettings,
    /// The key that all gateways before the same backends share.
    pub key: ExchangeKey,
    /// Runs scripts at the server. `None`: the gateway is not connected.
    pub(crate) scripts: watch::Sender<Option<ScriptRunner>>,
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

/// The exchange as a part of a pool and of each of its backends.
#[derive(Debug, Clone)]
pub struct ExchangeFacet(pub Arc<PeerExchange>);

impl BackendFacet for ExchangeFacet {
    /// Enqueues a report to the other gateways: the prompt tokens of this gateway that the backend must still
    /// compute, and the prompt that the gateway sent to it. Never waits.
    fn on_load_change(&self, change: &LoadChange<'_>) {
        let backend = change.backend;
        let decision = Decision {
            backlog: BackendBacklog {
                backend,
                pending_tokens: change.estimator.local_load().backlog,
            },
            prompt: change
                .prompt
                .cloned()
                .map(|prompt| SentPrompt { backend, prompt }),
        };
        if self.0.decisions.try_send(decision).is_err() {
            self.0.counters.dropped_decisions.add(1);
        }
    }
}

impl PoolFacet for ExchangeFacet {
    fn prompt_seed(&self, model: Option<&str>, salt: Option<&str>) -> Option<u64> {
        Some(self.0.key.prompt_seed(model, salt))
    }
}

impl DiagnosisHooks for PeerExchange {
    fn complete_conditions(&self, gateway: &mut GatewayConditions, now: Instant) {
        gateway.connected_gateways = self.status(now).peers as u64;
    }
}

/// Maximum number of decisions that wait for the exchange task. Further decisions are dropped.
const QUEUE_SIZE: usize = 1_024;

impl PeerExchange {
    /// An exchange without a connection. The task connects it to the message bus.
    pub fn new(bus: BusSettings, key: ExchangeKey) -> Arc<Self> {
        let (decisions, queue) = mpsc::channel(QUEUE_SIZE);
        let receiver = Receiver::new(key.clone(), SessionId::default());
        Arc::new(Self {
            bus,
            key,
            scripts: watch::Sender::new(None),
            counters: PeerCounters::default(),
            receiver: Mutex::new(receiver),
            decisions,
            queue: tokio::sync::Mutex::new(queue),
        })
    }

    /// The runner of scripts at the server, over the connection of the exchange. `None`: the gateway is not
    /// connected.
    pub fn scripts(&self) -> watch::Receiver<Option<ScriptRunner>> {
        self.scripts.subscribe()
    }

    pub(crate) fn receiver(&self) -> MutexGuard<'_, Receiver> {
        lock(&self.receiver)
    }

    /// The counters and the state of the exchange at `now`.
    pub fn status(&self, now: Instant) -> PeerExchangeStatus {
        self.counters.status(self.receiver().ages(now))
    }
}
