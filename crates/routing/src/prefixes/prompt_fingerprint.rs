//! Fingerprint of a prompt for prefix matching: its length and the hashes of its blocks, without
//! its text.

use tokenweir_protocol::openai::left_out::PromptPiece;
use tokenweir_protocol::openai::prompt::TOKENS_PER_MEDIA_BYTE;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Length and block hashes of a prompt, computed from the bytes of the prompt in the request body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptFingerprint {
    /// Length of the prompt in bytes.
    pub bytes: u64,
    /// Number of these bytes that are images, audio and video.
    pub media: u64,
    /// The hash of each full block, which covers the block and all bytes of the prompt before it.
    pub blocks: Box<[u64]>,
    /// Hash of the whole prompt. 0: not known.
    pub whole: u64,
    /// Size of a block in bytes.
    pub block_bytes: u32,
}

/// Size of a block in bytes: about 128 tokens of English text.
const BLOCK_BYTES: u32 = 512;
/// Maximum number of blocks that are hashed: 4 MiB, or about a million tokens.
const MAX_BLOCKS: usize = 8_192;

impl PromptFingerprint {
    /// The fingerprint of a prompt that consists of `pieces`, in the order in which the model reads them. The
    /// division of a part into pieces has no effect.
    ///
    /// A part is one value of the request body, such as the tools or the messages. Prompts with different seeds
    /// share no hashes. No block extends over two parts, so two prompts with equal tools and different messages
    /// share the blocks of the tools. The end of a part that does not fill a block changes the hashes of all
    /// later blocks.
    pub fn new<'a, P>(seed: u64, pieces: impl Iterator<Item = P>) -> Self
    where
        P: Into<PromptPiece<'a>>,
    {
        let mut hasher = BlockHasher {
            hash: seed,
            ..BlockHasher::default()
        };
        pieces.for_each(|piece| hasher.push(piece.into()));
        let BlockHasher {
            hash,
            bytes,
            blocks,
            ..
        } = hasher;
        Self {
            bytes,
            media: 0,
            blocks: blocks.into(),
            whole: hash,
            block_bytes: BLOCK_BYTES,
        }
    }

    /// Returns the fingerprint with `media` as the number of bytes that are images, audio and video.
    pub fn with_media(self, media: u64) -> Self {
        Self {
            media: media.min(self.bytes),
            ..self
        }
    }

    /// The estimated number of tokens of the prompt. `tokens_per_byte`: the ratio for text.
    pub fn tokens(&self, tokens_per_byte: f64) -> f64 {
        if self.media == 0 {
            return self.bytes as f64 * tokens_per_byte;
        }
        let text = self.bytes.saturating_sub(self.media) as f64;
        text * tokens_per_byte + self.media as f64 * TOKENS_PER_MEDIA_BYTE
    }

    /// The estimated mean number of tokens of a block. `tokens_per_byte`: the ratio for text.
    pub fn block_tokens(&self, tokens_per_byte: f64) -> f64 {
        let of_prompt = if self.media == 0 {
            tokens_per_byte
        } else {
            self.tokens(tokens_per_byte) / self.bytes as f64
        };
        f64::from(self.block_bytes) * of_prompt
    }
}

/// Hashes a prompt piece by piece.
#[derive(Default)]
struct BlockHasher {
    hash: u64,
    bytes: u64,
    blocks: Vec<u64>,
    /// The beginning of a block that the next piece of the part continues.
    begun: Vec<u8>,
}

impl BlockHasher {
    #[inline]
    fn push(&mut self, piece: PromptPiece<'_>) {
        self.bytes += piece.bytes.len() as u64;
        let mut text = piece.bytes;
        if !self.begun.is_empty() {
            text = self.continue_block(text);
        }
        let (full_blocks, rest) = text.as_chunks::<{ BLOCK_BYTES as usize }>();
        self.blocks
            .reserve(full_blocks.len().min(MAX_BLOCKS - self.blocks.len()));
        for block in full_blocks {
            if self.blocks.len() == MAX_BLOCKS {
                break;
            }
            self.hash = xxh3_64_with_seed(block, self.hash);
            self.blocks.push(self.hash);
        }
        if !piece.ends_part || !self.begun.is_empty() {
            self.begun.extend_from_slice(rest);
        }
        if piece.ends_part {
            let rest = if self.begun.is_empty() {
                rest
            } else {
                &self.begun
            };
            self.hash = xxh3_64_with_seed(rest, self.hash);
            self.begun.clear();
        }
    }

