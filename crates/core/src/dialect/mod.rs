//! Parses the metrics pages of inference engines into an [`EngineLoad`].
//!
//! One pass over the bytes of a page reads the few metrics that the gateway uses, under every name
//! that engines have given them. Each engine kind has a table in its own file and an entry in
//! `DIALECTS`. Each has a test page in `tests/pages` or `tests/wire/metrics`, with the expected
//! values.

mod llama_cpp;
mod lora_adapters;
mod metric_sample;
mod process;
mod sglang;
mod table;
mod tensorrt_llm;

impl EngineLoad {
    /// The part of the load that a request record contains.
    pub fn condition(&self) -> BackendCondition {
        BackendCondition {
            kv_usage: self.kv_usage,
            running: self.running.map(|running| running as u32),
            waiting: self.waiting.map(|waiting| waiting as u32),
            preemptions: self.preemptions.map(|preemptions| preemptions as u64),
            ..BackendCondition::default()
        }
    }

    /// The part of the load that routing uses. `None`: the running or waiting requests are missing.
    pub fn report(&self) -> Option<LoadReport> {
        Some(LoadReport {
            kv_usage: self.kv_usage,
            waiting: self.waiting?,
            running: self.running?,
            capacity: self.capacity(),
            tokens: self
                .prompt_tokens
                .zip(self.generation_tokens)
                .map(|(prompt, generated)| prompt + generated),
        })
    }
}

#[cfg(test)]
mod tests;
mod tgi;
mod vllm;

use crate::record::BackendCondition;
use crate::routing::LoadReport;
pub use lora_adapters::{LoraAdapters, MAX_ADAPTERS, adapter_hash};
use memchr::memchr_iter;
pub use metric_sample::MetricSample;
use table::{MAX_ROWS, MetricsDialect, RowMatch, RowTarget, line_head};

const DIALECT_COUNT: usize = 6;

/// The dialects, the most common first.
static DIALECTS: [&MetricsDialect; DIALECT_COUNT] = [
    &vllm::DIALECT,
    &sglang::DIALECT,
    &process::DIALECT,
    &tensorrt_llm::DIALECT,
    &tgi::DIALECT,
    &llama_cpp::DIALECT,
];

/// The paths to scrape, in this order. TensorRT-LLM serves JSON at `/metrics`.
pub const PATHS: [&str; 2] = ["/metrics", "/prometheus/metrics"];

/// The load of a backend, as one metrics page reports it. `None`: the page does not have the
/// metric, or its value is invalid.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EngineLoad {
    /// KV cache usage from 0 to 1. With several engines, the highest.
    pub kv_usage: Option<f64>,
    /// KV cache usage of the engine with the lowest usage.
    pub min_kv_usage: Option<f64>,
    /// Waiting requests, over all engines.
    pub waiting: Option<f64>,
    /// Requests that wait for capacity, not for a LoRA adapter or a KV transfer.
    pub waiting_capacity: Option<f64>,
    /// Running requests, over all engines.
    pub running: Option<f64>,
    /// Number of engines: more than one with data parallelism.
    pub engines: Option<f64>,
    /// Preemptions since the start of the process.
    pub preemptions: Option<f64>,
    /// Tokens looked up in the prefix cache since the start of the process.
    pub prefix_queries: Option<f64>,
    /// Tokens found in the prefix cache since the start of the process.
    pub prefix_hits: Option<f64>,
    /// Prompt tokens since the start of the process.
    pub prompt_tokens: Option<f64>,
    /// Generated tokens since the start of the process.
    pub generation_tokens: Option<f64>,
    /// Tokens per KV block.
    pub block_size: Option<f64>,
    /// KV blocks, over all engines.
    pub blocks: Option<f64>,
    /// Capacity of the KV cache in tokens, over all engines, if the page reports it directly.
    pub kv_tokens: Option<f64>,
    /// Sum of the queue times in the engine since the start of the process, in seconds.
    pub queue_seconds: Option<f64>,
    /// Requests in `queue_seconds`.
    pub queued: Option<f64>,
    /// Sum of the prefill times since the start of the process, in seconds.
    pub prefill_seconds: Option<f64>,
    /// Requests in `prefill_seconds`.
    pub prefilled: Option<f64>,
    /// Sum of the times from arrival to first token since the start of the process, in seconds.
    pub first_token_seconds: Option<f64>,
    /// Requests in `first_token_seconds`.
    pub first_tokens: Option<f64>,
    /// Sum of the inter-token latencies since the start of the process, in seconds.
    pub gap_seconds: Option<f64>,
    /// Inter-token latencies in `gap_seconds`.
    pub gaps: Option<f64>,
    /// 1 if all engines are awake, 0 if one is asleep: its weights are not on the GPU.
    pub awake: Option<f64>,
    /// Start time of the process, in seconds since the Unix epoch.
    pub started: Option<f64>,
    /// LoRA adapters of running and waiting requests.
    pub adapters: Option<LoraAdapters>,
    /// The engine kind.
    pub server: Option<EngineKind>,
}

