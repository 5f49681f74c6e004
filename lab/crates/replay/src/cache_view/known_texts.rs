//! The prompt texts whose cache blocks one gateway can recognize. The gateway learns them from the KV events
//! of its own requests, which contain the session id of the request.

use std::collections::HashSet;

/// The hashes of the texts whose cache blocks a gateway can recognize. Each hash covers the text up to the
/// end of a block. Simulated engines give equal blocks the same hash, so what is known for one backend is
/// known for all.
#[derive(Debug, Default)]
pub(crate) struct KnownTexts {
    own: HashSet<u64>,
}

impl KnownTexts {
    /// Adds the blocks of a prompt that this gateway sent. Called when the request has ended and its KV
    /// events have arrived.
    pub(crate) fn learn(&mut self, blocks: &[u64]) {
        self.own.extend(blocks);
    }

    /// Returns the number of leading blocks of a prompt that the gateway can recognize.
    pub(crate) fn known(&self, blocks: &[u64]) -> usize {
        blocks
            .iter()
            .take_while(|block| self.own.contains(block))
            .count()
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
}
