//! The last block of the engine within each block of text, for engines that name equal blocks
//! equally: vLLM since 0.30 with its default hash. Engines that begin with a random seed need an
//! index each.
//!
//! The text of a request and its chain of blocks are aligned in proportion to their lengths. The
//! alignment can be wrong by some tokens, because tokens differ in length. Where two texts part
//! within a block of text, the second request shows how far the chains agree, and the entry is
//! corrected to that.

use super::bounded_map::BoundedMap;
use super::request_chains::RequestChain;
use crate::decoder::BlockHash;
use crate::residency::{CacheContents, StoredChain};

/// Which blocks of an engine belong to which text.
#[derive(Debug)]
pub struct TextIndex {
    /// By the hash of a block of text with everything before it: the last block of the engine that
    /// lies in that text.
    texts: BoundedMap<ChainBlock>,
    /// By the hash of a block: the last block before it at a multiple of [`STRIDE`].
    ancestors: BoundedMap<ChainBlock>,
}

/// A block of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ChainBlock {
    /// In two halves, so that the alignment is 4.
    hash: [u32; 2],
    /// Number of blocks of the prompt up to this one. 0: the text is shorter than one block.
    blocks: u32,
}

/// A request that was answered.
#[derive(Debug, Clone, Copy)]
pub struct AnsweredRequest<'a> {
    /// Hashes of the blocks of its text, each of the block and everything before it.
    pub text_blocks: &'a [u64],
    /// Bytes in a block of text.
    pub block_bytes: u32,
    /// Bytes of the text.
    pub bytes: u64,
    /// Prompt tokens that the engine reported.
    pub prompt_tokens: u64,
    /// Cached prompt tokens that the engine reported.
    pub cached_tokens: Option<u64>,
}

/// Distance of the ancestors that are stored.
const STRIDE: u32 = 4;

impl TextIndex {
    /// An empty index for at most `texts` blocks of text and `blocks` blocks of engines. `seed`: a
    /// random number.
    pub fn new(texts: usize, blocks: usize, seed: u64) -> Self {
        Self { texts: BoundedMap::new(texts, seed), ancestors: BoundedMap::new(blocks, seed) }
    }

    /// Allocated bytes.
    pub fn bytes(&self) -> usize {
        self.texts.bytes() + self.ancestors.bytes()
    }

    /// An engine stored blocks, for any request.
    pub fn on_stored(&mut self, stored: &StoredChain<'_>) {
        let mut ancestor = stored.parent.and_then(|parent| {
            let parent = ChainBlock::new(parent, stored.first_depth);
            if parent.is_stored() { Some(parent) } else { self.ancestors.get(parent.key()) }
        });
        for (index, hash) in (1..).zip(stored.event.block_hashes.iter()) {
            let block = ChainBlock::new(hash, stored.first_depth.saturating_add(index));
            if let Some(ancestor) = ancestor {
                self.ancestors.insert(hash, ancestor);
            }
            if block.is_stored() {
                ancestor = Some(block);
            }
        }
    }

    /// Learns from a request and the chain of blocks that it stored, in blocks of `block_size`
    /// tokens. Returns whether it could.
    pub fn learn(
        &mut self,
        request: &AnsweredRequest<'_>,
        chain: &RequestChain,
        block_size: u32,
    ) -> bool {
        let reused_tokens = u64::from(chain.first_depth) * u64::from(block_size);
        let contradicts = |cached: u64| chain.first_depth > 0 && cached != reused_tokens;
        if block_size == 0 || request.bytes == 0 || request.cached_tokens.is_some_and(contradicts) {
            return false;
        }
        let prompt_blocks = (request.prompt_tokens / u64::from(block_size)) as u32;
        let known = self.known_blocks(chain, prompt_blocks);
        let blocks_per_byte =
            request.prompt_tokens as f64 / request.bytes as f64 / f64::from(block_size);
        for (index, text) in request.text_blocks.iter().enumerate() {
            let end = (index as f64 + 1.0) * f64::from(request.block_bytes);
            let limit = ((end * blocks_per_byte) as u32).min(prompt_blocks);
            let within = known.partition_point(|block| block.blocks <= limit);
            let last = match within.checked_sub(1).map(|last| known[last]) {
                Some(last) => last,
                // The text is shorter than the first known block, which is one of the first.
                None if known.first().is_some_and(|first| first.blocks <= STRIDE) => {
                    ChainBlock::new(0, 0)
                }
                None => continue,
            };
            let entry = self.texts.get(*text).filter(|entry| entry.blocks > 0);
            let entry = entry.map_or(last, |entry| self.agree(entry, &known, last));
            self.texts.insert(*text, entry);
        }
        true
    }

