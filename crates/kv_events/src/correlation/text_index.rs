//! The place of each known text block: the last engine block that ends within the text up to its end. One index
//! serves all engines that give equal blocks equal hashes, as vLLM does since 0.30 with its default hash
//! function. An engine whose hashes depend on a random seed needs an index of its own.
//!
//! The index aligns the text of a request with its chain of engine blocks in proportion to their lengths. The
//! alignment can be wrong by some tokens, because tokens differ in length. So the stored place of a text block
//! can include later text. If a second request has the text block but another engine block at this place, the
//! index goes back to the last engine block that both chains have.

use super::bounded_map::BoundedMap;
use super::request_chains::RequestChain;
use crate::decoder::BlockHash;
use crate::residency::StoredChain;

/// Maps texts of prompts to the engine blocks that contain them.
#[derive(Debug)]
pub struct TextIndex {
    /// Maps the hash of the text up to the end of a text block to the place of the text block.
    texts: BoundedMap<ChainBlock>,
    /// Maps the hash of an engine block to the engine block before it.
    parents: BoundedMap<ChainBlock>,
}

/// An engine block, with its position in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(Rust, packed(4))] // an alignment to 8 bytes would take 16 bytes
pub struct ChainBlock {
    hash: BlockHash,
    /// Number of engine blocks of the prompt up to and including this block. 0: the text is shorter than one
    /// engine block.
    blocks: u32,
}

/// A request whose response has ended, with its prompt. [`TextIndex::align`] reads it.
#[derive(Debug, Clone, Copy)]
pub struct AnsweredRequest<'a> {
    /// Hashes of the text blocks of the prompt. Each hash covers a text block and all text before
    /// it.
    pub text_blocks: &'a [u64],
    /// Hash of the whole text of the prompt.
    pub whole: u64,
    /// Length of a text block in bytes.
    pub block_bytes: u32,
    /// Length of the whole text in bytes.
    pub bytes: u64,
    /// Prompt tokens that the engine reported.
    pub prompt_tokens: u64,
    /// Cached prompt tokens that the engine reported. `None`: the engine did not report them.
    pub cached_tokens: Option<u64>,
}

/// Pairs of a hash and a place: the hash of the text up to the end of a text block, and the place of the text
/// block.
pub type Alignment = Vec<(u64, ChainBlock)>;

/// Maximum number of engine blocks that the search for the last common block of two chains visits.
const MAX_WALK: usize = 64;

impl TextIndex {
    /// An empty index for at most `texts` text blocks and `blocks` engine blocks. `seed`: a random
    /// number.
    pub fn new(texts: usize, blocks: usize, seed: u64) -> Self {
        Self {
            texts: BoundedMap::new(texts, seed),
            parents: BoundedMap::new(blocks, seed),
        }
    }

    /// Number of bytes that the index has allocated.
    pub fn bytes(&self) -> usize {
        self.texts.bytes() + self.parents.bytes()
    }

    /// Records engine blocks that an engine stored for any request.
    pub fn on_stored(&mut self, stored: &StoredChain<'_>) {
        let mut parent = match stored.parent {
            Some(parent) if stored.first_depth > 0 => {
                Some(ChainBlock::new(parent, stored.first_depth))
            }
            _ => None,
        };
        for (index, hash) in (1..).zip(stored.event.block_hashes.iter()) {
            if let Some(parent) = parent {
                self.parents.insert(hash, parent);
            }
            parent = Some(ChainBlock::new(
                hash,
                stored.first_depth.saturating_add(index),
            ));
        }
    }

    /// Whether the index knows the engine block before the engine block `hash`.
    pub fn has_block(&self, hash: BlockHash) -> bool {
        self.parents.get(hash).is_some()
    }

