//! KV events: after each step, publishes the changes of the prefix cache of one engine as vLLM does.

use std::convert::Infallible;
use std::time::UNIX_EPOCH;

use serde_json::json;
use tokenweir_kv_events::encoder::{PublishedEvent, StoredBlocks, encode_batch};
use tokenweir_kv_events::zmtp::Publisher;
use tokenweir_protocol::clock;
use tokio::net::TcpListener;

use crate::engine::{CacheChange, StoredBlock};

#[derive(Debug)]
pub(crate) struct KvEventPublisher {
    publisher: Publisher,
    block_size: u32,
    ports: KvEventPorts,
}

/// The ports at which the KV events of one engine are published.
#[derive(Debug, Clone, Copy)]
pub struct KvEventPorts {
    /// Port at which the engine publishes new messages.
    pub live: u16,
    /// Port at which the engine replays earlier messages.
    pub replay: u16,
}

/// The data about the request of a sequence that KV events contain.
#[derive(Debug, Default)]
pub(crate) struct SequenceOrigin {
    /// The session id in the request. `None`: the request has no session id.
    pub(crate) session_id: Option<String>,
    /// The token ids of the prompt, and then of the output. Empty if the simulated engine publishes no KV
    /// events.
    pub(crate) token_ids: Vec<u32>,
}

impl KvEventPublisher {
    /// A publisher of an engine with blocks of `block_size` tokens.
    pub(crate) fn new(block_size: u32, ports: KvEventPorts) -> Self {
        Self {
            publisher: Publisher::new(String::new()),
            block_size,
            ports,
        }
    }

    pub(crate) fn ports(&self) -> KvEventPorts {
        self.ports
    }

    pub(crate) fn sources(&self) -> String {
        let source = json!({
            "enable_kv_cache_events": true,
            "publisher": "zmq",
            "endpoint": format!("tcp://*:{}", self.ports.live),
            "replay_endpoint": format!("tcp://*:{}", self.ports.replay),
            "buffer_steps": tokenweir_kv_events::zmtp::BUFFER_MESSAGES,
            "topic": "",
        });
        json!({ "0": source }).to_string()
    }

    /// Serves subscribers until the future is dropped.
    pub(crate) async fn serve(&self, live: TcpListener, replay: TcpListener) -> Infallible {
        self.publisher.serve(live, replay).await
    }

    /// Publishes the changes that a step made to the prefix cache. `origin` returns the data about the request
    /// of a sequence, or `None` if the sequence has ended.
    pub(crate) fn publish<'a>(
        &self,
        changes: &[CacheChange],
        origin: impl Fn(u64) -> Option<&'a SequenceOrigin>,
    ) {
        if changes.is_empty() {
            return;
        }
        let events: Vec<PublishedEvent<'_>> = changes
            .chunk_by(is_one_event)
            .map(|changes| self.event(changes, &origin))
            .collect();
        let now = clock::wall_time()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        self.publisher
            .publish(encode_batch(now.as_secs_f64(), &events));
    }

    /// The KV event of `changes`: several stored blocks, or one change of another kind.
    fn event<'a>(
        &self,
        changes: &[CacheChange],
        origin: impl Fn(u64) -> Option<&'a SequenceOrigin>,
    ) -> PublishedEvent<'a> {
        let first = match changes[0] {
            CacheChange::Stored(block) => block,
            CacheChange::Removed(hash) => return PublishedEvent::Removed(hash),
            CacheChange::Cleared => return PublishedEvent::AllCleared,
        };
        let origin = origin(first.sequence);
        let tokens = origin
            .map(|origin| &origin.token_ids[..])
            .unwrap_or_default();
        let start = first.index * self.block_size as usize;
        let count = changes.len() * self.block_size as usize;
        let mut token_ids: Vec<u32> = tokens.iter().skip(start).take(count).copied().collect();
        // The tokens of an aborted sequence, and the stop token, which has no text, are unknown. They become 0.
        token_ids.resize(count, 0);
        PublishedEvent::Stored(StoredBlocks {
            hashes: changes
                .iter()
                .filter_map(stored)
                .map(|block| block.hash)
                .collect(),
            parent: first.parent,
            token_ids,
            block_size: self.block_size,
            session_id: origin.and_then(|origin| origin.session_id.as_deref()),
        })
    }
}

fn stored(change: &CacheChange) -> Option<&StoredBlock> {
    match change {
        CacheChange::Stored(block) => Some(block),
        _ => None,
    }
}

/// Whether one event can contain both changes: `next` stores the block that follows the block of `change`.
fn is_one_event(change: &CacheChange, next: &CacheChange) -> bool {
    stored(change)
        .zip(stored(next))
        .is_some_and(|(block, next)| {
            block.sequence == next.sequence && next.parent == Some(block.hash)
        })
}
