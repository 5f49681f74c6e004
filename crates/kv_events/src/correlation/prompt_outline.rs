//! The outline of a prompt: hashes of some of its leading text blocks, short enough for a session id. The
//! gateway that sends a prompt writes the outline into the session id. The events of the engine carry the
//! session id. So every other gateway that receives the events learns which text the engine blocks contain.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

/// Hashes of some leading text blocks of a prompt, and the size of the prompt in tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptOutline {
    /// Expected number of tokens in the whole prompt.
    tokens: u32,
    /// Expected number of tokens in one text block.
    block_tokens: f32,
    /// Hashes of the text of the prompt, each up to the end of one of the text blocks that
    /// [`anchor`] selects.
    hashes: Vec<u64>,
}

/// Number of text blocks at the beginning of a prompt that each have a hash in the outline.
const LEADING_BLOCKS: usize = 8;
/// Number of hashes in the outline for each doubling of the length of the text, after the first
/// [`LEADING_BLOCKS`] text blocks.
const PER_DOUBLING: usize = 4;
/// Maximum number of hashes in an outline. A prompt of 8,192 text blocks has this number. The gateway hashes
/// no more text blocks of a prompt.
const MAX_HASHES: usize = 48;
/// Number of bytes before the hashes in an encoded outline: two numbers of 32 bits.
const HEAD_BYTES: usize = 8;

/// Number of leading text blocks that the `index`-th hash of an outline covers: 1 to 8, 10, 12, 14,
/// 16, 20, 24, 28, 32, 40 and so on.
pub(super) fn anchor(index: usize) -> usize {
    let Some(after) = index.checked_sub(LEADING_BLOCKS) else { return index + 1 };
    (PER_DOUBLING + 1 + after % PER_DOUBLING) << (1 + after / PER_DOUBLING)
}

/// Returns the number of hashes in the outline of a text of `blocks` text blocks.
pub(super) fn anchor_count(blocks: usize) -> usize {
    (0..MAX_HASHES).take_while(|index| anchor(*index) <= blocks).count()
}

impl PromptOutline {
    /// Returns, for each hash in the outline of a text of `blocks` text blocks, the number of
    /// leading text blocks that the hash covers.
    pub fn anchors(blocks: usize) -> impl Iterator<Item = usize> {
        (0..anchor_count(blocks)).map(anchor)
    }

    /// Builds the outline of a prompt of about `tokens` tokens in `bytes` bytes. `blocks`: hashes
    /// of the text blocks of the prompt, of `block_bytes` bytes each. Each hash covers the block
    /// and all text before it.
    pub fn new(blocks: &[u64], block_bytes: u32, bytes: u64, tokens: u64) -> Self {
        let hashes = Self::anchors(blocks.len()).map(|anchor| blocks[anchor - 1]);
        Self {
            tokens: u32::try_from(tokens).unwrap_or(u32::MAX),
            block_tokens: (tokens as f64 * f64::from(block_bytes) / bytes.max(1) as f64) as f32,
            hashes: hashes.collect(),
        }
    }

    /// Each hash of the outline, with the expected number of complete engine blocks in the text that the hash
    /// covers. `block_size`: tokens of an engine block.
    pub(super) fn places(&self, block_size: u32) -> impl Iterator<Item = (u64, u32)> {
        let place = move |index| {
            let tokens = (anchor(index) as f32 * self.block_tokens).min(self.tokens as f32);
            (tokens / block_size.max(1) as f32) as u32
        };
        self.hashes.iter().enumerate().map(move |(index, hash)| (*hash, place(index)))
    }