/// The kinds of inference engines that the gateway distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    /// vLLM, with its Python or Rust front end, also under Ray Serve.
    Vllm,
    /// SGLang.
    Sglang,
    /// `trtllm-serve` of TensorRT-LLM.
    TensorRtLlm,
    /// text-generation-inference of Hugging Face.
    Tgi,
    /// The llama.cpp server.
    LlamaCpp,
}

/// The parser of one metrics page.
struct PageParser {
    load: EngineLoad,
    /// The engine kind of the first value. Metrics of other kinds on the same page are ignored,
    /// because they would set the same fields.
    engine_kind: Option<EngineKind>,
    /// The engine kind of the last metric with a known prefix.
    last_prefix: Option<EngineKind>,
    /// For each row of each dialect, the rank of the name that its value was read from.
    ranks: [[u8; MAX_ROWS]; DIALECT_COUNT],
    /// Timestamp of the adapters read so far, in seconds since the Unix epoch.
    adapters_timestamp: f64,
}

// === impl EngineLoad ===

impl EngineLoad {
    /// Parses a page. Unknown lines are ignored.
    pub fn read(page: &[u8]) -> Self {
        let mut parser = PageParser {
            load: Self::default(),
            engine_kind: None,
            last_prefix: None,
            ranks: [[u8::MAX; MAX_ROWS]; DIALECT_COUNT],
            adapters_timestamp: f64::NEG_INFINITY,
        };
        let mut start = 0;
        for end in memchr_iter(b'\n', page) {
            parser.parse_line(&page[start..end]);
            start = end + 1;
        }
        parser.parse_line(&page[start..]);
        parser.finish()
    }

    /// Whether the page has the running and waiting requests, which routing needs.
    pub fn is_understood(&self) -> bool {
        self.waiting.is_some() && self.running.is_some()
    }

    /// Capacity of the KV cache in tokens, over all engines.
    pub fn capacity(&self) -> Option<u64> {
        let block_tokens = self.blocks.zip(self.block_size).map(|(blocks, size)| blocks * size);
        let tokens = block_tokens.or(self.kv_tokens)?;
        (tokens >= 1.0).then_some(tokens as u64)
    }

    /// Whether an engine is asleep. `None`: the page does not report it.
    pub fn is_asleep(&self) -> Option<bool> {
        self.awake.map(|awake| awake < 1.0)
    }

    /// Whether the process restarted since the `previous` page: its start time differs by more than
    /// a second, or a counter decreased.
    pub fn is_restart_of(&self, previous: &Self) -> bool {
        let counters = |load: &Self| {
            [
                load.prompt_tokens,
                load.generation_tokens,
                load.prefix_queries,
                load.preemptions,
                load.queued,
            ]
        };
        let pairs = counters(self).into_iter().zip(counters(previous));
        let differs = |now: f64, before: f64| (now - before).abs() > 1.0;
        pairs.into_iter().any(|(now, before)| matches!((now, before), (Some(n), Some(b)) if n < b))
            || self.started.zip(previous.started).is_some_and(|(now, then)| differs(now, then))
    }
}

