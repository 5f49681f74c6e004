//! The values that the gateway reads from one metrics page of a backend.

use super::engine_kind::EngineKind;
use super::lora_adapters::LoraAdapters;

/// The caches that can supply prompt tokens, by the names that vLLM gives them.
pub const CACHE_SOURCES: [&str; 5] = ["device", "host", "disk", "p2p", "external_unspecified"];

/// Maximum plausible capacity of a KV cache in tokens. A larger value counts as missing.
const MAX_CAPACITY_TOKENS: f64 = 1e12;

/// The load and the counters of a backend, as one metrics page reports them. `None`: the page does
/// not have the metric, or its value is invalid.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EngineLoad {
    /// KV cache usage of the engine with the highest usage, from 0 to 1.
    pub kv_usage: Option<f64>,
    /// KV cache usage of the engine with the lowest usage, from 0 to 1.
    pub min_kv_usage: Option<f64>,
    /// Waiting requests, over all engines.
    pub waiting: Option<f64>,
    /// Waiting requests that wait for capacity of an engine, not for a LoRA adapter or a KV
    /// transfer, over all engines.
    pub waiting_capacity: Option<f64>,
    /// Waiting requests that wait for a LoRA adapter, a KV transfer or another temporary constraint, over all
    /// engines.
    pub waiting_deferred: Option<f64>,
    /// Requests whose KV blocks are in CPU memory, over all engines.
    pub swapped: Option<f64>,
    /// Usage of the CPU KV cache of the engine with the highest usage, from 0 to 1.
    pub cpu_cache_usage: Option<f64>,
    /// Running requests, over all engines.
    pub running: Option<f64>,
    /// Number of engines of the backend: more than one with data parallelism.
    pub engines: Option<f64>,
    /// Preemptions since the start of the process.
    pub preemptions: Option<f64>,
    /// Prompt tokens that were looked up in the prefix cache since the start of the process.
    pub prefix_queries: Option<f64>,
    /// Prompt tokens that were found in the prefix cache since the start of the process.
    pub prefix_hits: Option<f64>,
    /// Prompt tokens that each of [`CACHE_SOURCES`] supplied since the start of the process.
    pub cached_by_source: [Option<f64>; CACHE_SOURCES.len()],
    /// Requests that the engine rejected at its own queue limit since the start of the process.
    pub admission_rejections: Option<f64>,
    /// Requests with NaN in their logits since the start of the process.
    pub corrupted: Option<f64>,
    /// Drafts of speculative decoding since the start of the process.
    pub drafts: Option<f64>,
    /// Tokens that speculative decoding proposed since the start of the process.
    pub draft_tokens: Option<f64>,
    /// Proposed tokens that the engine accepted since the start of the process.
    pub accepted_tokens: Option<f64>,
    /// Prompt tokens of all requests since the start of the process.
    pub prompt_tokens: Option<f64>,
    /// Generated tokens since the start of the process.
    pub generation_tokens: Option<f64>,
    /// Tokens in one KV block.
    pub block_size: Option<f64>,
    /// Number of blocks of the KV cache, over all engines.
    pub blocks: Option<f64>,
    /// Capacity of the KV cache in tokens, over all engines, if the page reports it as one metric.
    /// [`EngineLoad::capacity`] prefers the product of `blocks` and `block_size`.
    pub kv_tokens: Option<f64>,
    /// Sum of the queue times in the engine since the start of the process, in seconds.
    pub queue_seconds: Option<f64>,
    /// Number of requests whose queue times are in the sum `queue_seconds`.
    pub queued: Option<f64>,
    /// Sum of the prefill times since the start of the process, in seconds.
    pub prefill_seconds: Option<f64>,
    /// Number of requests whose prefill times are in the sum `prefill_seconds`.
    pub prefilled: Option<f64>,
    /// Sum of the times from arrival to first token since the start of the process, in seconds.
    pub first_token_seconds: Option<f64>,
    /// Number of requests whose times are in the sum `first_token_seconds`.
    pub first_tokens: Option<f64>,
    /// Sum of the inter-token latencies of all streams since the start of the process, in seconds.
    pub gap_seconds: Option<f64>,
    /// Number of inter-token latencies in the sum `gap_seconds`.
    pub gaps: Option<f64>,
    /// Lifetimes, idle times and reuse gaps of KV blocks.
    pub kv_blocks: KvBlockTimes,
    /// 1: all engines are awake. 0: an engine is asleep, which means that its weights are not on the GPU.
    pub awake: Option<f64>,
    /// Start time of the process, in seconds since the Unix epoch.
    pub started: Option<f64>,
    /// The LoRA adapters that running and waiting requests use.
    pub adapters: Option<LoraAdapters>,
    /// The engine kind whose metrics were read.
    pub server: Option<EngineKind>,
}

/// The counters of the tokens that an engine has processed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenCounts {
    /// Prompt tokens since the start of the process.
    pub prompt: f64,
    /// Generated tokens since the start of the process.
    pub generated: f64,
}

/// Times of KV blocks since the start of the process. Each kind of time has a sum in seconds and the number of
/// times in the sum.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KvBlockTimes {
    /// Times from the allocation of a block to its eviction.
    pub lifetime_seconds: Option<f64>,
    /// Number of times in `lifetime_seconds`.
    pub lifetimes: Option<f64>,
    /// Times from the last use of a block to its eviction.
    pub idle_seconds: Option<f64>,
    /// Number of times in `idle_seconds`.
    pub idle_times: Option<f64>,
    /// Times between two uses of a block.
    pub reuse_gap_seconds: Option<f64>,
    /// Number of times in `reuse_gap_seconds`.
    pub reuse_gaps: Option<f64>,
}

impl EngineLoad {
    /// Whether the page has both the running and the waiting requests, which routing needs.
    pub fn is_understood(&self) -> bool {
        self.waiting.is_some() && self.running.is_some()
    }

    /// Whether the engine has no running and no waiting requests. `None`: the page lacks one of the two
    /// numbers.
    pub fn is_idle(&self) -> Option<bool> {
        Some(self.waiting? < 1.0 && self.running? < 1.0)
    }

    /// The token counters. `None`: the page does not have both.
    pub fn token_counts(&self) -> Option<TokenCounts> {
        Some(TokenCounts {
            prompt: self.prompt_tokens?,
            generated: self.generation_tokens?,
        })
    }

    /// The token counters of an engine that has requests. `None`: the engine has no requests, or the page lacks
    /// one of the counts.
    pub fn token_counts_if_busy(&self) -> Option<TokenCounts> {
        if self.is_idle()? {
            None
        } else {
            self.token_counts()
        }
    }

    /// Capacity of the KV cache in tokens, over all engines. `None`: the page does not report it, or
    /// reports more than a cache can have.
    pub fn capacity(&self) -> Option<u64> {
        let block_tokens = self
            .blocks
            .zip(self.block_size)
            .map(|(blocks, size)| blocks * size);
        let tokens = block_tokens.or(self.kv_tokens)?;
        (1.0..=MAX_CAPACITY_TOKENS)
            .contains(&tokens)
            .then_some(tokens as u64)
    }

    /// Whether at least one engine of the backend is asleep. `None`: the page does not show it.
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
        let has_decreased = |(count, earlier): (Option<f64>, Option<f64>)| {
            count
                .zip(earlier)
                .is_some_and(|(count, earlier)| count < earlier)
        };
        let start_times = self.started.zip(previous.started);
        pairs.into_iter().any(has_decreased)
            || start_times.is_some_and(|(started, earlier)| (started - earlier).abs() > 1.0)
    }
}
