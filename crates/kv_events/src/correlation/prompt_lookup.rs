//! Finds how many tokens of one prompt each of several engines has in its cache. The last engine block of
//! each text block is looked up once for all engines that give equal blocks the same hash.

use super::prompt_outline::{anchor, anchor_count};
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

/// Looks one prompt up in the caches of engines that share a [`TextIndex`]. For some text blocks of
/// the prompt, the index knows the last engine block within the text up to their end. The *anchors*
/// are the text blocks whose hashes an outline has.
#[derive(Debug)]
pub struct PromptLookup {
    /// Without `is_outline`: number of leading text blocks whose last engine block the index knows, plus one
    /// if the index knows the whole text. With `is_outline`: number of anchors whose last engine block the
    /// index knows.
    known: usize,
    /// Whether `known` counts only anchors, whose hashes the index learned from an outline of
    /// another gateway, and not all text blocks.
    is_outline: bool,
    /// Whether the index knows the last engine block of the whole text.
    is_whole: bool,
    /// The last engine blocks of the first and of the last text block that `known` counts. Most engines have
    /// nothing or all of a prompt in the cache, so most lookups need only these two engine blocks.
    ends: [Option<ChainBlock>; 2],
    /// The engine blocks between the ends of two successive known text blocks. They are kept for the next
    /// engine whose cached part of the prompt ends between the same two text blocks.
    span: Vec<ChainBlock>,
    /// Number of the known text block at whose end `span` ends. `None`: `span` is not filled yet.
    span_place: Option<usize>,
}

/// The part of a prompt that an engine has in its prefix cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedPrompt {
    /// Number of cached prompt tokens.
    pub tokens: u64,
    /// Number of leading text blocks that are cached completely.
    pub text_blocks: usize,
    /// Whether it is certain that the engine has no more of the prompt than `tokens`: the engine lacks a
    /// block that the index knows, or the index knows the whole text.
    pub is_decided: bool,
    /// Whether `tokens` is an estimate: the index learned an engine block near the end of the cached
    /// prompt from an outline of another gateway.
    pub is_expected: bool,
}

/// Initial capacity of `PromptLookup::span` in engine blocks. One text block of 512 bytes, about
/// 128 tokens, has fewer engine blocks.
const SPAN_BLOCKS: usize = 16;
/// Maximum number of engine blocks between the ends of two known text blocks. Two text blocks whose
/// hashes are in an outline can be thousands of engine blocks apart. A longer span is not looked
/// up, and none of its blocks counts as cached.
const MAX_SPAN_BLOCKS: u32 = 256;

impl PromptText<'_> {
    /// The hash of the text up to the end of the text block `index`, or of the whole text if there
    /// is no such block.
    fn up_to(&self, index: usize) -> u64 {
        self.blocks.get(index).copied().unwrap_or(self.whole)
    }
}

impl PromptLookup {
    /// Finds the text blocks of a prompt for which the index knows the last engine block within their text.
    pub fn new(text: PromptText<'_>, index: &TextIndex) -> Self {
        let is_whole = index.block(text.whole).is_some();
        let known = if is_whole {
            text.blocks.len() + 1
        } else {
            leading(text.blocks.len(), |block| index.block(text.up_to(block)).is_some())
        };
        let span = Vec::with_capacity(SPAN_BLOCKS);
        let mut lookup =
            Self { known, is_outline: false, is_whole, ends: [None; 2], span, span_place: None };
        if index.has_outlines && known < text.blocks.len() {
            lookup.extend_by_outline(text, index);
        }
        let last = lookup.known.checked_sub(1);
        lookup.ends =
            [last.map(|_| 0), last].map(|block| index.block(text.up_to(lookup.text_block(block?))));
        lookup
    }