    /// Number of leading blocks of a text whose blocks of the engine are known. 0: nothing is known
    /// about the text.
    pub fn known_text(&self, text_blocks: &[u64]) -> usize {
        leading(text_blocks, |text| self.texts.get(*text).is_some())
    }

    /// Prompt tokens of a known text that an engine has in its cache.
    pub fn cached_tokens(&self, known_text: &[u64], contents: &CacheContents) -> u64 {
        let is_resident = |text: &u64| {
            let block = self.texts.get(*text);
            block.is_none_or(|block| block.blocks == 0 || contents.contains(block.key()))
        };
        let resident = leading(known_text, is_resident);
        let last = resident.checked_sub(1).and_then(|last| self.texts.get(known_text[last]));
        last.map_or(0, |last| u64::from(last.blocks) * u64::from(contents.block_size()))
    }

    /// The known blocks of the prompt of a request, in their order.
    fn known_blocks(&self, chain: &RequestChain, prompt_blocks: u32) -> Vec<ChainBlock> {
        let mut known = Vec::new();
        let mut next = chain.parent.map(|parent| ChainBlock::new(parent, chain.first_depth));
        while let Some(block) = next {
            known.push(block);
            next = self.ancestor(block);
        }
        known.reverse();
        let stored = (1..).zip(&chain.blocks);
        known.extend(stored.map(|(n, hash)| ChainBlock::new(*hash, chain.first_depth + n)));
        known.retain(|block| block.blocks <= prompt_blocks);
        known
    }

    /// The entry of a text that another request has taught, unless the chain of this request shows
    /// that it reaches into the text after it. Then the last block that both chains have.
    fn agree(&self, entry: ChainBlock, known: &[ChainBlock], last: ChainBlock) -> ChainBlock {
        let at = |blocks: u32| known.binary_search_by_key(&blocks, |block| block.blocks).ok();
        let mut next = Some(entry);
        while let Some(block) = next {
            match at(block.blocks) {
                Some(index) if known[index] == block => return block,
                // The chain of this request is not known there.
                None if block == entry => return entry,
                _ => next = self.ancestor(block),
            }
        }
        last
    }

    /// The nearest stored block before a block.
    fn ancestor(&self, block: ChainBlock) -> Option<ChainBlock> {
        self.ancestors.get(block.key()).filter(|ancestor| ancestor.blocks < block.blocks)
    }
}

impl ChainBlock {
    fn new(hash: BlockHash, blocks: u32) -> Self {
        Self { hash: [(hash >> 32) as u32, hash as u32], blocks }
    }

    fn key(self) -> BlockHash {
        u64::from(self.hash[0]) << 32 | u64::from(self.hash[1])
    }

    /// Whether the block is an ancestor of the blocks after it.
    fn is_stored(self) -> bool {
        self.blocks.is_multiple_of(STRIDE)
    }
}

/// Number of leading elements for which `holds`, if it holds for none after the first exception.
fn leading(elements: &[u64], holds: impl Fn(&u64) -> bool) -> usize {
    let mut end = 1;
    while elements.get(end - 1).is_some_and(&holds) {
        end *= 2;
    }
    let start = (end / 2).min(elements.len());
    start + elements[start..end.min(elements.len())].partition_point(holds)
}

#[cfg(test)]
#[path = "text_index_tests.rs"]
mod tests;
