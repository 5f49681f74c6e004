//! The blocks of the contexts of all sessions. A block that several contexts have counts once.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// The number of a context. Numbers are not used again.
pub type ContextId = u64;

/// The blocks of all contexts, by their hashes.
#[derive(Debug, Default)]
pub(super) struct BlockTable {
    blocks: HashMap<u64, Block, BuildHasherDefault<BlockHasher>>,
    /// Tokens of the blocks that several contexts have.
    pub(super) shared_tokens: u64,
}

#[derive(Debug)]
struct Block {
    tokens: u64,
    users: u32,
    /// The sum of the numbers of these contexts. With one user, its number.
    user_sum: u64,
}

/// A change of the number of tokens that only one context has.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum OwnTokens {
    /// The context has a block alone now.
    More { context: ContextId, tokens: u64 },
    /// The context has a block no more, or no longer alone.
    Less { context: ContextId, tokens: u64 },
    /// The block is shared as before.
    Same,
}

/// Hashes of blocks are uniformly distributed, so they need no further hash.
#[derive(Debug, Default)]
pub(super) struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, _: &[u8]) {}
}

impl BlockTable {
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Number of leading blocks that any context has. Each hash covers the blocks before it, so a context with
    /// a block has all blocks before it.
    pub(super) fn known_prefix(&self, blocks: &[u64]) -> usize {
        blocks.partition_point(|hash| self.blocks.contains_key(hash))
    }

    pub(super) fn add(&mut self, hash: u64, context: ContextId, tokens: u64) -> OwnTokens {
        let Some(block) = self.blocks.get_mut(&hash) else {
            self.blocks.insert(
                hash,
                Block {
                    tokens,
                    users: 1,
                    user_sum: context,
                },
            );
            return OwnTokens::More { context, tokens };
        };
        let other = block.user_sum;
        block.users += 1;
        block.user_sum = block.user_sum.wrapping_add(context);
        if block.users > 2 {
            return OwnTokens::Same;
        }
        self.shared_tokens += block.tokens;
        OwnTokens::Less {
            context: other,
            tokens: block.tokens,
        }
    }

    pub(super) fn remove(&mut self, hash: u64, context: ContextId) -> OwnTokens {
        let Some(block) = self.blocks.get_mut(&hash) else {
            return OwnTokens::Same;
        };
        let tokens = block.tokens;
        block.users -= 1;
        block.user_sum = block.user_sum.wrapping_sub(context);
        if block.users > 1 {
            return OwnTokens::Same;
        }
        if block.users == 1 {
            self.shared_tokens -= tokens;
            return OwnTokens::More {
                context: block.user_sum,
                tokens,
            };
        }
        self.blocks.remove(&hash);
        OwnTokens::Less { context, tokens }
    }
}
