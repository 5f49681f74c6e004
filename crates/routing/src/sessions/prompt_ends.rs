//! Where the prompts of contexts end, to find the context that a longer prompt continues.

use super::block_table::ContextId;
use crate::PromptFingerprint;
use std::collections::{BTreeSet, HashMap};

/// The contexts by the last block of their prompts.
#[derive(Debug, Default)]
pub(super) struct PromptEnds {
    by_block: HashMap<u64, BTreeSet<PromptEnd>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PromptEnd {
    /// Length of the prompt in bytes.
    bytes: u64,
    context: ContextId,
}

/// Maximum number of contexts with one last block that are compared. Many questions about one document have the same.
const MAX_COMPARED: usize = 16;

impl PromptEnds {
    /// Whether no context is known.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_block.is_empty()
    }

    pub(super) fn insert(&mut self, prompt: &PromptFingerprint, context: ContextId) {
        let bytes = prompt.bytes;
        if let Some(block) = prompt.blocks.last() {
            let ends = self.by_block.entry(*block).or_default();
            ends.insert(PromptEnd { bytes, context });
        }
    }

    pub(super) fn remove(&mut self, prompt: &PromptFingerprint, context: ContextId) {
        let bytes = prompt.bytes;
        let Some(block) = prompt.blocks.last() else {
            return;
        };
        if let Some(ends) = self.by_block.get_mut(block) {
            ends.remove(&PromptEnd { bytes, context });
            if ends.is_empty() {
                self.by_block.remove(block);
            }
        }
    }

    /// The contexts whose prompts end after `block` and have at most `bytes` bytes, the longest prompt first.
    pub(super) fn ending_after(
        &self,
        block: u64,
        bytes: u64,
    ) -> impl Iterator<Item = ContextId> + '_ {
        let context = ContextId::MAX;
        let ends = self.by_block.get(&block).into_iter();
        let ends = ends.flat_map(move |ends| ends.range(..=PromptEnd { bytes, context }).rev());
        ends.take(MAX_COMPARED).map(|end| end.context)
    }
}
