//! Traffic without text: when requests came, how long they were and which blocks of their prompts
//! were equal. Two formats are read, told apart by their fields: Mooncake's, whose blocks are 512
//! tokens, and the gateway's own capture, whose blocks are bytes.

use serde::Deserialize;
use std::io::BufRead;
use std::time::Duration;
use tokenweir_core::routing::Prompt;
use tokenweir_sim::engine::Request;
use tokenweir_sim::text::mix;

/// One request of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// When it came, from the beginning of the trace.
    pub at: Duration,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens of its answer.
    pub output_tokens: u32,
    /// Its prompt as the gateway sees it.
    pub prompt: Prompt,
    /// Its session, if the trace tells.
    pub session: Option<u64>,
    /// Output tokens after which its client left.
    pub left_after: Option<u32>,
}

/// A trace that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("the trace cannot be read")]
    Read(#[from] std::io::Error),
    /// A line is not a request.
    #[error("line {line} of the trace is not a request")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// There is nothing in it.
    #[error("the trace has no requests")]
    Empty,
}

/// A line of either format.
#[derive(Debug, Deserialize)]
struct Line {
    /// Milliseconds.
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
    /// Of a capture: bytes in a block.
    block_bytes: Option<u32>,
    /// Of a capture: bytes of the prompt.
    input_bytes: Option<u64>,
    session: Option<u64>,
    left_after: Option<u32>,
}

/// Tokens in a block of Mooncake's.
const MOONCAKE_BLOCK: u32 = 512;

/// Reads a whole trace, in order of arrival, from the first one on.
pub fn read(lines: impl BufRead) -> Result<Vec<Job>, TraceError> {
    let mut jobs = Vec::new();
    for (index, line) in lines.lines().enumerate() {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        let parsed: Result<Line, _> = serde_json::from_str(&line);
        let line = parsed.map_err(|source| TraceError::Line { line: index + 1, source })?;
        jobs.push(line.into_job());
    }
    if jobs.is_empty() {
        return Err(TraceError::Empty);
    }
    jobs.sort_by_key(|job| job.at);
    let begin = jobs.first().map_or(Duration::ZERO, |job| job.at);
    for job in &mut jobs {
        job.at -= begin;
    }
    Ok(jobs)
}

/// Whether the time stamps of a trace are rounded: most requests share theirs with others.
pub fn is_rounded(jobs: &[Job]) -> bool {
    let distinct = jobs.chunk_by(|a, b| a.at == b.at).count();
    distinct * 2 < jobs.len()
}

impl Line {
    /// Mooncake counts in tokens: for the gateway, each is a byte.
    fn into_job(self) -> Job {
        let bytes = self.input_bytes.unwrap_or(self.input_length.into());
        let block_bytes = self.block_bytes.unwrap_or(MOONCAKE_BLOCK).max(1);
        let whole = (bytes / u64::from(block_bytes)) as usize;
        Job {
            at: Duration::try_from_secs_f64(self.timestamp / 1e3).unwrap_or_default(),
            prompt_tokens: self.input_length.max(1),
            output_tokens: self.output_length.max(1),
            prompt: Prompt {
                bytes,
                blocks: self.hash_ids.iter().take(whole).map(|id| mix(*id, 0)).collect(),
                block_bytes,
            },
            session: self.session,
            left_after: self.left_after,
        }
    }
}

impl Job {
    /// Tokens in a block of its prompt.
    pub fn block_tokens(&self) -> f64 {
        let tokens_per_byte = f64::from(self.prompt_tokens) / self.prompt.bytes.max(1) as f64;
        f64::from(self.prompt.block_bytes) * tokens_per_byte
    }

    /// The request as an engine with blocks of `block_size` tokens gets it.
    pub fn request(&self, block_size: u32) -> Request {
        let block_tokens = self.block_tokens();
        let hash = |index: u32| {
            // The last token of the engine's block says which of the trace's it needs.
            let last = f64::from((index + 1) * block_size - 1);
            let block = self.prompt.blocks.get((last / block_tokens) as usize)?;
            Some(mix(*block, u64::from(index)))
        };
        let whole = self.prompt_tokens / block_size;
        Request {
            prompt_tokens: self.prompt_tokens,
            block_hashes: (0..whole).map_while(hash).collect(),
            output_tokens: self.output_tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOONCAKE: &str = r#"{"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 9]}
{"timestamp": 0, "input_length": 1024, "output_length": 0, "hash_ids": [1, 2]}
"#;

    #[test]
    fn a_trace_is_read_in_order_and_a_bad_line_is_named() {
        let jobs = read(MOONCAKE.as_bytes()).unwrap();
        assert_eq!(jobs[0].prompt_tokens, 1024);
        assert_eq!((jobs[1].at, jobs[1].output_tokens), (Duration::from_secs(3), 5));
        let error = read(format!("{MOONCAKE}{{\"timestamp\": 1}}\n").as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "line 3 of the trace is not a request");
        assert!(matches!(read(&b"\n"[..]), Err(TraceError::Empty)));
    }

    #[test]
    fn a_trace_begins_with_its_first_request_whatever_its_clock_says() {
        let line = |at: f64| {
            format!("{{\"timestamp\": {at}, \"input_length\": 9, \"output_length\": 1}}\n")
        };
        let since_1970 = 1_800_000_000_000.0;
        let trace = [250.125, 0.0, 100.5].map(|after| line(since_1970 + after)).concat();
        let jobs = read(trace.as_bytes()).unwrap();
        let at: Vec<u128> = jobs.iter().map(|job| (job.at.as_micros() + 2) / 5 * 5).collect();
        assert_eq!(at, [0, 100_500, 250_125]);
        assert!(!is_rounded(&jobs));
        let rounded = [0.0, 0.0, 0.0, 3_000.0, 3_000.0].map(line).concat();
        assert!(is_rounded(&read(rounded.as_bytes()).unwrap()));
    }

    #[test]
    fn equal_blocks_of_the_trace_are_equal_blocks_of_the_engine() {
        let jobs = read(MOONCAKE.as_bytes()).unwrap();
        let (first, second) = (jobs[0].request(16), jobs[1].request(16));
        assert_eq!(first.block_hashes.len(), 64);
        assert_eq!(second.block_hashes[..64], first.block_hashes[..]);
        let distinct: std::collections::HashSet<u64> = first.block_hashes.iter().copied().collect();
        assert_eq!(distinct.len(), 64);
    }

    #[test]
    fn blocks_of_bytes_cover_as_many_tokens_as_their_prompt_says() {
        let line = r#"{"timestamp": 0, "input_length": 256, "output_length": 3, "hash_ids": [7, 8],
            "block_bytes": 512, "input_bytes": 1024}"#
            .replace('\n', " ");
        let job = read(line.as_bytes()).unwrap().remove(0);
        let request = job.request(16);
        assert_eq!(request.block_hashes.len(), 16);
    }
}
