//! The prompt texts whose cache blocks one gateway can recognize. The gateway learns them from the KV events
//! of its own requests, which contain the session id of the request. It also learns from the KV events of
//! other gateways' requests, which contain outlines (hashes of parts of the prompt).

use std::collections::HashSet;
use tokenweir_kv_events::correlation::PromptOutline;

/// The hashes of the texts whose cache blocks a gateway can recognize. Each hash covers the text up to the
/// end of a block. Simulated engines give equal blocks the same hash, so what is known for one backend is
/// known for all.
#[derive(Debug, Default)]
pub(crate) struct KnownTexts {
    own: HashSet<u64>,
    /// Hashes that the gateway learned from outlines only.
    outlined: HashSet<u64>,
}

impl KnownTexts {
    /// Adds the blocks of a prompt that this gateway sent. Called when the request has ended and its KV
    /// events have arrived.
    pub(crate) fn learn(&mut self, blocks: &[u64]) {
        self.own.extend(blocks);
    }

    /// Adds those blocks of a prompt that its outline contains. The KV events of the request carry the
    /// outline.
    pub(crate) fn learn_outline(&mut self, blocks: &[u64]) {
        let anchors = PromptOutline::anchors(blocks.len());
        self.outlined.extend(anchors.map(|anchor| blocks[anchor - 1]));
    }

    /// Returns the number of leading blocks of a prompt that the gateway can recognize.
    pub(crate) fn known(&self, blocks: &[u64]) -> usize {
        let own = blocks.iter().take_while(|block| self.own.contains(block)).count();
        let is_outlined = |anchor: &usize| self.outlined.contains(&blocks[anchor - 1]);
        let outlined = PromptOutline::anchors(blocks.len()).take_while(is_outlined).last();
        own.max(outlined.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_known_up_to_an_unsent_one() {
        let mut texts = KnownTexts::default();
        assert_eq!(texts.known(&[1, 2]), 0);
        texts.learn(&[1, 2, 3]);
        assert_eq!(texts.known(&[1, 2, 4, 3]), 2);
        assert_eq!(texts.known(&[4, 1]), 0);
    }

    #[test]
    fn an_outline_makes_the_blocks_of_a_prompt_known_up_to_the_last_hash_in_the_outline() {
        let mut texts = KnownTexts::default();
        let blocks: Vec<u64> = (0..15).collect();
        texts.learn_outline(&blocks);
        assert_eq!(texts.known(&blocks), 14);
        assert_eq!(texts.known(&blocks[..9]), 8);
        texts.learn(&blocks);
        assert_eq!(texts.known(&blocks), 15);
    }
}