    /// Moves bytes from `text` to the begun block until it is full. Returns the rest.
    #[cold]
    fn continue_block<'a>(&mut self, text: &'a [u8]) -> &'a [u8] {
        let missing = (BLOCK_BYTES as usize - self.begun.len()).min(text.len());
        self.begun.extend_from_slice(&text[..missing]);
        if self.begun.len() == BLOCK_BYTES as usize {
            if self.blocks.len() < MAX_BLOCKS {
                self.hash = xxh3_64_with_seed(&self.begun, self.hash);
                self.blocks.push(self.hash);
            }
            self.begun.clear();
        }
        &text[missing..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(seed: u64, parts: &[&str]) -> PromptFingerprint {
        PromptFingerprint::new(seed, parts.iter().map(|part| part.as_bytes()))
    }

    fn common_blocks(a: &PromptFingerprint, b: &PromptFingerprint) -> usize {
        a.blocks
            .iter()
            .zip(&b.blocks)
            .take_while(|(a, b)| a == b)
            .count()
    }

    #[test]
    fn a_continued_conversation_keeps_its_hashes() {
        let before = "a word ".repeat(1_000);
        let after = format!("{before} and an answer {}", "b ".repeat(2_000));
        let before = prompt(1, &["tools", &before]);
        let after = prompt(1, &["tools", &after]);
        assert_eq!(before.blocks.len(), 7_000 / 512);
        assert_eq!(common_blocks(&before, &after), before.blocks.len());
    }

    #[test]
    fn different_seeds_or_tools_share_no_hash() {
        let text = "a word ".repeat(1_000);
        let one = prompt(1, &["tools", &text]);
        assert_eq!(common_blocks(&one, &prompt(2, &["tools", &text])), 0);
        assert_eq!(common_blocks(&one, &prompt(1, &["other", &text])), 0);
    }

    #[test]
    fn a_hash_depends_on_all_bytes_before() {
        let head = "h".repeat(512);
        let tail = "t".repeat(5_120);
        let a = prompt(1, &[&format!("{head}{tail}")]);
        let b = prompt(1, &[&format!("{tail}{head}")]);
        assert!(a.blocks.iter().all(|block| !b.blocks.contains(block)));
    }

    #[test]
    fn the_whole_hash_depends_on_the_remaining_bytes() {
        let text = "t".repeat(600);
        let [a, b] = ["x", "y"].map(|end| prompt(1, &[&format!("{text}{end}")]));
        assert_eq!(a.blocks, b.blocks);
        assert_ne!(a.whole, b.whole);
    }

    #[test]
    fn the_division_into_pieces_changes_no_hash() {
        let text = "some words ".repeat(200);
        let whole = prompt(1, &["tools", &text]);
        for length in [1, 7, 511, 512, 513, 1_024, 2_199] {
            let mut pieces = vec![PromptPiece::from(&b"tools"[..])];
            for bytes in text.as_bytes().chunks(length) {
                pieces.push(PromptPiece {
                    bytes,
                    ends_part: false,
                });
                pieces.push(PromptPiece {
                    bytes: b"",
                    ends_part: false,
                });
            }
            pieces.push(PromptPiece::from(&b""[..]));
            assert_eq!(
                PromptFingerprint::new(1, pieces.into_iter()),
                whole,
                "{length}"
            );
        }
    }

    #[test]
    fn the_number_of_hashed_blocks_is_bounded() {
        let huge = "x".repeat(5 << 20);
        let prompt = prompt(1, &[&huge]);
        assert_eq!((prompt.bytes, prompt.blocks.len()), (5 << 20, 8_192));
    }

    #[test]
    fn an_image_counts_as_a_thousand_tokens() {
        let text = "word ".repeat(800);
        let image = "QUJD".repeat(1 << 18);
        let parts = [text.as_bytes(), image.as_bytes()];
        let prompt = PromptFingerprint::new(1, parts.into_iter()).with_media(1 << 20);
        assert!((prompt.tokens(0.25) - 2_024.0).abs() < 1e-9);
        let in_blocks = prompt.block_tokens(0.25) * prompt.blocks.len() as f64;
        assert!((in_blocks - 2_024.0).abs() < 5.0, "{in_blocks}");
    }
}
