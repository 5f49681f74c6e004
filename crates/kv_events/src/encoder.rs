//! Writes batches of events in the encoding of vLLM since 0.30: maps, hashes as numbers.

use serde::Serialize;

/// An event to publish, of a cache in the memory of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublishedEvent<'a> {
    /// Blocks were stored, each a child of the block before it.
    Stored(StoredBlocks<'a>),
    /// The block with this hash was removed.
    Removed(u64),
    /// All blocks were removed.
    AllCleared,
}

/// Stored blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBlocks<'a> {
    /// Hashes of the blocks.
    pub hashes: Vec<u64>,
    /// Hash of the block before the first one. `None`: the first one begins a prompt.
    pub parent: Option<u64>,
    /// The tokens of the blocks.
    pub token_ids: Vec<u32>,
    /// Tokens in a block.
    pub block_size: u32,
    /// Session of the request that stored the blocks.
    pub session_id: Option<&'a str>,
}

/// An event with the names and values of vLLM, in the order of vLLM.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
enum EncodedEvent<'a> {
    BlockStored {
        block_hashes: &'a [u64],
        parent_block_hash: Option<u64>,
        token_ids: &'a [u32],
        block_size: u32,
        lora_id: Option<u64>,
        medium: &'static str,
        lora_name: Option<&'static str>,
        group_idx: u32,
        kv_cache_spec_kind: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        session_id: Option<&'a str>,
    },
    BlockRemoved {
        block_hashes: [u64; 1],
        medium: &'static str,
        group_idx: u32,
    },
    AllBlocksCleared,
}

const MEDIUM: &str = "GPU";

impl<'a> EncodedEvent<'a> {
    fn new(event: &'a PublishedEvent<'_>) -> Self {
        match event {
            PublishedEvent::Stored(stored) => Self::BlockStored {
                block_hashes: &stored.hashes,
                parent_block_hash: stored.parent,
                token_ids: &stored.token_ids,
                block_size: stored.block_size,
                lora_id: None,
                medium: MEDIUM,
                lora_name: None,
                group_idx: 0,
                kv_cache_spec_kind: "full_attention",
                session_id: stored.session_id,
            },
            PublishedEvent::Removed(hash) => {
                Self::BlockRemoved { block_hashes: [*hash], medium: MEDIUM, group_idx: 0 }
            }
            PublishedEvent::AllCleared => Self::AllBlocksCleared,
        }
    }
}

/// The payload of the events of one step of data-parallel rank 0, at a time in Unix seconds.
pub fn encode_batch(unix_seconds: f64, events: &[PublishedEvent<'_>]) -> Vec<u8> {
    let events: Vec<EncodedEvent<'_>> = events.iter().map(EncodedEvent::new).collect();
    // These types have no value that cannot be written. An empty payload would count as damaged.
    rmp_serde::to_vec_named(&(unix_seconds, events, 0)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::{EventBatch, KvEvent};

    #[test]
    fn the_decoder_reads_the_written_events() {
        let stored = |parent, session_id| {
            PublishedEvent::Stored(StoredBlocks {
                hashes: vec![u64::MAX, 7],
                parent,
                token_ids: vec![1, 300, 70_000, 2],
                block_size: 2,
                session_id,
            })
        };
        let written = [
            PublishedEvent::Removed(9),
            stored(None, None),
            stored(Some(7), Some("tw.1")),
            PublishedEvent::AllCleared,
        ];
        let payload = encode_batch(1.5, &written);
        let batch = EventBatch::parse(&payload).unwrap();
        let read: Vec<KvEvent<'_>> = batch.events().collect::<Result<_, _>>().unwrap();
        let [KvEvent::Removed(removed), KvEvent::Stored(first), KvEvent::Stored(second), end] =
            read[..]
        else {
            panic!("{read:?}")
        };
        assert_eq!(removed.block_hashes.iter().collect::<Vec<_>>(), [9]);
        assert_eq!(first.block_hashes.iter().collect::<Vec<_>>(), [u64::MAX, 7]);
        for (stored, parent, session_id) in [(first, None, None), (second, Some(7), Some("tw.1"))] {
            assert_eq!((stored.parent, stored.session_id), (parent, session_id));
            assert_eq!((stored.block_size, stored.group), (2, Some(0)));
        }
        assert_eq!(end, KvEvent::AllCleared);
    }
}