    /// Finds the place of each text block of a request. `chain`: the engine blocks that the request stored.
    /// `block_size`: tokens of an engine block. `None`: the chain may not belong to the text of the request.
    pub fn align(
        &self,
        request: &AnsweredRequest<'_>,
        chain: &RequestChain,
        block_size: u32,
    ) -> Option<Alignment> {
        let reused_tokens = u64::from(chain.first_depth) * u64::from(block_size);
        let contradicts = |cached: u64| chain.first_depth > 0 && cached != reused_tokens;
        if block_size == 0 || request.bytes == 0 || request.cached_tokens.is_some_and(contradicts) {
            return None;
        }
        let prompt_blocks = (request.prompt_tokens / u64::from(block_size)) as u32;
        // An engine stores all full blocks of a prompt. If the chain is shorter, the reported prompt tokens
        // belong to more than this text, for example to several prompts of one request.
        if (chain.first_depth as usize).saturating_add(chain.blocks.len()) < prompt_blocks as usize
        {
            return None;
        }
        let known = self.known_blocks(chain, prompt_blocks);
        let blocks_per_byte =
            request.prompt_tokens as f64 / request.bytes as f64 / f64::from(block_size);
        let limit = |index: usize| {
            let end = (index as f64 + 1.0) * f64::from(request.block_bytes);
            ((end * blocks_per_byte) as u32).min(prompt_blocks)
        };
        let texts = request.text_blocks.iter().enumerate();
        let texts = texts.map(|(index, text)| (*text, limit(index)));
        let mut alignment = Vec::with_capacity(request.text_blocks.len() + 1);
        for (text, limit) in texts.chain([(request.whole, prompt_blocks)]) {
            let Some(last) = last_within(&known, limit) else {
                continue;
            };
            let learned = |entry: &ChainBlock| entry.blocks() > 0;
            let entry = self.texts.get(text).filter(learned);
            alignment.push((
                text,
                entry.map_or(last, |entry| self.agree(entry, &known, last)),
            ));
        }
        Some(alignment)
    }

    /// Stores an alignment that [`Self::align`] returned.
    pub fn learn(&mut self, alignment: &[(u64, ChainBlock)]) {
        for (text, block) in alignment {
            self.texts.insert(*text, *block);
        }
    }

    /// The place for the text whose hash is `text`. `None`: the index does not know the text.
    pub fn block(&self, text: u64) -> Option<ChainBlock> {
        self.texts.get(text)
    }

    /// The engine block before `block`. `None`: the index does not know it, or `block` is the first block.
    pub fn parent(&self, block: ChainBlock) -> Option<ChainBlock> {
        self.parents
            .get(block.hash())
            .filter(|parent| parent.blocks < block.blocks())
    }

    /// The known engine blocks of the prompt of a request, in the order of the prompt.
    fn known_blocks(&self, chain: &RequestChain, prompt_blocks: u32) -> Vec<ChainBlock> {
        let mut known = Vec::new();
        let mut next = chain
            .parent
            .map(|parent| ChainBlock::new(parent, chain.first_depth));
        while let Some(block) = next {
            known.push(block);
            next = self.parent(block);
        }
        known.reverse();
        let stored = (1..).zip(&chain.blocks);
        known.extend(stored.map(|(n, hash)| ChainBlock::new(*hash, chain.first_depth + n)));
        known.retain(|block| block.blocks <= prompt_blocks);
        known
    }

    /// Checks the place `entry`, which the index learned from an earlier request with the text block. If the
    /// current request has this engine block, returns `entry`. If it does not, `entry` includes text of the
    /// earlier request only, and the result is the last engine block that both requests have. `known`: the
    /// engine blocks of the current request.
    fn agree(&self, entry: ChainBlock, known: &[ChainBlock], last: ChainBlock) -> ChainBlock {
        let at = |blocks: u32| {
            known
                .binary_search_by_key(&blocks, |block| block.blocks)
                .ok()
        };
        let mut next = Some(entry);
        for _ in 0..MAX_WALK {
            let Some(block) = next else { break };
            match at(block.blocks) {
                Some(index) if known[index] == block => return block,
                // Nothing contradicts `entry`, because the known part of this chain does not reach its
                // position.
                None if block == entry => return entry,
                _ => next = self.parent(block),
            }
        }
        last
    }
}

/// The last of the `known` blocks within `limit` blocks, or the start of the chain for a text that is shorter than
/// the first engine block. `None`: it is not known.
fn last_within(known: &[ChainBlock], limit: u32) -> Option<ChainBlock> {
    let within = known.partition_point(|block| block.blocks <= limit);
    let is_first_known = known.first().is_some_and(|first| first.blocks <= 1);
    match within.checked_sub(1) {
        Some(last) => Some(known[last]),
        None if limit == 0 || is_first_known => Some(ChainBlock::new(0, 0)),
        None => None,
    }
}

impl ChainBlock {
    fn new(hash: BlockHash, blocks: u32) -> Self {
        Self { hash, blocks }
    }

    /// The hash of the block.
    pub fn hash(self) -> BlockHash {
        self.hash
    }

    /// Number of engine blocks of the prompt up to and including this one. 0: the text is shorter
    /// than one engine block.
    pub fn blocks(self) -> u32 {
        self.blocks
    }
}

#[cfg(test)]
#[path = "text_index_tests.rs"]
mod tests;
