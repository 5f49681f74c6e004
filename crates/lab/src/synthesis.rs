//! Prompts for a trace that has none: words drawn from the numbers of its blocks. Equal blocks
//! become equal text, so that prefix caches have the work that they had, and a prompt has about as
//! many tokens as it had.

use super::trace::Job;
use tokenweir_sim::text::mix;

/// How the prompts of one trace are made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Synthesis {
    /// Words that stand for a block: the same number in every prompt, or what two prompts share
    /// would not begin at the same places.
    block_words: usize,
    /// Words that stand for a token.
    words_per_token: f64,
    salt: u64,
}

/// With its blank, each is one token of the usual vocabularies, and four bytes.
const WORDS: [&str; 64] = [
    " the", " and", " for", " are", " but", " not", " you", " all", " any", " can", " had", " her",
    " was", " one", " our", " out", " day", " get", " has", " him", " his", " how", " man", " new",
    " now", " old", " see", " two", " way", " who", " boy", " did", " its", " let", " put", " say",
    " she", " too", " use", " dad", " mom", " act", " add", " age", " ago", " air", " art", " ask",
    " bad", " bag", " bar", " bed", " big", " bit", " box", " bus", " buy", " car", " cat", " cup",
    " cut", " dog", " dry", " eat",
];

/// Bytes of a word.
const WORD_BYTES: f64 = 4.0;
/// Keeps the ends of prompts apart from blocks.
const RESTS: u64 = 0x7265_7374;

impl Synthesis {
    /// For these requests. A token of the trace becomes `bytes_per_token` bytes of text: 4 is one
    /// word. Another `salt` makes other words.
    pub fn of(jobs: &[Job], bytes_per_token: f64, salt: u64) -> Self {
        let words_per_token = bytes_per_token / WORD_BYTES;
        let tokens: f64 = jobs.iter().map(|job| f64::from(job.prompt_tokens)).sum();
        let bytes: f64 = jobs.iter().map(|job| job.prompt.bytes as f64).sum();
        let block_bytes = jobs.first().map_or(1, |job| job.prompt.block_bytes);
        let block_tokens = f64::from(block_bytes) * tokens / bytes.max(1.0);
        let block_words = (block_tokens * words_per_token).round().max(1.0) as usize;
        Self { block_words, words_per_token, salt }
    }

    /// The prompt of a request. What its blocks do not cover is like no other `number`'s.
    pub fn prompt(&self, job: &Job, number: u64) -> String {
        let mut left =
            (f64::from(job.prompt_tokens) * self.words_per_token).round().max(1.0) as usize;
        let mut text = String::with_capacity(left * WORD_BYTES as usize);
        for block in &job.prompt.blocks {
            let words = left.min(self.block_words);
            self.write(&mut text, *block, words);
            left -= words;
        }
        self.write(&mut text, mix(number, RESTS), left);
        text
    }

    fn write(&self, text: &mut String, seed: u64, words: usize) {
        let mut random = fastrand::Rng::with_seed(mix(seed, self.salt));
        text.extend((0..words).map(|_| WORDS[random.usize(..WORDS.len())]));
    }
}

#[cfg(test)]
mod tests {
    use super::super::trace;
    use super::*;

    fn jobs() -> Vec<Job> {
        let lines = [
            r#"{"timestamp":0,"input_length":1100,"output_length":5,"hash_ids":[1,2,9]}"#,
            r#"{"timestamp":1,"input_length":1600,"output_length":5,"hash_ids":[1,2,3,4]}"#,
            r#"{"timestamp":2,"input_length":700,"output_length":5,"hash_ids":[7,2]}"#,
        ];
        trace::read(lines.join("\n").as_bytes()).unwrap()
    }

    fn common(a: &str, b: &str) -> usize {
        a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn a_prompt_has_a_word_for_each_token() {
        let (jobs, synthesis) = (jobs(), Synthesis::of(&jobs(), 4.0, 0));
        for (number, job) in jobs.iter().enumerate() {
            let words = synthesis.prompt(job, number as u64).split_whitespace().count();
            assert_eq!(words, job.prompt_tokens as usize);
        }
        let twice = Synthesis::of(&jobs, 8.0, 0);
        assert_eq!(twice.prompt(&jobs[0], 0).split_whitespace().count(), 2_200);
        assert!(WORDS.iter().all(|word| word.len() == WORD_BYTES as usize));
    }

    #[test]
    fn what_two_requests_share_is_equal_text_and_nothing_else_is() {
        let (jobs, synthesis) = (jobs(), Synthesis::of(&jobs(), 4.0, 0));
        let [a, b, c] = [0, 1, 2].map(|index| synthesis.prompt(&jobs[index], index as u64));
        // Two blocks, and hardly more: a word may be drawn twice.
        assert!((2 * 512 * 4..2 * 512 * 4 + 40).contains(&common(&a, &b)), "{}", common(&a, &b));
        assert!(common(&a, &c) < 40, "another first block");
        assert_eq!(a, synthesis.prompt(&jobs[0], 0));
        assert!(common(&a, &synthesis.prompt(&jobs[0], 8)) < 2 * 512 * 4 + 40, "another end");
        assert!(common(&a, &Synthesis::of(&jobs, 4.0, 1).prompt(&jobs[0], 0)) < 40, "salted");
    }

    #[test]
    fn prompts_of_a_capture_share_as_much_although_each_has_its_own_bytes_per_token() {
        let line = |bytes: u32, tokens: u32, ids: &str| {
            format!(
                "{{\"timestamp\":0,\"input_length\":{tokens},\"output_length\":1,\
                 \"hash_ids\":{ids},\"block_bytes\":512,\"input_bytes\":{bytes}}}\n"
            )
        };
        let trace = [line(1_024, 240, "[5,6]"), line(2_048, 520, "[5,6,7,8]")].concat();
        let jobs = trace::read(trace.as_bytes()).unwrap();
        let synthesis = Synthesis::of(&jobs, 4.0, 0);
        let [a, b] = [0, 1].map(|index| synthesis.prompt(&jobs[index], index as u64));
        assert_eq!((a.len(), b.len()), (240 * 4, 520 * 4));
        assert_eq!(common(&a, &b), a.len());
    }
}