    /// Uses the known anchors of an outline instead of the known leading text blocks if the anchors reach
    /// further into the text.
    fn extend_by_outline(&mut self, text: PromptText<'_>, index: &TextIndex) {
        let is_known = |number| index.block(text.up_to(anchor(number) - 1)).is_some();
        let known = leading(anchor_count(text.blocks.len()), is_known);
        if known.checked_sub(1).is_some_and(|last| anchor(last) > self.known) {
            (self.known, self.is_outline) = (known, true);
        }
    }

    /// Whether the index knows an engine block of the prompt.
    pub fn is_known(&self) -> bool {
        self.known > 0
    }

    /// Returns the position in the prompt of the known text block `number`, counted from 0. With
    /// `is_outline`, `number` counts only the anchors.
    fn text_block(&self, number: usize) -> usize {
        if self.is_outline { anchored_block(number) } else { number }
    }

    /// Returns the part of the prompt that an engine has in its prefix cache. `contents`: the
    /// contents of that cache.
    pub fn cached(
        &mut self,
        text: PromptText<'_>,
        index: &TextIndex,
        contents: &CacheContents,
    ) -> CachedPrompt {
        let known = self.known;
        // Engine blocks up to the last known text block that is cached. Whenever the closure returns true,
        // its text block is later in the prompt than at the previous time.
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
            cached.checked_sub(1).map_or(whole_blocks, |last| span[last].blocks())
        } else {
            whole_blocks
        };
        CachedPrompt {
            tokens: u64::from(blocks) * u64::from(contents.block_size()),
            text_blocks: self.text_blocks(resident).min(text.blocks.len()),
            is_decided: resident < known || self.is_whole,
            is_expected: index.has_outlines && self.is_expected(resident, text, index),
        }
    }

    /// Returns the number of leading text blocks of the prompt up to the end of the first `count`
    /// known text blocks or anchors.
    fn text_blocks(&self, count: usize) -> usize {
        if self.is_outline && count > 0 { anchor(count - 1) } else { count }
    }

    /// Whether the engine block of the known text block `resident`, or of the text block before it, is an
    /// estimate from an outline.
    #[cold]
    fn is_expected(&self, resident: usize, text: PromptText<'_>, index: &TextIndex) -> bool {
        let numbers = resident.saturating_sub(1)..(resident + 1).min(self.known);
        self.is_outline
            || numbers
                .filter_map(|number| self.place(number, text, index))
                .any(ChainBlock::is_expected)
    }

    /// Returns the last engine block within the text up to the end of the known text block or
    /// anchor `number`, counted from 0.
    fn place(&self, number: usize, text: PromptText<'_>, index: &TextIndex) -> Option<ChainBlock> {
        match number {
            0 => self.ends[0],
            last if last + 1 == self.known => self.ends[1],
            _ => index.block(text.up_to(self.text_block(number))),
        }
    }

    /// Returns the engine blocks of the prompt after the first `before` ones, up to the end of the
    /// known text block `number`. The result is empty if there are more than [`MAX_SPAN_BLOCKS`].
    fn span(
        &mut self,
        number: usize,
        before: u32,
        text: PromptText<'_>,
        index: &TextIndex,
    ) -> &[ChainBlock] {
        if self.span_place != Some(number) {
            // `clear` keeps the allocated memory of `span` for the new blocks.
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

/// Returns the position in the prompt of the last text block that the hash `number` of an outline
/// covers. `cold` keeps this function out of the code of a lookup without outlines, so that this
/// code stays short.
#[cold]
fn anchored_block(number: usize) -> usize {
    anchor(number) - 1
}

/// The number of leading values from 0 to `count` − 1 for which `holds` is true. `holds` must be
/// false for all values after the first for which it is false. Most engines have nothing or all of
/// a prompt, so the search tries both ends first.
fn leading(count: usize, mut holds: impl FnMut(usize) -> bool) -> usize {
    let Some(last) = count.checked_sub(1) else { return 0 };
    if !holds(0) {
        return 0;
    }
    if holds(last) {
        return count;
    }
    // `holds` is true for `low - 1` and false for `high`.
    let (mut low, mut high) = (1, last);
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
