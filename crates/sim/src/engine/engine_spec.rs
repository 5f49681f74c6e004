//! Size and speed of an engine.

use super::cost_model::{BatchWork, CostModel};
use std::time::Duration;

/// Size and speed of an engine. A size of 0 counts as 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineSpec {
    /// Tokens in one KV block.
    pub block_size: u32,
    /// Number of KV blocks.
    pub blocks: u32,
    /// Maximum number of sequences in a batch.
    pub max_num_seqs: u32,
    /// Maximum number of tokens computed in one step, prefill and decode together.
    pub max_num_batched_tokens: u32,
    /// Fixed time of a step. The times of its tokens are added.
    pub step_base: Duration,
    /// Time added by each prompt token that is not in the cache.
    pub prefill_token: Duration,
    /// Time added by each sequence that decodes.
    pub decode_sequence: Duration,
    /// Time added by each token of context that attention reads.
    pub kv_token: Duration,
    /// Maximum number of LoRA adapters in a batch: vLLM's `--max-loras`.
    pub max_loras: u32,
    /// Time to load an adapter that is in no slot. The whole batch waits for it.
    pub adapter_load: Duration,
    /// Effects beyond the linear terms above.
    pub cost_model: CostModel,
}

impl EngineSpec {
    /// A small model on a small GPU: 32,768 tokens of KV cache, 10,000 prefill tokens per second,
    /// about 100 output tokens per second for one sequence and 3,500 in a full batch.
    pub const DEFAULT: Self = Self {
        block_size: 16,
        blocks: 2048,
        max_num_seqs: 64,
        max_num_batched_tokens: 2048,
        step_base: Duration::from_millis(10),
        prefill_token: Duration::from_micros(100),
        decode_sequence: Duration::from_micros(80),
        kv_token: Duration::from_nanos(100),
        max_loras: 1,
        adapter_load: Duration::ZERO,
        cost_model: CostModel::LINEAR,
    };

    /// Maximum number of tokens of one sequence, prompt and output together.
    pub fn capacity(&self) -> u32 {
        self.blocks.saturating_mul(self.block_size)
    }

    pub(super) fn step_duration(&self, work: &BatchWork, random: &mut fastrand::Rng) -> Duration {
        let model = &self.cost_model;
        let memory = self.step_base
            + self.decode_sequence * model.padded(work.decoded_sequences)
            + self.kv_token * work.context;
        let compute = self.prefill_token * work.prefill_tokens + model.attention(work);
        model.combine(compute, memory, random)
    }
}
