//! The state of KV events that all backends share: session ids, key spaces, and the followed
//! requests.

use super::key_space::{KeySpace, KeySpaces};
use crate::settings::KvEventsSettings;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard};
use tokenweir_kv_events::correlation::{RequestChains, RequestKey, SessionIds};
use tokenweir_protocol::mutex::lock;
use tokenweir_protocol::openai::Usage;
use tokenweir_routing::PromptFingerprint;
use tokio::sync::mpsc;

/// The knowledge about prompts and blocks from the KV events of all backends.
#[derive(Debug)]
pub struct CacheKnowledge {
    pub(crate) settings: KvEventsSettings,
    pub(crate) session_ids: SessionIds,
    pub(crate) spaces: KeySpaces,
    /// The engine blocks of followed requests in flight. Only background tasks lock the table, so
    /// that no request waits.
    chains: Mutex<RequestChains>,
    /// The queue of ended requests for the learner task. If the queue is full, further requests are
    /// dropped.
    pub(super) ended: mpsc::Sender<EndedRequest>,
    /// The receiving end of the queue `ended`. The learner task keeps it locked while it runs.
    pub(super) inbox: tokio::sync::Mutex<mpsc::Receiver<EndedRequest>>,
    pub(crate) next_backend: AtomicU32,
    /// The counts of followed requests. Background tasks and status pages lock them briefly. A
    /// request locks them only if the queue is full when the request ends.
    counts: Mutex<LearningCounts>,
}

/// The data that the learner needs about a followed request that has ended. A request is followed if the
/// gateway set its session id, so that KV events show which blocks the engine stored for the request.
#[derive(Debug)]
pub(crate) struct EndedRequest {
    pub(crate) key: RequestKey,
    /// The key space to which the hashes of the request's blocks belong.
    pub(crate) space: Arc<KeySpace>,
    /// Tokens in an engine block.
    pub(crate) block_size: u32,
    pub(crate) prompt: Arc<PromptFingerprint>,
    pub(crate) usage: Usage,
}

/// Number of followed requests, by whether the gateway learned from them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct LearningCounts {
    /// Requests whose blocks were aligned with their text.
    pub learned: u64,
    /// Requests without KV events, and requests whose blocks could not be assigned to their text with
    /// certainty.
    pub unlearned: u64,
    /// Requests that were dropped because the queue of the learner was full.
    pub dropped: u64,
}

/// Maximum number of ended requests that wait for the learner.
const INBOX_SIZE: usize = 4_096;

impl CacheKnowledge {
    /// Creates the state before the first KV event and the first request.
    pub fn new(settings: KvEventsSettings) -> Arc<Self> {
        let (ended, inbox) = mpsc::channel(INBOX_SIZE);
        Arc::new(Self {
            settings,
            session_ids: SessionIds::new(fastrand::u64(..)),
            spaces: KeySpaces::default(),
            chains: Mutex::default(),
            ended,
            inbox: tokio::sync::Mutex::new(inbox),
            next_backend: AtomicU32::new(0),
            counts: Mutex::default(),
        })
    }

    /// Locks the table of the engine blocks of followed requests in flight. Only background tasks
    /// call this.
    pub(crate) fn chains(&self) -> MutexGuard<'_, RequestChains> {
        lock(&self.chains)
    }

    pub(super) fn count_learned(&self, is_learned: bool) {
        let mut counts = lock(&self.counts);
        counts.learned += u64::from(is_learned);
        counts.unlearned += u64::from(!is_learned);
    }

    /// Gives an ended request to the learner. If its queue is full, the request is only counted.
    pub(crate) fn queue_ended(&self, ended: EndedRequest) {
        if self.ended.try_send(ended).is_err() {
            lock(&self.counts).dropped += 1;
        }
    }

    /// Number of followed requests, by whether the gateway learned from them.
    pub fn learning_counts(&self) -> LearningCounts {
        *lock(&self.counts)
    }
}
