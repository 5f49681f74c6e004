//! A prompt as routing sees it: how long it is and which blocks it is made of, without its text.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A prompt in bytes as they stand in the request, and as hashes of blocks of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Its length in bytes.
    pub bytes: u64,
    /// A hash of each whole block and all before it.
    pub blocks: Box<[u64]>,
    /// Bytes in a block.
    pub block_bytes: u32,
}

/// Bytes in a block: about 128 tokens of English.
const BLOCK_BYTES: u32 = 512;
/// Most blocks of a prompt that are looked at: 4 MiB, or about a million tokens.
const MAX_BLOCKS: usize = 8_192;

impl Prompt {
    /// A prompt of these parts, in the order in which the model reads them. Prompts of different
    /// seeds have no blocks in common. What does not fill a block at the end of a part still
    /// counts for the blocks after it, so that equal tools before other messages are one prefix.
    pub fn new<'a>(seed: u64, parts: impl Iterator<Item = &'a [u8]>) -> Self {
        let (mut bytes, mut blocks, mut before) = (0, Vec::new(), seed);
        for part in parts {
            bytes += part.len() as u64;
            let (whole, rest) = part.as_chunks::<{ BLOCK_BYTES as usize }>();
            blocks.reserve(whole.len().min(MAX_BLOCKS - blocks.len()));
            for block in whole {
                if blocks.len() == MAX_BLOCKS {
                    break;
                }
                before = xxh3_64_with_seed(block, before);
                blocks.push(before);
            }
            before = xxh3_64_with_seed(rest, before);
        }
        Self { bytes, blocks: blocks.into(), block_bytes: BLOCK_BYTES }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(seed: u64, parts: &[&str]) -> Prompt {
        Prompt::new(seed, parts.iter().map(|part| part.as_bytes()))
    }

    fn common(a: &Prompt, b: &Prompt) -> usize {
        a.blocks.iter().zip(&b.blocks).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn a_conversation_that_goes_on_has_the_blocks_of_what_it_was() {
        let before = "a word ".repeat(1_000);
        let after = format!("{before} and an answer {}", "b ".repeat(2_000));
        let (before, after) = (prompt(1, &["tools", &before]), prompt(1, &["tools", &after]));
        assert_eq!(before.blocks.len(), 7_000 / 512);
        assert_eq!(common(&before, &after), before.blocks.len());
    }

    #[test]
    fn another_seed_or_other_tools_make_another_prompt() {
        let text = "a word ".repeat(1_000);
        let one = prompt(1, &["tools", &text]);
        assert_eq!(common(&one, &prompt(2, &["tools", &text])), 0);
        assert_eq!(common(&one, &prompt(1, &["other", &text])), 0);
    }

    #[test]
    fn a_block_depends_on_all_before_it() {
        let (head, tail) = ("h".repeat(512), "t".repeat(5_120));
        let (a, b) =
            (prompt(1, &[&format!("{head}{tail}")]), prompt(1, &[&format!("{tail}{head}")]));
        assert!(a.blocks.iter().all(|block| !b.blocks.contains(block)));
    }

    #[test]
    fn a_prompt_without_end_has_blocks_with_an_end() {
        let huge = "x".repeat(5 << 20);
        let prompt = prompt(1, &[&huge]);
        assert_eq!((prompt.bytes, prompt.blocks.len()), (5 << 20, 8_192));
    }
}
