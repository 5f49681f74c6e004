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
        let tokens = prompt.tokens(tokens_per_byte);
        let block_tokens = prompt.block_tokens(tokens_per_byte);
        let known = known.filter(|known| known.is_plausible());
        match known {
            Some(known) if known.is_decided => {
                let pending = self.pending_blocks(prompt);
                CachedTokens::by_events(tokens, block_tokens, known, pending)
            }
            _ => {
                let matched = self.matched_blocks(prompt, block_tokens, expected_blocks);
                CachedTokens::by_sent_prompts(tokens, block_tokens, known, matched)
            }
        }
    }

    /// Number of leading blocks of a prompt that were sent to the backend and are probably still cached.
    fn matched_blocks(
        &self,
        prompt: &PromptFingerprint,
        block_tokens: f64,
        expected_blocks: u32,
    ) -> u32 {
        let Some(table) = self.prefix_table.get() else {
            return 0;
        };
        if prompt.blocks.is_empty() {
            return 0;
        }
        let retained =
            self.last_report.cache_blocks(block_tokens) * self.learned_estimates.retention();
        table.matched(&prompt.blocks, retained as usize, expected_blocks as usize) as u32
    }

    /// Number of leading blocks of a prompt that were sent since the oldest request without output.
    fn pending_blocks(&self, prompt: &PromptFingerprint) -> u32 {
        let Some(table) = self.prefix_table.get() else {
            return 0;
        };
        let Some(age) = self.pending_outputs.oldest_table_age() else {
            return 0;
        };
        if prompt.blocks.is_empty() {
            0
        } else {
            table.matched_since(&prompt.blocks, age) as u32
        }
    }
}
