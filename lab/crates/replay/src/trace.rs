//! Reads traffic traces without text: arrival times, lengths and block hashes of prompts.
//!
//! There are two formats, which have different fields: Mooncake's format, whose blocks have 512 tokens, and
//! the trace capture of the gateway, whose blocks are measured in bytes.

use serde::Deserialize;
use std::io::BufRead;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_routing::PromptFingerprint;
use tokenweir_sim::engine::SequenceRequest;
use tokenweir_sim::text::mix;

/// One request of a trace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TraceRequest {
    /// Arrival time since the first request of the trace. For a request with `after`: the pause of the client
    /// instead.
    pub at: Duration,
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// Number of output tokens.
    pub output_tokens: u32,
    /// The prompt as the gateway sees it: its length in bytes and the hashes of its blocks.
    pub prompt: Arc<PromptFingerprint>,
    /// Hash of the session. `None`: the trace does not state the session.
    pub session: Option<u64>,
    /// Number of output tokens after which the client disconnected. `None`: the client did not disconnect.
    pub disconnect_after_tokens: Option<u32>,
    /// Hashes of the blocks that follow those of the prompt, if the next request of a session repeats the
    /// output of this request. The gateway does not see these hashes.
    pub output_blocks: Box<[u64]>,
    /// Index of the previous request of a closed-loop session. The client sends this request when `at` has
    /// passed since the end of the previous one. `None`: the request arrives at the time `at`.
    pub after: Option<usize>,
    /// The tenant that sends the request.
    pub tenant: u64,
    /// The LoRA adapter. `None`: the base model.
    pub adapter: Option<u32>,
}

/// Why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The trace could not be read.
    #[error("the trace cannot be read")]
    Read(#[from] std::io::Error),
    /// A line is not a request.
    #[error("line {line} of the trace is not a request")]
    Line {
        /// Line number, counted from 1.
        line: usize,
        /// The parse error of the line.
        source: serde_json::Error,
    },
    /// The trace has no requests.
    #[error("the trace has no requests")]
    Empty,
}

/// A line of a trace in either format.
#[derive(Debug, Deserialize)]
struct TraceLine {
    /// Arrival time in milliseconds.
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
    /// Size of a block in bytes. Only a trace capture has this field.
    block_bytes: Option<u32>,
    /// Length of the prompt in bytes. Only a trace capture has this field.
    input_bytes: Option<u64>,
    session: Option<u64>,
    /// Number of output tokens after which the client disconnected.
    left_after: Option<u32>,
}

const MOONCAKE_BLOCK_TOKENS: u32 = 512;

/// Reads a whole trace and sorts it by arrival. The first request arrives at time 0.
pub fn read(lines: impl BufRead) -> Result<Vec<TraceRequest>, TraceError> {
    let mut jobs = Vec::new();
    for (index, line) in lines.lines().enumerate() {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        let parsed: Result<TraceLine, _> = serde_json::from_str(&line);
        let line = parsed.map_err(|source| TraceError::Line {
            line: index + 1,
            source,
        })?;
        jobs.push(line.into_request());
    }
    if jobs.is_empty() {
        return Err(TraceError::Empty);
    }
    jobs.sort_by_key(|job| job.at);
    let start = jobs.first().map_or(Duration::ZERO, |job| job.at);
    for job in &mut jobs {
        job.at -= start;
    }
    Ok(jobs)
}

/// Whether the timestamps of a trace are rounded. They count as rounded if there are fewer than half as many
/// different timestamps as requests.
pub fn has_rounded_timestamps(jobs: &[TraceRequest]) -> bool {
    let distinct = jobs.chunk_by(|a, b| a.at == b.at).count();
    distinct * 2 < jobs.len()
}

/// For each request, by its number: the requests that the client sends after its end.
pub fn followers(requests: &[TraceRequest]) -> Vec<Vec<usize>> {
    let mut followers = vec![Vec::new(); requests.len()];
    for (number, request) in requests.iter().enumerate() {
        if let Some(previous) = request.after {
            followers[previous].push(number);
        }
    }
    followers
}

