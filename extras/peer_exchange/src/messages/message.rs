//! The content of a message, before encryption. All numbers are little-endian.
//!
//! ```text
//! sent_at: u64 (ms since 1970)   block_bytes: u32
//! count: u16   count × (backend: u64, pending tokens: u64)
//! count: u16   count × (backend: u64, count: u16, count × block: u64)
//! ```

use bytes::Buf;
use std::sync::Arc;
use tokenweir_routing::PromptFingerprint;

/// The content of a message of one gateway.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PeerMessage {
    /// Time of sending, in milliseconds since 1970.
    pub sent_at_millis: u64,
    /// The backlogs of the sending gateway that changed since its last message.
    pub backlogs: Vec<BackendBacklog>,
    /// The prompts that the sending gateway sent to backends since its last message.
    pub prompts: Vec<SentPrompt>,
}

/// The backlog of one gateway at one backend: the prompt tokens that the backend has not computed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendBacklog {
    /// Hash of the name of the backend.
    pub backend: u64,
    /// Prompt tokens that the backend still has to compute for requests of this gateway.
    pub pending_tokens: u64,
}

/// Tells the other gateways that this gateway sent a prompt to a backend. Contains hashes of the name of the
/// backend and of the blocks of the prompt, not the text.
#[derive(Debug, Clone, PartialEq)]
pub struct SentPrompt {
    /// Hash of the name of the backend.
    pub backend: u64,
    /// The block hashes of the prompt. Other fields than `blocks` and `block_bytes` are not
    /// transmitted.
    pub prompt: Arc<PromptFingerprint>,
}

/// Maximum length of a message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 256 << 10;

/// Encoded length of a message without backlogs and prompts, in bytes.
pub(crate) const EMPTY_BYTES: usize = 8 + 4 + 2 + 2;
/// Encoded length of one backlog, in bytes.
pub(crate) const BACKLOG_BYTES: usize = 16;

impl SentPrompt {
    /// Encoded length in bytes.
    pub(crate) fn encoded_bytes(&self) -> usize {
        8 + 2 + 8 * self.prompt.blocks.len()
    }
}

impl PeerMessage {
    /// The encoded message. Counts must fit into 16 bits; [`Batch`](super::Batch) bounds them.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let prompts: usize = self.prompts.iter().map(SentPrompt::encoded_bytes).sum();
        let mut bytes =
            Vec::with_capacity(EMPTY_BYTES + BACKLOG_BYTES * self.backlogs.len() + prompts);
        let block_bytes = self
            .prompts
            .first()
            .map_or(0, |sent| sent.prompt.block_bytes);
        bytes.extend(self.sent_at_millis.to_le_bytes());
        bytes.extend(block_bytes.to_le_bytes());
        bytes.extend((self.backlogs.len() as u16).to_le_bytes());
        for backlog in &self.backlogs {
            bytes.extend(backlog.backend.to_le_bytes());
            bytes.extend(backlog.pending_tokens.to_le_bytes());
        }
        bytes.extend((self.prompts.len() as u16).to_le_bytes());
        for SentPrompt { backend, prompt } in &self.prompts {
            bytes.extend(backend.to_le_bytes());
            bytes.extend((prompt.blocks.len() as u16).to_le_bytes());
            bytes.extend(prompt.blocks.iter().flat_map(|block| block.to_le_bytes()));
        }
        bytes
    }

    /// The message in these bytes. `None`: the bytes are damaged. A count larger than the remaining bytes
    /// ends the reading before anything of that size is allocated.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let bytes = &mut bytes;
        let sent_at_millis = bytes.try_get_u64_le().ok()?;
        let block_bytes = bytes.try_get_u32_le().ok()?;
        let backlogs = (0..read_count(bytes, BACKLOG_BYTES)?)
            .map(|_| {
                Some(BackendBacklog {
                    backend: bytes.try_get_u64_le().ok()?,
                    pending_tokens: bytes.try_get_u64_le().ok()?,
                })
            })
            .collect::<Option<_>>()?;
        let prompts = (0..read_count(bytes, 10)?)
            .map(|_| {
                let backend = bytes.try_get_u64_le().ok()?;
                let blocks = (0..read_count(bytes, 8)?).map(|_| bytes.try_get_u64_le().ok());
                let blocks: Box<[u64]> = blocks.collect::<Option<_>>()?;
                let prompt = PromptFingerprint {
                    blocks,
                    block_bytes,
                    ..Default::default()
                };
                Some(SentPrompt {
                    backend,
                    prompt: Arc::new(prompt),
                })
            })
            .collect::<Option<_>>()?;
        bytes.is_empty().then_some(Self {
            sent_at_millis,
            backlogs,
            prompts,
        })
    }
}

/// Reads the count of a list whose items have at least `item_bytes` bytes. `None`: the remaining bytes are
/// too few for the list.
fn read_count(bytes: &mut &[u8], item_bytes: usize) -> Option<u16> {
    let count = bytes.try_get_u16_le().ok()?;
    (usize::from(count) * item_bytes <= bytes.len()).then_some(count)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn sent(backend: u64, blocks: &[u64]) -> SentPrompt {
        let blocks = blocks.into();
        let block_bytes = 512;
        let prompt = PromptFingerprint {
            blocks,
            block_bytes,
            ..PromptFingerprint::default()
        };
        SentPrompt {
            backend,
            prompt: Arc::new(prompt),
        }
    }

    pub(crate) fn message() -> PeerMessage {
        PeerMessage {
            sent_at_millis: 1_700_000_000_000,
            backlogs: vec![BackendBacklog {
                backend: 7,
                pending_tokens: 9_000,
            }],
            prompts: vec![sent(7, &[1, u64::MAX, 3]), sent(8, &[])],
        }
    }

    #[test]
    fn a_message_is_decoded_as_it_was_encoded() {
        assert_eq!(PeerMessage::decode(&message().encode()), Some(message()));
        let empty = PeerMessage::default();
        assert_eq!(empty.encode().len(), EMPTY_BYTES);
        assert_eq!(PeerMessage::decode(&empty.encode()), Some(empty));
    }

    #[test]
    fn truncated_or_extended_messages_are_not_decoded() {
        let bytes = message().encode();
        for length in 0..bytes.len() {
            assert_eq!(
                PeerMessage::decode(&bytes[..length]),
                None,
                "{length} bytes"
            );
        }
        assert_eq!(PeerMessage::decode(&[&bytes[..], &[0]].concat()), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            if let Some(message) = PeerMessage::decode(&bytes) {
                let blocks = message.prompts.iter().map(|sent| sent.prompt.blocks.len());
                prop_assert!(blocks.sum::<usize>() * 8 <= bytes.len());
            }
        }
    }
}
