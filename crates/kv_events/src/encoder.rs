//! Writes batches of events in the encoding of vLLM since 0.30: events are maps, and hashes are numbers.

/// A KV event to publish, about blocks in the memory of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublishedEvent<'a> {
    /// Blocks were stored, each a child of the block before it.
    Stored(StoredBlocks<'a>),
    /// The block with this hash was removed.
    Removed(u64),
    /// All blocks were removed.
    AllCleared,
}

/// Blocks that an engine stored, each a child of the block before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBlocks<'a> {
    /// Hashes of the blocks, in the order of the prompt.
    pub hashes: Vec<u64>,
    /// Hash of the parent of the first block. `None`: the first block begins a prompt.
    pub parent: Option<u64>,
    /// The token ids of all blocks, in the order of the prompt.
    pub token_ids: Vec<u32>,
    /// Number of tokens in each block.
    pub block_size: u32,
    /// Session id of the request that stored the blocks. `None`: the request has none.
    pub session_id: Option<&'a str>,
}

const MEDIUM: &str = "GPU";

/// Encodes a batch: the KV events of one step of data-parallel rank 0. `unix_seconds`: the time of
/// the step.
pub fn encode_batch(unix_seconds: f64, events: &[PublishedEvent<'_>]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.array(3);
    writer.float(unix_seconds);
    writer.array(events.len());
    for event in events {
        writer.event(event);
    }
    writer.unsigned(0);
    writer.0
}

/// Writes `MessagePack` values, in only those formats that events need.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    /// Writes an event with the names, the values and the order of fields that vLLM uses.
    fn event(&mut self, event: &PublishedEvent<'_>) {
        match event {
            PublishedEvent::Stored(stored) => self.stored(stored),
            PublishedEvent::Removed(hash) => {
                self.event_head(4, "BlockRemoved");
                self.hashes(&[*hash]);
                self.text_member("medium", MEDIUM);
                self.number_member("group_idx", Some(0));
            }
            PublishedEvent::AllCleared => self.event_head(1, "AllBlocksCleared"),
        }
    }

    fn stored(&mut self, stored: &StoredBlocks<'_>) {
        self.event_head(10 + u8::from(stored.session_id.is_some()), "BlockStored");
        self.hashes(&stored.hashes);
        self.number_member("parent_block_hash", stored.parent);
        self.text("token_ids");
        self.array(stored.token_ids.len());
        for token in &stored.token_ids {
            self.unsigned(u64::from(*token));
        }
        self.number_member("block_size", Some(stored.block_size.into()));
        self.number_member("lora_id", None);
        self.text_member("medium", MEDIUM);
        self.number_member("lora_name", None);
        self.number_member("group_idx", Some(0));
        self.text_member("kv_cache_spec_kind", "full_attention");
        if let Some(session_id) = stored.session_id {
            self.text_member("session_id", session_id);
        }
    }

    /// Begins the map of an event with this number of members, including its type.
    fn event_head(&mut self, members: u8, kind: &str) {
        self.0.push(0x80 | members);
        self.text_member("type", kind);
    }

    fn hashes(&mut self, hashes: &[u64]) {
        self.text("block_hashes");
        self.array(hashes.len());
        for hash in hashes {
            self.unsigned(*hash);
        }
    }

    fn text_member(&mut self, name: &str, text: &str) {
        self.text(name);
        self.text(text);
    }

    fn number_member(&mut self, name: &str, number: Option<u64>) {
        self.text(name);
        match number {
            Some(number) => self.unsigned(number),
            None => self.0.push(0xc0),
        }
    }

    fn array(&mut self, length: usize) {
        self.0.push(0xdd);
        self.0.extend_from_slice(&(length as u32).to_be_bytes());
    }

    fn text(&mut self, text: &str) {
        self.0.push(0xda);
        self.0.extend_from_slice(&(text.len() as u16).to_be_bytes());
        self.0.extend_from_slice(text.as_bytes());
    }

    fn float(&mut self, number: f64) {
        self.0.push(0xcb);
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    fn unsigned(&mut self, number: u64) {
        let bytes = number.to_be_bytes();
        match number {
            0..=0x7f => self.0.extend_from_slice(&bytes[7..]),
            0x80..=0xffff => {
                self.0.push(0xcd);
                self.0.extend_from_slice(&bytes[6..]);
            }
            0x1_0000..=0xffff_ffff => {
                self.0.push(0xce);
                self.0.extend_from_slice(&bytes[4..]);
            }
            _ => {
                self.0.push(0xcf);
                self.0.extend_from_slice(&bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::{EventBatch, KvEvent};

    #[test]
    fn the_decoder_reads_what_the_encoder_wrote() {
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
        let read: Vec<KvEvent<'_>> = batch.collect::<Result<_, _>>().unwrap();
        let [
            KvEvent::Removed(removed),
            KvEvent::Stored(first),
            KvEvent::Stored(second),
            end,
        ] = read[..]
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
