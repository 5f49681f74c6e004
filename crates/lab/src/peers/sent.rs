//! The blocks that were sent to one replica, of which the one used longest ago is forgotten first.

use std::collections::{BTreeMap, HashMap};

/// The blocks, and in which order they were used.
#[derive(Debug, Default)]
pub(super) struct Sent {
    used: HashMap<u64, u64>,
    by_use: BTreeMap<u64, u64>,
    uses: u64,
}

impl Sent {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.used.len()
    }

    /// How many of a prompt's first blocks are there.
    pub(super) fn matched(&self, blocks: &[u64]) -> usize {
        blocks.iter().take_while(|block| self.used.contains_key(block)).count()
    }

    /// The blocks of a prompt are sent; at most `most` blocks are kept.
    pub(super) fn send(&mut self, blocks: &[u64], most: usize) {
        for block in blocks {
            self.uses += 1;
            if let Some(before) = self.used.insert(*block, self.uses) {
                self.by_use.remove(&before);
            }
            self.by_use.insert(self.uses, *block);
        }
        while self.used.len() > most {
            let Some((_, oldest)) = self.by_use.pop_first() else { return };
            self.used.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_longest_ago_is_forgotten_first() {
        let mut sent = Sent::default();
        sent.send(&[1, 2, 3], 4);
        sent.send(&[1, 9], 4);
        assert_eq!((sent.len(), sent.matched(&[1, 2, 3])), (4, 3));
        sent.send(&[8], 4);
        assert_eq!(sent.matched(&[1, 2, 3]), 1, "2 has gone, 1 was used again");
    }
}
