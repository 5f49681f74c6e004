//! For each block, the number of prompts of a set that have it.

use std::collections::HashMap;

/// A set of prompts, as the number of prompts that have each block. A prompt can be in the set several times.
#[derive(Debug, Clone, Default)]
pub(crate) struct BlockCounts(HashMap<u64, u32>);

impl BlockCounts {
    /// Adds a prompt. Returns the number of its blocks that no other prompt has.
    pub(crate) fn add(&mut self, blocks: &[u64]) -> usize {
        let mut new = 0;
        for block in blocks {
            let count = self.0.entry(*block).or_default();
            *count += 1;
            new += usize::from(*count == 1);
        }
        new
    }

    /// Removes a prompt. Returns the number of its blocks that no other prompt has.
    pub(crate) fn remove(&mut self, blocks: &[u64]) -> usize {
        let mut unused = 0;
        for block in blocks {
            let Some(count) = self.0.get_mut(block) else {
                continue;
            };
            *count -= 1;
            if *count == 0 {
                self.0.remove(block);
                unused += 1;
            }
        }
        unused
    }

    /// Number of leading blocks of a prompt that the prompts of the set also have.
    pub(crate) fn matched(&self, blocks: &[u64]) -> usize {
        blocks
            .iter()
            .take_while(|block| self.0.contains_key(block))
            .count()
    }

    pub(crate) fn count(&self, block: u64) -> usize {
        self.0.get(&block).map_or(0, |count| *count as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_counts_until_its_last_prompt_goes() {
        let mut counts = BlockCounts::default();
        assert_eq!((counts.add(&[1, 2, 3]), counts.add(&[1, 2, 4])), (3, 1));
        assert_eq!(
            (
                counts.matched(&[1, 2, 3, 9]),
                counts.count(1),
                counts.count(9)
            ),
            (3, 2, 0)
        );
        assert_eq!(
            (counts.remove(&[1, 2, 3]), counts.matched(&[1, 2, 3])),
            (1, 2)
        );
        assert_eq!((counts.remove(&[1, 2, 4]), counts.matched(&[1, 2])), (3, 0));
    }
}
