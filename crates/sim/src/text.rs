//! The simulator's language. A token is four bytes of text, in prompts and in answers alike, so
//! every count agrees with every other, and an answer that comes back as part of the next prompt
//! finds the blocks in which it was computed.

use std::ops::Range;

const TOKEN_BYTES: usize = 4;

const OPENINGS: [&str; 8] = ["Nunc", "Quid", "Haec", "Amor", "Vita", "Urbs", "Luna", "Quae"];
const WORDS: [&str; 32] = [
    " sit", " est", " qui", " non", " sed", " nec", " vel", " aut", " hic", " cum", " dum", " per",
    " pro", " res", " lex", " pax", " lux", " vox", " rex", " dux", " ars", " vis", " mos", " ius",
    " sol", " mel", " nox", " sal", " via", ", et", ", ut", ". At",
];

/// A prompt, as the bytes that its tokens are made of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompt {
    bytes: Vec<u8>,
}

impl Prompt {
    /// A text as it stands.
    pub fn new(text: &str) -> Self {
        let mut prompt = Self::default();
        prompt.push(text);
        prompt
    }

    /// A prompt that comes as tokens.
    pub fn from_tokens(tokens: &[u32]) -> Self {
        Self { bytes: tokens.iter().flat_map(|token| token.to_le_bytes()).collect() }
    }

    /// Appends a text, filled up to whole tokens.
    pub fn push(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(TOKEN_BYTES), 0);
    }

    /// Appends a message, or with an empty text the beginning of an answer.
    pub fn push_message(&mut self, role: &str, text: &str) {
        self.push(role);
        self.push(":");
        self.push(text);
    }

    /// The length in tokens, at least 1.
    pub fn token_count(&self) -> u32 {
        (self.bytes.len() / TOKEN_BYTES).max(1) as u32
    }

    /// The tokens; [`from_tokens`](Self::from_tokens) turns them back.
    pub fn tokens(&self) -> impl Iterator<Item = u32> + '_ {
        self.pieces().map(u32::from_le_bytes)
    }

    /// The text, without what filled up its tokens.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).replace('\0', "")
    }

    /// The text of each token.
    pub fn token_texts(&self) -> impl Iterator<Item = String> + '_ {
        self.pieces().map(|piece| String::from_utf8_lossy(&piece).replace('\0', ""))
    }

    /// A number that stands for the whole prompt.
    pub fn hash(&self) -> u64 {
        chain(0, &self.bytes)
    }

    /// The chained hashes of the full blocks of this prompt followed by an answer.
    pub fn block_hashes(&self, answer: &Answer, block_size: u32) -> Vec<u64> {
        let mut bytes = self.bytes.clone();
        bytes.extend((0..answer.words()).flat_map(|nth| answer.word(nth).bytes()));
        let mut hash = 0;
        let blocks = bytes.chunks_exact(TOKEN_BYTES * block_size.max(1) as usize);
        blocks
            .map(|block| {
                hash = chain(hash, block);
                hash
            })
            .collect()
    }

    fn pieces(&self) -> impl Iterator<Item = [u8; TOKEN_BYTES]> + '_ {
        self.bytes.chunks_exact(TOKEN_BYTES).map(|piece| [piece[0], piece[1], piece[2], piece[3]])
    }
}

/// An answer: one word per token, always the same for the same seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// What the words are drawn from.
    pub seed: u64,
    /// Length in tokens.
    pub tokens: u32,
    /// Why it ends there.
    pub finish: Finish,
}

/// Why an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model had enough: the last token says so and has no text.
    Stop,
    /// The client asked for no more.
    Length,
}

impl Finish {
    /// The name in vLLM's `finish_reason`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

impl Answer {
    /// An answer of the model's own length, unless there is room for `most` tokens only.
    pub fn stopping(seed: u64, most: u32) -> Self {
        let tokens = 32 + (mix(seed, 1) % 225) as u32;
        if tokens <= most {
            Self { seed, tokens, finish: Finish::Stop }
        } else {
            Self { seed, tokens: most, finish: Finish::Length }
        }
    }

