//! The prompts of one gateway that have no output yet. The KV events do not show their blocks yet, but an
//! engine computes these prompts before it computes a prompt that is sent later.

use std::collections::HashMap;

/// Blocks of the prompts without output, for each backend by its position.
#[derive(Debug)]
pub(crate) struct PendingPrompts {
    /// For each backend: the number of pending prompts that contain each block.
    blocks: Vec<HashMap<u64, u32>>,
}

impl PendingPrompts {
    /// Creates the state without pending prompts, for this number of backends.
    pub(crate) fn new(backends: usize) -> Self {
        Self { blocks: vec![HashMap::new(); backends] }
    }

    /// Records that a prompt was sent to a backend.
    pub(crate) fn add(&mut self, backend: usize, blocks: &[u64]) {
        for block in blocks {
            *self.blocks[backend].entry(*block).or_default() += 1;
        }
    }

    /// Removes a prompt, because its first output has arrived or its request has ended.
    pub(crate) fn remove(&mut self, backend: usize, blocks: &[u64]) {
        for block in blocks {
            if let Some(count) = self.blocks[backend].get_mut(block) {
                *count -= 1;
                if *count == 0 {
                    self.blocks[backend].remove(block);
                }
            }
        }
    }

    /// Number of leading blocks of a prompt that pending prompts of a backend also have.
    pub(crate) fn matched(&self, backend: usize, blocks: &[u64]) -> usize {
        let pending = &self.blocks[backend];
        blocks.iter().take_while(|block| pending.contains_key(block)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_pending_until_the_last_prompt_with_it_has_output() {
        let mut pending = PendingPrompts::new(2);
        pending.add(0, &[1, 2, 3]);
        pending.add(0, &[1, 2, 4]);
        assert_eq!((pending.matched(0, &[1, 2, 3, 9]), pending.matched(1, &[1])), (3, 0));
        pending.remove(0, &[1, 2, 3]);
        assert_eq!(pending.matched(0, &[1, 2, 3]), 2);
        pending.remove(0, &[1, 2, 4]);
        assert_eq!(pending.matched(0, &[1, 2]), 0);
    }
}