// === impl PageParser ===

impl PageParser {
    fn parse_line(&mut self, line: &[u8]) {
        if line.first() == Some(&b'#') {
            return;
        }
        // Ray prefixes every metric of its actors.
        let line = line.strip_prefix(b"ray_").unwrap_or(line);
        let Some(head) = line_head(line) else { return };
        for (dialect, index) in DIALECTS.iter().zip(0..) {
            if let Some(metric) = dialect.after_prefix(head, line) {
                return self.parse_metric(dialect, index, metric);
            }
        }
    }

    fn parse_metric(&mut self, dialect: &MetricsDialect, index: usize, metric: &[u8]) {
        let is_other_engine = |kind: EngineKind| Some(kind) != dialect.server;
        if dialect.server.is_some() && self.engine_kind.is_some_and(is_other_engine) {
            return;
        }
        self.last_prefix = dialect.server.or(self.last_prefix);
        for row_match in dialect.find(metric) {
            if self.store_value(dialect, index, &row_match) {
                self.engine_kind = dialect.server.or(self.engine_kind);
            }
        }
    }

    /// Stores the value of a line. Whether the line has a valid value that is used.
    fn store_value(
        &mut self,
        dialect: &MetricsDialect,
        index: usize,
        row_match: &RowMatch<'_>,
    ) -> bool {
        let rank = &mut self.ranks[index][row_match.row];
        // The value was already read under a preferred name.
        if row_match.rank > *rank {
            return false;
        }
        let Some(sample) = MetricSample::parse(row_match.rest) else { return false };
        match &dialect.rows[row_match.row].reads {
            RowTarget::Number { source, fold, field } => {
                let Some(value) = source.read(&sample) else { return false };
                let field = field(&mut self.load);
                let before = field.filter(|_| row_match.rank == *rank);
                *field = Some(fold.combine(before, value));
            }
            RowTarget::Adapters => {
                let timestamp = sample.number().filter(|time| *time >= self.adapters_timestamp);
                let Some(timestamp) = timestamp else { return false };
                self.adapters_timestamp = timestamp;
                self.load.adapters = Some(LoraAdapters::read(&sample));
            }
        }
        *rank = row_match.rank;
        true
    }

    fn finish(self) -> EngineLoad {
        let mut load = self.load;
        load.server = self.engine_kind.or(self.last_prefix);
        for dialect in DIALECTS {
            for row in dialect.rows {
                if let RowTarget::Number { field, .. } = row.reads {
                    let field = field(&mut load);
                    // A sum of finite numbers can overflow to infinity.
                    *field = field.filter(|value| value.is_finite());
                }
            }
        }
        for usage in [&mut load.kv_usage, &mut load.min_kv_usage] {
            *usage = usage.filter(|usage| (0.0..=1.0).contains(usage));
        }
        load
    }
}

// === impl EngineKind ===

impl EngineKind {
    /// Parses `owned_by` of a model list entry.
    pub fn from_owned_by(owner: &str) -> Option<Self> {
        match owner {
            "vllm" => Some(Self::Vllm),
            "sglang" => Some(Self::Sglang),
            "tensorrt_llm" => Some(Self::TensorRtLlm),
            "llamacpp" => Some(Self::LlamaCpp),
            _ => None,
        }
    }

    /// Name in `/status`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::TensorRtLlm => "tensorrt_llm",
            Self::Tgi => "tgi",
            Self::LlamaCpp => "llama_cpp",
        }
    }

    /// Whether the engine is known to send usage in a separate event if
    /// `stream_options.include_usage` is set.
    pub const fn sends_usage_event(self) -> bool {
        matches!(self, Self::Vllm | Self::Sglang)
    }
}