    /// Appends the text of some of the tokens.
    pub fn write(&self, tokens: Range<u32>, text: &mut String) {
        text.extend((tokens.start..tokens.end.min(self.words())).map(|nth| self.word(nth)));
    }

    /// The whole text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.write(0..self.tokens, &mut text);
        text
    }

    fn words(&self) -> u32 {
        match self.finish {
            Finish::Stop => self.tokens.saturating_sub(1),
            Finish::Length => self.tokens,
        }
    }

    fn word(&self, nth: u32) -> &'static str {
        let draw = mix(self.seed, u64::from(nth)) as usize;
        if nth == 0 { OPENINGS[draw % OPENINGS.len()] } else { WORDS[draw % WORDS.len()] }
    }
}

/// Mixes two numbers into one that shows no trace of them. Stable between versions and machines.
pub fn mix(a: u64, b: u64) -> u64 {
    let a = u128::from(a ^ 0x9E37_79B9_7F4A_7C15);
    let b = u128::from(b ^ 0xD6E8_FEB8_6659_FD93);
    let product = a.wrapping_mul(b);
    let folded = (product >> 64) as u64 ^ product as u64;
    (folded ^ (folded >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

fn chain(parent: u64, bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(mix(parent, bytes.len() as u64), |hash, word| {
        let mut eight = [0; 8];
        eight[..word.len()].copy_from_slice(word);
        mix(hash, u64::from_le_bytes(eight)).rotate_left(23)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Answer = Answer { seed: 0, tokens: 0, finish: Finish::Length };

    #[test]
    fn a_token_is_four_bytes() {
        let prompt = Prompt::new("hello");
        assert_eq!((prompt.token_count(), Prompt::new("").token_count()), (2, 1));
        assert_eq!(prompt.token_texts().collect::<Vec<_>>(), ["hell", "o"]);
        let tokens: Vec<u32> = prompt.tokens().collect();
        assert_eq!(Prompt::from_tokens(&tokens).text(), "hello");
        assert!(OPENINGS.iter().chain(&WORDS).all(|word| word.len() == TOKEN_BYTES));
    }

    #[test]
    fn prompts_that_begin_alike_have_hashes_that_begin_alike() {
        let (a, b) = ("x".repeat(40) + "one", "x".repeat(40) + "two, longer than the other");
        let (a, b) =
            (Prompt::new(&a).block_hashes(&NONE, 4), Prompt::new(&b).block_hashes(&NONE, 4));
        assert_eq!((a.len(), b.len()), (2, 4));
        assert_eq!(a[..2], b[..2]);
        assert_ne!(b[2], b[3]);
    }

    #[test]
    fn the_answer_of_one_turn_is_a_prefix_of_the_next_prompt() {
        let mut prompt = Prompt::default();
        prompt.push_message("user", "How are you?");
        prompt.push_message("assistant", "");
        let answer = Answer { seed: 7, tokens: 20, finish: Finish::Stop };

        let mut next = Prompt::default();
        next.push_message("user", "How are you?");
        next.push_message("assistant", &answer.text());
        next.push_message("user", "And now?");
        let (first, next) = (prompt.block_hashes(&answer, 4), next.block_hashes(&NONE, 4));
        assert!(first.len() > prompt.block_hashes(&NONE, 4).len());
        assert_eq!(next[..first.len()], first);
    }

    #[test]
    fn an_answer_that_stops_has_a_last_token_without_text() {
        let answer = Answer::stopping(3, 1000);
        assert_eq!(answer.finish, Finish::Stop);
        assert_eq!(answer.text().len(), (answer.tokens as usize - 1) * TOKEN_BYTES);
        assert_eq!(Answer::stopping(3, 5), Answer { seed: 3, tokens: 5, finish: Finish::Length });
    }
}
