//! How server families name their load. One pass over the bytes of a metrics page reads the few
//! families that matter, under every name they have had, and keeps nothing else of it.
//!
//! A family of servers is a table in a file of its own, and a line in `DIALECTS`. Each has a page
//! in `tests/pages` or `tests/wire/metrics`, with the numbers that must be read from it.

mod adapters;
mod line;
mod llama_cpp;
mod process;
mod sglang;
mod table;
mod tensorrt_llm;

impl Load {
    /// What matters of it for a request's record.
    pub fn condition(&self) -> Condition {
        Condition {
            kv_usage: self.kv_usage,
            running: self.running.map(|running| running as u32),
            waiting: self.waiting.map(|waiting| waiting as u32),
            preemptions: self.preemptions.map(|preemptions| preemptions as u64),
            ..Condition::default()
        }
    }

    /// What matters of it for routing. `None` if it does not tell enough.
    pub fn report(&self) -> Option<Report> {
        Some(Report {
            kv_usage: self.kv_usage,
            waiting: self.waiting?,
            running: self.running?,
            capacity: self.capacity(),
            tokens: self.prompt_tokens.zip(self.generation_tokens).map(|(read, made)| read + made),
        })
    }
}

#[cfg(test)]
mod tests;
mod tgi;
mod vllm;

use crate::record::Condition;
use crate::routing::Report;
pub use adapters::{Adapters, MAX_ADAPTERS, adapter_hash};
pub use line::Sample;
use memchr::memchr_iter;
use table::{Dialect, Found, MAX_ROWS, Reads, head_of};

const DIALECT_COUNT: usize = 6;

/// The tables, the most usual first.
static DIALECTS: [&Dialect; DIALECT_COUNT] = [
    &vllm::DIALECT,
    &sglang::DIALECT,
    &process::DIALECT,
    &tensorrt_llm::DIALECT,
    &tgi::DIALECT,
    &llama_cpp::DIALECT,
];

/// Where a page of metrics may be. TensorRT-LLM has JSON at the usual path.
pub const PATHS: [&str; 2] = ["/metrics", "/prometheus/metrics"];

/// What a replica said of itself. A field is `None` if the page did not have it, or had a value
/// that it cannot have.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// Share of the KV cache that requests hold, from 0 to 1; the fullest engine's.
    pub kv_usage: Option<f64>,
    /// The same of the engine that has the most room.
    pub kv_usage_least: Option<f64>,
    /// Requests waiting, over all engines.
    pub waiting: Option<f64>,
    /// Those of them that wait for room, and not for a LoRA adapter or a KV transfer.
    pub waiting_capacity: Option<f64>,
    /// Requests running, over all engines.
    pub running: Option<f64>,
    /// Engines: more than one with data parallelism.
    pub engines: Option<f64>,
    /// Preemptions since its start.
    pub preemptions: Option<f64>,
    /// Tokens looked up in the prefix cache since its start.
    pub prefix_queries: Option<f64>,
    /// Tokens found there.
    pub prefix_hits: Option<f64>,
    /// Prompt tokens computed since its start.
    pub prompt_tokens: Option<f64>,
    /// Tokens generated since its start.
    pub generation_tokens: Option<f64>,
    /// Tokens in a KV block.
    pub block_size: Option<f64>,
    /// KV blocks, over all engines.
    pub blocks: Option<f64>,
    /// Tokens that the KV cache can hold, over all engines, where that is told outright.
    pub kv_tokens: Option<f64>,
    /// Seconds that requests have waited in the engine since its start, and how many had.
    pub queue_seconds: Option<f64>,
    /// Requests in that sum.
    pub queued: Option<f64>,
    /// Seconds that requests took from being scheduled to their first token, and how many had.
    pub prefill_seconds: Option<f64>,
    /// Requests in that sum.
    pub prefilled: Option<f64>,
    /// Seconds from arrival to first token since its start, and of how many requests.
    pub first_token_seconds: Option<f64>,
    /// Requests in that sum.
    pub first_tokens: Option<f64>,
    /// Seconds between tokens since its start, and how many times.
    pub gap_seconds: Option<f64>,
    /// Times in that sum.
    pub gaps: Option<f64>,
    /// 0 while an engine sleeps (its weights are off the GPU), 1 while all are awake.
    pub awake: Option<f64>,
    /// When its process started, in seconds since 1970.
    pub started: Option<f64>,
    /// LoRA adapters that are loaded, or will be next.
    pub adapters: Option<Adapters>,
    /// What kind of server it is.
    pub server: Option<Server>,
}

/// Kinds of server, as far as they are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// vLLM, with either front end, also under Ray Serve.
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM's `trtllm-serve`.
    TensorRtLlm,
    /// Hugging Face's text-generation-inference.
    Tgi,
    /// llama.cpp's server.
    LlamaCpp,
}

/// A page while it is read.
struct Reading {
    load: Load,
    /// Whose numbers are read: a page that mixes families is read as the one whose number came
    /// first, because their fields are the same.
    owner: Option<Server>,
    /// The family of the last metric that had a known prefix.
    seen: Option<Server>,
    /// The rank of the name that each row of each table was last read under.
    ranks: [[u8; MAX_ROWS]; DIALECT_COUNT],
    /// The time stamp of the adapters.
    adapters_at: f64,
}

