//! The text model of the simulator. A token is four bytes of text, both in prompts and in outputs, so all token
//! counts are consistent. If a client sends an output back in its next prompt, the engine reuses the blocks
//! that it computed for the output.

use std::ops::Range;
use tokenweir_protocol::named_enum;

const TOKEN_BYTES: usize = 4;

/// Words of [`TOKEN_BYTES`] bytes. An output begins with one of them.
const OPENING_WORDS: &str = "NuncQuidHaecAmorVitaUrbsLunaQuae";
/// Words of [`TOKEN_BYTES`] bytes for the rest of an output.
const WORDS: &str = " sit est qui non sed nec vel aut hic cum dum per pro res lex pax lux vox rex dux \
                     ars vis mos ius sol mel nox sal via, et, ut. At";

/// A prompt, as the bytes of its tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SimulatedPrompt {
    bytes: Vec<u8>,
}

impl SimulatedPrompt {
    /// Creates a prompt from a text.
    pub fn new(text: &str) -> Self {
        let mut prompt = Self::default();
        prompt.push(text);
        prompt
    }

    /// Creates a prompt from token ids.
    pub fn from_tokens(tokens: &[u32]) -> Self {
        Self {
            bytes: tokens
                .iter()
                .flat_map(|token| token.to_le_bytes())
                .collect(),
        }
    }

    /// Appends a text, padded to whole tokens.
    pub fn push(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes
            .resize(self.bytes.len().next_multiple_of(TOKEN_BYTES), 0);
    }

    /// Appends a chat message. If the text is empty, the output of the model begins after the role.
    pub fn push_message(&mut self, role: &str, text: &str) {
        self.push(role);
        self.push(":");
        self.push(text);
    }

    /// The length in tokens, at least 1.
    pub fn token_count(&self) -> u32 {
        (self.bytes.len() / TOKEN_BYTES).max(1) as u32
    }

    /// The token ids, from which [`from_tokens`](Self::from_tokens) makes the prompt again.
    pub fn tokens(&self) -> impl Iterator<Item = u32> + '_ {
        let tokens = self.bytes.chunks_exact(TOKEN_BYTES);
        tokens.map(|token| u32::from_le_bytes([token[0], token[1], token[2], token[3]]))
    }

    /// The text without padding.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).replace('\0', "")
    }

    /// A hash of the whole prompt.
    pub fn hash(&self) -> u64 {
        chain_hash(0, &self.bytes)
    }

    /// The chained hashes of the full blocks of this prompt and `output` together. The hash of a block depends
    /// on all blocks before it.
    pub fn block_hashes(&self, output: &SimulatedOutput, block_size: u32) -> Vec<u64> {
        let mut hash = 0;
        let text = self.followed_by(output);
        let blocks = text
            .bytes
            .chunks_exact(TOKEN_BYTES * block_size.max(1) as usize);
        blocks
            .map(|block| {
                hash = chain_hash(hash, block);
                hash
            })
            .collect()
    }

    /// A prompt that consists of this prompt and an output.
    pub fn followed_by(&self, output: &SimulatedOutput) -> Self {
        let mut bytes = self.bytes.clone();
        bytes.extend((0..output.word_count()).flat_map(|nth| output.nth_word(nth).bytes()));
        Self { bytes }
    }
}

/// An output with one word per token. A seed always gives the same words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulatedOutput {
    /// Seed of the pseudorandom words.
    pub seed: u64,
    /// Length of the output in tokens.
    pub tokens: u32,
    /// Why the output ends.
    pub finish: SimulatedFinishReason,
}

named_enum! {
    /// The reason why an output ends, as vLLM's `finish_reason`.
    pub enum SimulatedFinishReason {
        /// The model stopped. The last token is the stop token and has no text.
        Stop = "stop",
        /// The token limit of the request was reached.
        Length = "length",
    }
}

