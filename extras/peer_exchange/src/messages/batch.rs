//! Collects the prompts that this gateway sent and its changed backlogs, until a message to the other
//! gateways is full or due.

use super::message::{BACKLOG_BYTES, BackendBacklog, EMPTY_BYTES, PeerMessage, SentPrompt};

/// The backlogs and prompts of the next message to the other gateways.
#[derive(Debug, Default)]
pub struct Batch {
    message: PeerMessage,
    bytes: usize,
}

/// Length in bytes from which a message is full. The last prompt may exceed this length, but even the longest
/// one fits into `MAX_MESSAGE_BYTES`.
const FULL_BYTES: usize = 64 << 10;
/// Maximum number of backlogs, and of prompts, in a message.
const MAX_ENTRIES: usize = 4_096;

impl Batch {
    /// Adds the new backlog of this gateway at a backend, and the prompt that the gateway sent there. There is
    /// no prompt if a first output or the end of a request changed the backlog.
    pub fn add(&mut self, backlog: BackendBacklog, prompt: Option<SentPrompt>) {
        let same = self
            .message
            .backlogs
            .iter_mut()
            .find(|known| known.backend == backlog.backend);
        if let Some(known) = same {
            *known = backlog;
        } else {
            self.message.backlogs.push(backlog);
            self.bytes += BACKLOG_BYTES;
        }
        if let Some(prompt) = prompt.filter(|sent| !sent.prompt.blocks.is_empty()) {
            self.bytes += prompt.encoded_bytes();
            self.message.prompts.push(prompt);
        }
    }

    /// Whether the batch has no backlog and no prompt.
    pub fn is_empty(&self) -> bool {
        self.message.backlogs.is_empty()
    }

    /// Whether the message must be sent before more entries are added.
    pub fn is_full(&self) -> bool {
        let count = self.message.backlogs.len().max(self.message.prompts.len());
        EMPTY_BYTES + self.bytes >= FULL_BYTES || count >= MAX_ENTRIES
    }

    /// The collected message, sent at `now_millis`. The batch is empty afterwards.
    pub fn take(&mut self, now_millis: u64) -> PeerMessage {
        self.bytes = 0;
        PeerMessage {
            sent_at_millis: now_millis,
            ..std::mem::take(&mut self.message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::message::MAX_MESSAGE_BYTES;
    use crate::messages::message::tests::sent;

    fn backlog(backend: u64, pending_tokens: u64) -> BackendBacklog {
        BackendBacklog {
            backend,
            pending_tokens,
        }
    }

    #[test]
    fn a_batch_has_prompts_and_last_backlogs() {
        let mut batch = Batch::default();
        assert!(batch.is_empty());
        batch.add(backlog(1, 100), Some(sent(1, &[5])));
        batch.add(backlog(2, 50), Some(sent(2, &[])));
        batch.add(backlog(1, 0), None);
        let message = batch.take(9);
        assert_eq!(message.backlogs, [backlog(1, 0), backlog(2, 50)]);
        assert_eq!(
            (message.prompts, message.sent_at_millis),
            (vec![sent(1, &[5])], 9)
        );
        assert!(batch.is_empty());
    }

    #[test]
    fn a_full_batch_fits_into_a_message() {
        let mut batch = Batch::default();
        let blocks = vec![1; 8_192];
        let mut count = 0;
        while !batch.is_full() {
            count += 1;
            let blocks = if count < 100 {
                &blocks[..80]
            } else {
                &blocks[..]
            };
            batch.add(backlog(count, 1), Some(sent(count, blocks)));
        }
        assert!(count > 50);
        assert!(batch.take(0).encode().len() + 100 < MAX_MESSAGE_BYTES);
        assert!(!batch.is_full());
    }
}
