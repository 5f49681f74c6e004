//! The texts whose cache blocks one gateway knows. It learns them from the KV events of its own
//! requests, which name the request, so it knows no text that only other gateways have sent.

use std::collections::HashSet;

/// Texts whose blocks are known, by the hash of the text up to the end of a block. Engines name
/// equal blocks equally, so a text is known for all backends.
#[derive(Debug, Default)]
pub(crate) struct KnownTexts(HashSet<u64>);

impl KnownTexts {
    /// A request with this prompt has ended, and its events have arrived.
    pub(crate) fn learn(&mut self, blocks: &[u64]) {
        self.0.extend(blocks);
    }

    /// Number of leading blocks of a prompt whose text is known.
    pub(crate) fn known(&self, blocks: &[u64]) -> usize {
        blocks.iter().take_while(|block| self.0.contains(block)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_known_up_to_the_first_block_that_no_own_request_had() {
        let mut texts = KnownTexts::default();
        assert_eq!(texts.known(&[1, 2]), 0);
        texts.learn(&[1, 2, 3]);
        assert_eq!((texts.known(&[1, 2, 4, 3]), texts.known(&[4, 1])), (2, 0));
    }
}