// === impl Load ===

impl Load {
    /// Reads a page. Whatever is not understood is passed over.
    pub fn read(page: &[u8]) -> Self {
        let mut reading = Reading {
            load: Self::default(),
            owner: None,
            seen: None,
            ranks: [[u8::MAX; MAX_ROWS]; DIALECT_COUNT],
            adapters_at: f64::NEG_INFINITY,
        };
        let mut start = 0;
        for end in memchr_iter(b'\n', page) {
            reading.line(&page[start..end]);
            start = end + 1;
        }
        reading.line(&page[start..]);
        reading.finish()
    }

    /// Whether the page told enough to route by.
    pub fn is_understood(&self) -> bool {
        self.waiting.is_some() && self.running.is_some()
    }

    /// Tokens that the KV cache can hold.
    pub fn capacity(&self) -> Option<u64> {
        let of_blocks = self.blocks.zip(self.block_size).map(|(blocks, size)| blocks * size);
        let tokens = of_blocks.or(self.kv_tokens)?;
        (tokens >= 1.0).then_some(tokens as u64)
    }

    /// Whether an engine of it sleeps. `None`: it did not say.
    pub fn is_asleep(&self) -> Option<bool> {
        self.awake.map(|awake| awake < 1.0)
    }

    /// Whether the process that said this is another than the one that said `before`: it started
    /// at another time, or a count that only grows is smaller.
    pub fn is_restart_of(&self, before: &Self) -> bool {
        let counters = |load: &Self| {
            [
                load.prompt_tokens,
                load.generation_tokens,
                load.prefix_queries,
                load.preemptions,
                load.queued,
            ]
        };
        let pairs = counters(self).into_iter().zip(counters(before));
        let is_another = |now: f64, before: f64| (now - before).abs() > 1.0;
        pairs.into_iter().any(|(now, before)| matches!((now, before), (Some(n), Some(b)) if n < b))
            || self.started.zip(before.started).is_some_and(|(now, then)| is_another(now, then))
    }
}

// === impl Reading ===

impl Reading {
    fn line(&mut self, line: &[u8]) {
        if line.first() == Some(&b'#') {
            return;
        }
        // Ray puts its own prefix in front of every metric of its actors.
        let line = line.strip_prefix(b"ray_").unwrap_or(line);
        let Some(head) = head_of(line) else { return };
        for (dialect, place) in DIALECTS.iter().zip(0..) {
            if let Some(metric) = dialect.after_prefix(head, line) {
                return self.metric(dialect, place, metric);
            }
        }
    }

    fn metric(&mut self, dialect: &Dialect, place: usize, metric: &[u8]) {
        if dialect.server.is_some() && self.owner.is_some_and(|it| Some(it) != dialect.server) {
            return;
        }
        self.seen = dialect.server.or(self.seen);
        for found in dialect.find(metric) {
            if self.take(dialect, place, &found) {
                self.owner = dialect.server.or(self.owner);
            }
        }
    }

    /// Whether the line had a value that counts.
    fn take(&mut self, dialect: &Dialect, place: usize, found: &Found<'_>) -> bool {
        let rank = &mut self.ranks[place][found.row];
        // A name that is preferred has been read.
        if found.rank > *rank {
            return false;
        }
        let Some(sample) = Sample::of(found.rest) else { return false };
        match &dialect.rows[found.row].reads {
            Reads::Number { source, fold, field } => {
                let Some(value) = source.of(&sample) else { return false };
                let field = field(&mut self.load);
                let before = field.filter(|_| found.rank == *rank);
                *field = Some(fold.of(before, value));
            }
            Reads::Adapters => {
                let Some(at) = sample.number().filter(|at| *at >= self.adapters_at) else {
                    return false;
                };
                self.adapters_at = at;
                self.load.adapters = Some(Adapters::read(&sample));
            }
        }
        *rank = found.rank;
        true
    }

    fn finish(self) -> Load {
        let mut load = self.load;
        load.server = self.owner.or(self.seen);
        for dialect in DIALECTS {
            for row in dialect.rows {
                if let Reads::Number { field, .. } = row.reads {
                    let field = field(&mut load);
                    // Added up, two numbers can be more than a float can hold.
                    *field = field.filter(|value| value.is_finite());
                }
            }
        }
        for usage in [&mut load.kv_usage, &mut load.kv_usage_least] {
            *usage = usage.filter(|usage| (0.0..=1.0).contains(usage));
        }
        load
    }
}

// === impl Server ===

impl Server {
    /// Reads the `owned_by` of a model.
    pub fn of_owner(owner: &str) -> Option<Self> {
        match owner {
            "vllm" => Some(Self::Vllm),
            "sglang" => Some(Self::Sglang),
            "tensorrt_llm" => Some(Self::TensorRtLlm),
            "llamacpp" => Some(Self::LlamaCpp),
            _ => None,
        }
    }

    /// The name in `/status`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::TensorRtLlm => "tensorrt_llm",
            Self::Tgi => "tgi",
            Self::LlamaCpp => "llama_cpp",
        }
    }

    /// Whether it is known to tell usage in an event of its own when it is asked to.
    pub const fn tells_usage_apart(self) -> bool {
        matches!(self, Self::Vllm | Self::Sglang)
    }
}
