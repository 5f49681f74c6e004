//! Finds how many tokens of one prompt each of several engines has in its cache. The last engine block of each
//! text block is looked up only once, for all engines that give equal blocks equal hashes.

use super::text_index::{ChainBlock, TextIndex};
use crate::residency::CacheContents;

/// Hashes of the text of one prompt, by which the prompt is looked up in a [`TextIndex`].
#[derive(Debug, Clone, Copy)]
pub struct PromptText<'a> {
    /// Hashes of the text blocks of the prompt. Each hash covers the block and all text before it.
    pub blocks: &'a [u64],
    /// Hash of the whole text of the prompt.
    pub whole: u64,
}

/// Looks up one prompt in the caches of engines that share a [`TextIndex`]. A text block is *known* if the
/// index has its place: the last engine block that ends within the text up to the end of the text block.
#[derive(Debug)]
pub struct PromptLookup {
    /// Number of leading text blocks that are known, plus one if the index knows the whole text.
    known: usize,
    /// Whether the index knows the place of the whole text.
    is_whole: bool,
    /// The place of the first known text block. Most engines have either nothing or all of a prompt in the
    /// cache, so most lookups need only `first` and `last`.
    first: Option<ChainBlock>,
    /// The place of the last known text block.
    last: Option<ChainBlock>,
    /// The engine blocks between the places of two successive known text blocks. They are stored for the next
    /// engine, whose cached part of the prompt may end there too.
    span: Vec<ChainBlock>,
    /// Index of the known text block at whose place `span` ends. `None`: `span` is not filled yet.
    span_place: Option<usize>,
}

/// The part of a prompt that an engine has in its prefix cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedPrompt {
    /// Number of cached prompt tokens.
    pub tokens: u64,
    /// Number of leading text blocks that are cached completely.
    pub text_blocks: usize,
    /// Whether the engine certainly has no more of the prompt than `tokens`. This is certain if the engine
    /// lacks an engine block that the index knows, or if the index knows the whole text.
    pub is_decided: bool,
}

/// Initial capacity of `PromptLookup::span` in engine blocks. A text block of 512 bytes, about 128 tokens, has
/// fewer engine blocks.
const SPAN_BLOCKS: usize = 16;
/// Maximum number of engine blocks between the places of two known text blocks. A wrong alignment can cause a
/// longer span. Such a span is not looked up, and none of its blocks counts as cached.
const MAX_SPAN_BLOCKS: u32 = 256;

impl PromptText<'_> {
    /// The hash of the text up to the end of the text block `index`. After the last text block, the hash of the
    /// whole text.
    fn up_to(&self, index: usize) -> u64 {
        self.blocks.get(index).copied().unwrap_or(self.whole)
    }
}

impl PromptLookup {
    /// Finds the text blocks of a prompt that the index knows.
    pub fn new(text: PromptText<'_>, index: &TextIndex) -> Self {
        let is_whole = index.block(text.whole).is_some();
        let known = if is_whole {
            text.blocks.len() + 1
        } else {
            leading(text.blocks.len(), |block| {
                index.block(text.up_to(block)).is_some()
            })
        };
        let span = Vec::with_capacity(SPAN_BLOCKS);
        let mut lookup = Self {
            known,
            is_whole,
            first: None,
            last: None,
            span,
            span_place: None,
        };
        if let Some(last) = known.checked_sub(1) {
            lookup.first = index.block(text.up_to(0));
            lookup.last = index.block(text.up_to(last));
        }
        lookup
    }

    /// Whether the index knows an engine block of the prompt.
    pub fn is_known(&self) -> bool {
        self.known > 0
    }

    /// Returns the part of the prompt that an engine has in its prefix cache. `contents`: what the gateway
    /// knows of that cache.
    pub fn cached(
        &mut self,
        text: PromptText<'_>,
        index: &TextIndex,
        contents: &CacheContents,
    ) -> CachedPrompt {
        let known = self.known;
        // Number of engine blocks up to the last known text block that is cached. Each time the closure returns
        // true, its text block is later in the prompt than before, so the last assignment is the greatest.
        let mut whole_blocks = 0;
        let resident = leading(known, |number| match self.place(number, text, index) {
            Some(place) if place.blocks() > 0 && !contents.contains(place.hash()) => false,
            place => {
                whole_blocks = place.map_or(0, ChainBlock::blocks);
                true
            }
        });
        let blocks = if resident < known {
            let span = self.span(resident, whole_blocks, text, index);
            let cached = leading(span.len(), |block| contents.contains(span[block].hash()));
            cached
                .checked_sub(1)
                .map_or(whole_blocks, |last| span[last].blocks())
        } else {
            whole_blocks
        };
        CachedPrompt {
            tokens: u64::from(blocks) * u64::from(contents.block_size()),
            text_blocks: resident.min(text.blocks.len()),
            is_decided: resident < known || self.is_whole,
        }
    }

    /// Returns the place of the known text block `number`, counted from 0.
    fn place(&self, number: usize, text: PromptText<'_>, index: &TextIndex) -> Option<ChainBlock> {
        match number {
            0 => self.first,
            last if last + 1 == self.known => self.last,
            _ => index.block(text.up_to(number)),
        }
    }

    /// Returns the engine blocks of the prompt after the first `before` ones, up to the place of the known text
    /// block `number`. The result is empty if there are more than [`MAX_SPAN_BLOCKS`].
    fn span(
        &mut self,
        number: usize,
        before: u32,
        text: PromptText<'_>,
        index: &TextIndex,
    ) -> &[ChainBlock] {
        if self.span_place != Some(number) {
            // `clear` keeps the memory of `span` for the new blocks.
            self.span.clear();
            let end = self.place(number, text, index);
            let mut next = end.filter(|end| end.blocks().saturating_sub(before) <= MAX_SPAN_BLOCKS);
            while let Some(found) = next.filter(|found| found.blocks() > before) {
                self.span.push(found);
                next = index.parent(found);
            }
            self.span.reverse();
            self.span_place = Some(number);
        }
        &self.span
    }
}

/// The number of leading values from 0 to `count` − 1 for which `holds` is true. After the first false result,
/// `holds` must stay false. Most engines have either nothing or all of a prompt, so the search tries both ends
/// first.
fn leading(count: usize, mut holds: impl FnMut(usize) -> bool) -> usize {
    let Some(last) = count.checked_sub(1) else {
        return 0;
    };
    if !holds(0) {
        return 0;
    }
    if holds(last) {
        return count;
    }
    // `holds` is true for `low - 1` and false for `high`.
    let mut low = 1;
    let mut high = last;
    while low < high {
        let middle = low.midpoint(high);
        if holds(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_finds_each_number_of_leading_blocks() {
        for count in 0..40 {
            for exception in 0..=count {
                assert_eq!(leading(count, |number| number < exception), exception);
            }
        }
    }
}
