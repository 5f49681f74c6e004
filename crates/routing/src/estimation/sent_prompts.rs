//! The prompts that were sent to one backend, by this gateway or by another gateway that reports its
//! prompts, in a prefix table. The first prompt creates the table.

use crate::PromptFingerprint;
use crate::prefix_table::PrefixTable;
use std::sync::OnceLock;

/// The prompts that this gateway, and other gateways as far as known, sent to a backend.
#[derive(Debug, Default)]
pub(super) struct SentPrompts(OnceLock<PrefixTable>);

impl SentPrompts {
    /// Size of the table in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.0.get().map_or(0, PrefixTable::bytes)
    }

    /// Adds a prompt. The cache of the backend holds about `cache_blocks` blocks.
    pub(super) fn add(&self, prompt: &PromptFingerprint, cache_blocks: impl FnOnce() -> f64) {
        if !prompt.blocks.is_empty() {
            let table = || PrefixTable::new(cache_blocks() as usize);
            self.0.get_or_init(table).touch(&prompt.blocks);
        }
    }

    /// Number of leading blocks of a prompt that are probably cached, if the cache retains
    /// `retained` blocks. `expected`: the number that is tried first.
    pub(super) fn matched(
        &self,
        prompt: &PromptFingerprint,
        expected: u32,
        retained: impl FnOnce() -> f64,
    ) -> u32 {
        if prompt.blocks.is_empty() {
            return 0;
        }
        let matched = |table: &PrefixTable| {
            table.matched(&prompt.blocks, retained() as usize, expected as usize)
        };
        self.0.get().map_or(0, matched) as u32
    }

    /// The age of the table: the number of new blocks so far. 0 before the first prompt.
    pub(super) fn table_age(&self) -> u32 {
        self.0.get().map_or(0, PrefixTable::age)
    }

    /// Number of leading blocks of a prompt that were sent since the table had the age `table_age`.
    /// 0 if `table_age` is `None`.
    pub(super) fn matched_since(&self, prompt: &PromptFingerprint, table_age: Option<u32>) -> u32 {
        let table = self.0.get().zip(table_age);
        table.map_or(0, |(table, age)| table.matched_since(&prompt.blocks, age)) as u32
    }

    /// Removes all prompts.
    pub(super) fn clear(&self) {
        if let Some(table) = self.0.get() {
            table.clear();
        }
    }
}