impl SimulatedOutput {
    /// An output whose length depends on the seed: 32 to 256 tokens. If this exceeds `max_tokens`, the output
    /// has `max_tokens` tokens and the finish reason `Length`.
    pub fn stopping(seed: u64, max_tokens: u32) -> Self {
        let tokens = 32 + (mix(seed, 1) % 225) as u32;
        if tokens <= max_tokens {
            Self {
                seed,
                tokens,
                finish: SimulatedFinishReason::Stop,
            }
        } else {
            Self {
                seed,
                tokens: max_tokens,
                finish: SimulatedFinishReason::Length,
            }
        }
    }

    /// Appends the text of a range of tokens to `text`.
    pub fn write(&self, tokens: Range<u32>, text: &mut String) {
        text.extend(
            (tokens.start..tokens.end.min(self.word_count())).map(|nth| self.nth_word(nth)),
        );
    }

    /// The words of all tokens as one text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.write(0..self.tokens, &mut text);
        text
    }

    fn word_count(&self) -> u32 {
        match self.finish {
            SimulatedFinishReason::Stop => self.tokens.saturating_sub(1),
            SimulatedFinishReason::Length => self.tokens,
        }
    }

    fn nth_word(&self, nth: u32) -> &'static str {
        let hash = mix(self.seed, u64::from(nth)) as usize;
        let words = if nth == 0 { OPENING_WORDS } else { WORDS };
        let start = hash % (words.len() / TOKEN_BYTES) * TOKEN_BYTES;
        &words[start..start + TOKEN_BYTES]
    }
}

/// Mixes two numbers into a hash. The result does not depend on the machine or the version.
pub fn mix(a: u64, b: u64) -> u64 {
    let a = u128::from(a ^ 0x9E37_79B9_7F4A_7C15);
    let b = u128::from(b ^ 0xD6E8_FEB8_6659_FD93);
    let product = a.wrapping_mul(b);
    let folded = (product >> 64) as u64 ^ product as u64;
    (folded ^ (folded >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

fn chain_hash(parent: u64, bytes: &[u8]) -> u64 {
    bytes
        .chunks(8)
        .fold(mix(parent, bytes.len() as u64), |hash, word| {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            mix(hash, u64::from_le_bytes(padded)).rotate_left(23)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY_OUTPUT: SimulatedOutput = SimulatedOutput {
        seed: 0,
        tokens: 0,
        finish: SimulatedFinishReason::Length,
    };

    #[test]
    fn a_simulated_token_is_four_bytes_of_text() {
        let prompt = SimulatedPrompt::new("hello");
        assert_eq!(
            (prompt.token_count(), SimulatedPrompt::new("").token_count()),
            (2, 1)
        );
        let tokens: Vec<u32> = prompt.tokens().collect();
        assert_eq!(SimulatedPrompt::from_tokens(&tokens).text(), "hello");
        assert!(
            [OPENING_WORDS, WORDS]
                .iter()
                .all(|words| words.len() % TOKEN_BYTES == 0)
        );
    }

    #[test]
    fn common_prefixes_have_equal_block_hashes() {
        let a = "x".repeat(40) + "one";
        let b = "x".repeat(40) + "two, longer than the other";
        let a = SimulatedPrompt::new(&a).block_hashes(&EMPTY_OUTPUT, 4);
        let b = SimulatedPrompt::new(&b).block_hashes(&EMPTY_OUTPUT, 4);
        assert_eq!((a.len(), b.len()), (2, 4));
        assert_eq!(a[..2], b[..2]);
        assert_ne!(b[2], b[3]);
    }

    #[test]
    fn the_stop_token_has_no_text() {
        let output = SimulatedOutput::stopping(3, 1000);
        assert_eq!(output.finish, SimulatedFinishReason::Stop);
        assert_eq!(
            output.text().len(),
            (output.tokens as usize - 1) * TOKEN_BYTES
        );
        assert_eq!(
            SimulatedOutput::stopping(3, 5),
            SimulatedOutput {
                seed: 3,
                tokens: 5,
                finish: SimulatedFinishReason::Length
            }
        );
    }
}
