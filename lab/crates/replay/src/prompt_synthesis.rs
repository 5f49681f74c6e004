//! Generates prompt texts for a trace without texts, from the hashes of its blocks.
//!
//! Equal blocks become equal text, so prefix caches have the same hits as with the recorded prompts. A prompt
//! has about as many tokens as the recorded prompt.

use super::trace::TraceRequest;
use tokenweir_sim::text::mix;

/// Generator of the prompts of one trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PromptSynthesizer {
    /// Words per block. The number is the same in all prompts. Otherwise the blocks that two prompts share
    /// would not begin at the same positions of the text.
    block_words: usize,
    words_per_token: f64,
    salt: u64,
}

/// Words of four bytes, including the space, that are one token each in common vocabularies.
const SINGLE_TOKEN_WORDS: [&str; 64] = [
    " the", " and", " for", " are", " but", " not", " you", " all", " any", " can", " had", " her",
    " was", " one", " our", " out", " day", " get", " has", " him", " his", " how", " man", " new",
    " now", " old", " see", " two", " way", " who", " boy", " did", " its", " let", " put", " say",
    " she", " too", " use", " dad", " mom", " act", " add", " age", " ago", " air", " art", " ask",
    " bad", " bag", " bar", " bed", " big", " bit", " box", " bus", " buy", " car", " cat", " cup",
    " cut", " dog", " dry", " eat",
];

/// Length of a word in bytes, including the space.
const WORD_BYTES: f64 = 4.0;
/// Seed of the text after the last block, so that this text differs from the text of all blocks.
const REMAINDER_SEED: u64 = 0x7265_7374;

impl PromptSynthesizer {
    /// A generator for the requests of a trace. Each token of the trace becomes `bytes_per_token` bytes of
    /// text, in words of 4 bytes. `salt`: another value gives other words.
    pub fn new(jobs: &[TraceRequest], bytes_per_token: f64, salt: u64) -> Self {
        let words_per_token = bytes_per_token / WORD_BYTES;
        let tokens: f64 = jobs.iter().map(|job| f64::from(job.prompt_tokens)).sum();
        let bytes: f64 = jobs.iter().map(|job| job.prompt.bytes as f64).sum();
        let block_bytes = jobs.first().map_or(1, |job| job.prompt.block_bytes);
        let block_tokens = f64::from(block_bytes) * tokens / bytes.max(1.0);
        let block_words = (block_tokens * words_per_token).round().max(1.0) as usize;
        Self {
            block_words,
            words_per_token,
            salt,
        }
    }

    /// The prompt of a request. The text after the last block is different for each `number`.
    pub fn prompt(&self, job: &TraceRequest, number: u64) -> String {
        let mut remaining = (f64::from(job.prompt_tokens) * self.words_per_token)
            .round()
            .max(1.0) as usize;
        let mut text = String::with_capacity(remaining * WORD_BYTES as usize);
        for block in &job.prompt.blocks {
            let words = remaining.min(self.block_words);
            self.write(&mut text, *block, words);
            remaining -= words;
        }
        self.write(&mut text, mix(number, REMAINDER_SEED), remaining);
        text
    }

    fn write(&self, text: &mut String, seed: u64, words: usize) {
        let mut random = fastrand::Rng::with_seed(mix(seed, self.salt));
        let count = SINGLE_TOKEN_WORDS.len();
        text.extend((0..words).map(|_| SINGLE_TOKEN_WORDS[random.usize(..count)]));
    }
}

#[cfg(test)]
mod tests {
    use super::super::trace;
    use super::*;

    fn jobs() -> Vec<TraceRequest> {
        let lines = [
            r#"{"timestamp":0,"input_length":1100,"output_length":5,"hash_ids":[1,2,9]}"#,
            r#"{"timestamp":1,"input_length":1600,"output_length":5,"hash_ids":[1,2,3,4]}"#,
            r#"{"timestamp":2,"input_length":700,"output_length":5,"hash_ids":[7,2]}"#,
        ];
        trace::read(lines.join("\n").as_bytes()).unwrap()
    }

    fn common_prefix_len(a: &str, b: &str) -> usize {
        a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn a_prompt_has_a_word_for_each_token() {
        let jobs = jobs();
        let synthesis = PromptSynthesizer::new(&jobs, 4.0, 0);
        for (number, job) in jobs.iter().enumerate() {
            let words = synthesis
                .prompt(job, number as u64)
                .split_whitespace()
                .count();
            assert_eq!(words, job.prompt_tokens as usize);
        }
        let twice = PromptSynthesizer::new(&jobs, 8.0, 0);
        assert_eq!(twice.prompt(&jobs[0], 0).split_whitespace().count(), 2_200);
        assert!(
            SINGLE_TOKEN_WORDS
                .iter()
                .all(|word| word.len() == WORD_BYTES as usize)
        );
    }

    #[test]
    fn only_shared_blocks_become_equal_text() {
        let jobs = jobs();
        let synthesis = PromptSynthesizer::new(&jobs, 4.0, 0);
        let [a, b, c] = [0, 1, 2].map(|index| synthesis.prompt(&jobs[index], index as u64));
        // The prompts have two blocks in common, and a few more bytes if the next words are equal by chance.
        let common = common_prefix_len(&a, &b);
        assert!(
            (2 * 512 * 4..2 * 512 * 4 + 40).contains(&common),
            "{common}"
        );
        assert!(common_prefix_len(&a, &c) < 40, "another first block");
        assert_eq!(a, synthesis.prompt(&jobs[0], 0));
        let other_end = synthesis.prompt(&jobs[0], 8);
        assert!(
            common_prefix_len(&a, &other_end) < 2 * 512 * 4 + 40,
            "another end"
        );
        let salted = PromptSynthesizer::new(&jobs, 4.0, 1).prompt(&jobs[0], 0);
        assert!(common_prefix_len(&a, &salted) < 40, "another salt");
    }

    #[test]
    fn shared_blocks_share_text_at_any_length() {
        let line = |bytes: u32, tokens: u32, ids: &str| {
            format!(
                "{{\"timestamp\":0,\"input_length\":{tokens},\"output_length\":1,\
                 \"hash_ids\":{ids},\"block_bytes\":512,\"input_bytes\":{bytes}}}\n"
            )
        };
        let trace = [line(1_024, 240, "[5,6]"), line(2_048, 520, "[5,6,7,8]")].concat();
        let jobs = trace::read(trace.as_bytes()).unwrap();
        let synthesis = PromptSynthesizer::new(&jobs, 4.0, 0);
        let [a, b] = [0, 1].map(|index| synthesis.prompt(&jobs[index], index as u64));
        assert_eq!((a.len(), b.len()), (240 * 4, 520 * 4));
        assert_eq!(common_prefix_len(&a, &b), a.len());
    }
}