    /// Encodes the outline as text for a session id. `tag` computes the authentication tag, which
    /// is appended to the bytes of the outline.
    pub(super) fn encode(&self, tag: impl FnOnce(&[u8]) -> [u8; TAG_BYTES]) -> String {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + 8 * self.hashes.len() + TAG_BYTES);
        bytes.extend(self.tokens.to_be_bytes());
        bytes.extend(self.block_tokens.to_be_bytes());
        bytes.extend(self.hashes.iter().flat_map(|hash| hash.to_be_bytes()));
        let tag = tag(&bytes);
        bytes.extend(tag);
        BASE64_URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads the text that [`Self::encode`] wrote. `is_authentic` checks whether the tag belongs to
    /// the bytes before it. `None`: the text is no outline, or its tag is wrong.
    pub(super) fn decode(
        text: &str,
        is_authentic: impl FnOnce(&[u8], &[u8]) -> bool,
    ) -> Option<Self> {
        let mut buffer = [0; HEAD_BYTES + 8 * MAX_HASHES + TAG_BYTES];
        let length = BASE64_URL_SAFE_NO_PAD.decode_slice(text, &mut buffer).ok()?;
        let (content, tag) = buffer[..length].split_last_chunk::<TAG_BYTES>()?;
        let (tokens, rest) = content.split_first_chunk()?;
        let (block_tokens, rest) = rest.split_first_chunk()?;
        let (hashes, []) = rest.as_chunks() else { return None };
        is_authentic(content, tag).then(|| Self {
            tokens: u32::from_be_bytes(*tokens),
            block_tokens: f32::from_be_bytes(*block_tokens),
            hashes: hashes.iter().copied().map(u64::from_be_bytes).collect(),
        })
    }

    /// The expected number of prompt tokens in the encoded outline `text`. Does not check that the outline is
    /// authentic.
    pub(super) fn peek_tokens(text: &str) -> Option<u32> {
        let mut buffer = [0; 6];
        BASE64_URL_SAFE_NO_PAD.decode_slice(text.get(..8)?, &mut buffer).ok()?;
        buffer.first_chunk().map(|tokens| u32::from_be_bytes(*tokens))
    }
}

/// Length of the authentication tag in bytes: HMAC-SHA-256.
pub(super) const TAG_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_outline_has_a_hash_for_each_of_the_first_8_text_blocks_then_4_for_each_doubling() {
        let anchors: Vec<usize> = (0..17).map(anchor).collect();
        assert_eq!(anchors, [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40]);
        assert_eq!(anchor(MAX_HASHES - 1), 8_192);
        let counts = [0, 1, 8, 9, 10, 31, 32, 8_192, 100_000].map(anchor_count);
        assert_eq!(counts, [0, 1, 8, 8, 9, 15, 16, MAX_HASHES, MAX_HASHES]);
    }

    #[test]
    fn an_outline_places_each_hash_in_proportion_to_the_text_and_within_the_prompt() {
        let outline = PromptOutline::new(&[11, 12, 13], 512, 1_600, 400);
        assert_eq!(outline.places(16).collect::<Vec<_>>(), [(11, 8), (12, 16), (13, 24)]);
        let shorter = PromptOutline { tokens: 300, ..outline };
        assert_eq!(shorter.places(16).last(), Some((13, 18)));
    }

    proptest! {
        #[test]
        fn an_outline_is_equal_after_encoding_and_decoding_and_its_encoded_text_has_a_bounded_length(
            blocks in proptest::collection::vec(any::<u64>(), 0..400), tokens in 0_u64..1 << 33,
        ) {
            let outline = PromptOutline::new(&blocks, 512, 512 * blocks.len() as u64 + 9, tokens);
            let text = outline.encode(|_| [7; TAG_BYTES]);
            prop_assert!(text.len() <= 566);
            prop_assert_eq!(PromptOutline::peek_tokens(&text), Some(outline.tokens));
            let decoded = PromptOutline::decode(&text, |_, tag| tag == [7; TAG_BYTES]);
            prop_assert_eq!(decoded, Some(outline));
            prop_assert_eq!(PromptOutline::decode(&text, |_, _| false), None);
        }

        #[test]
        fn the_decoder_of_prompt_outlines_does_not_panic_on_any_text(text in "[A-Za-z0-9_.~-]{0,600}", any in ".{0,40}") {
            for text in [text, any] {
                let outline = PromptOutline::decode(&text, |_, _| true);
                prop_assert!(outline.is_none_or(|outline| outline.hashes.len() <= MAX_HASHES));
                let _ = PromptOutline::peek_tokens(&text);
            }
        }
    }
}