impl TraceLine {
    /// Converts a line. Mooncake's format states no bytes, so each of its tokens counts as one byte.
    fn into_request(self) -> TraceRequest {
        let bytes = self.input_bytes.unwrap_or(self.input_length.into());
        let block_bytes = self.block_bytes.unwrap_or(MOONCAKE_BLOCK_TOKENS).max(1);
        let full_blocks = (bytes / u64::from(block_bytes)) as usize;
        TraceRequest {
            at: Duration::try_from_secs_f64(self.timestamp / 1e3).unwrap_or_default(),
            prompt_tokens: self.input_length.max(1),
            output_tokens: self.output_length.max(1),
            prompt: Arc::new(PromptFingerprint {
                bytes,
                blocks: self
                    .hash_ids
                    .iter()
                    .take(full_blocks)
                    .map(|id| mix(*id, 0))
                    .collect(),
                block_bytes,
                ..PromptFingerprint::default()
            }),
            session: self.session,
            disconnect_after_tokens: self.left_after,
            ..TraceRequest::default()
        }
    }
}

impl TraceRequest {
    /// Mean number of tokens in a block of the prompt.
    pub fn block_tokens(&self) -> f64 {
        let tokens_per_byte = f64::from(self.prompt_tokens) / self.prompt.bytes.max(1) as f64;
        f64::from(self.prompt.block_bytes) * tokens_per_byte
    }

    /// The request as an engine with blocks of `block_size` tokens gets it.
    pub fn request(&self, block_size: u32) -> SequenceRequest {
        let block_tokens = self.block_tokens();
        let hash = |index: u32| {
            // The block of the trace that contains the last token of the engine block.
            let last = f64::from((index + 1) * block_size - 1);
            let mut blocks = self.prompt.blocks.iter().chain(&self.output_blocks);
            let block = blocks.nth((last / block_tokens) as usize)?;
            Some(mix(*block, u64::from(index)))
        };
        let known_outputs = if self.output_blocks.is_empty() {
            0
        } else {
            self.output_tokens
        };
        let known_tokens = self.prompt_tokens + known_outputs;
        let full_blocks = known_tokens / block_size;
        SequenceRequest {
            prompt_tokens: self.prompt_tokens,
            block_hashes: (0..full_blocks).map_while(hash).collect(),
            output_tokens: self.output_tokens,
            adapter: self.adapter,
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
    fn an_invalid_line_is_reported_with_its_number() {
        let jobs = read(MOONCAKE.as_bytes()).unwrap();
        assert_eq!(jobs[0].prompt_tokens, 1024);
        assert_eq!(
            (jobs[1].at, jobs[1].output_tokens),
            (Duration::from_secs(3), 5)
        );
        let error = read(format!("{MOONCAKE}{{\"timestamp\": 1}}\n").as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "line 3 of the trace is not a request");
        assert!(matches!(read(&b"\n"[..]), Err(TraceError::Empty)));
    }

    #[test]
    fn a_trace_begins_at_time_zero() {
        let line = |at: f64| {
            format!("{{\"timestamp\": {at}, \"input_length\": 9, \"output_length\": 1}}\n")
        };
        let since_1970 = 1_800_000_000_000.0;
        let trace = [250.125, 0.0, 100.5]
            .map(|after| line(since_1970 + after))
            .concat();
        let jobs = read(trace.as_bytes()).unwrap();
        let at: Vec<u128> = jobs
            .iter()
            .map(|job| (job.at.as_micros() + 2) / 5 * 5)
            .collect();
        assert_eq!(at, [0, 100_500, 250_125]);
        assert!(!has_rounded_timestamps(&jobs));
        let rounded = [0.0, 0.0, 0.0, 3_000.0, 3_000.0].map(line).concat();
        assert!(has_rounded_timestamps(&read(rounded.as_bytes()).unwrap()));
    }

    #[test]
    fn equal_prompt_blocks_become_equal_engine_blocks() {
        let jobs = read(MOONCAKE.as_bytes()).unwrap();
        let first = jobs[0].request(16);
        let second = jobs[1].request(16);
        assert_eq!(first.block_hashes.len(), 64);
        assert_eq!(second.block_hashes[..64], first.block_hashes[..]);
        let distinct: std::collections::HashSet<u64> = first.block_hashes.iter().copied().collect();
        assert_eq!(distinct.len(), 64);
    }

    #[test]
    fn byte_sized_blocks_cover_all_input_tokens() {
        let line = r#"{"timestamp": 0, "input_length": 256, "output_length": 3, "hash_ids": [7, 8],
            "block_bytes": 512, "input_bytes": 1024}"#
            .replace('\n', " ");
        let job = read(line.as_bytes()).unwrap().remove(0);
        let request = job.request(16);
        assert_eq!(request.block_hashes.len(), 16);
    }
}
