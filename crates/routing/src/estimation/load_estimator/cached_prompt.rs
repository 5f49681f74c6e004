//! The cached part of a prompt at a backend, by KV events or by the prompts that were sent to it.

use super::LoadEstimator;
use crate::PromptFingerprint;
use crate::estimation::cached_tokens::{CachedTokens, KnownPrefix};

impl LoadEstimator {
    /// The length of a prompt, and its part in the cache of the backend. The parameters are those of
    /// [`candidate_with`](Self::candidate_with).
    pub(super) fn cached_tokens(
        &self,
        prompt: &PromptFingerprint,
        known: Option<&KnownPrefix>,
        expected_blocks: u32,
    ) -> CachedTokens {
        let tokens_per_byte = self.learned_estimates.tokens_per_byte();
        let block_tokens = prompt.block_tokens(tokens_per_byte);
        let known = known.filter(|known| known.is_plausible());
        let sent = match self.prefix_table.get() {
            None => 0,
            Some(_) if prompt.blocks.is_empty() => 0,
            Some(table) if known.is_some_and(|known| known.is_decided) => {
                let age = self.pending_outputs.oldest_table_age();
                age.map_or(0, |age| table.matched_since(&prompt.blocks, age))
            }
            Some(table) => {
                let blocks = self.last_report.cache_blocks(block_tokens);
                let retained = blocks * self.learned_estimates.retention();
                table.matched(&prompt.blocks, retained as usize, expected_blocks as usize)
            }
        };
        CachedTokens::new(
            prompt.tokens(tokens_per_byte),
            block_tokens,
            known,
            sent as u32,
        )
    }
}
