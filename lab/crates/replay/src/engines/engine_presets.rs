//! The engines of the tournament.
//!
//! The speeds of the presets with the name of a GPU are from published measurements of vLLM. The source is
//! the repository `ai-dynamo/aiconfigurator` (commit 095f58a5, `systems/data/*/vllm`). The measured kernel
//! times are added up over the layers of the model, and the linear form of [`EngineSpec`] with a quadratic
//! term is fitted to the sums. The sizes of the KV caches follow from 90 % of the GPU memory less the
//! weights. Batch limits are the defaults of vLLM's API server for the GPU. The tokenizer takes 1.1 µs per
//! token.
//!
//! `lab/engine_fit/h200.csv` was measured with vLLM 0.26 and an 8B model on an H200, without CUDA graphs.
//! Compared with it, [`EnginePreset::Llama8bH100`] is 7.5 to 8.7 % too fast for prompts of 2,048 to 16,384
//! tokens. In this measurement, the CPU determines the time of shorter prompts (33 ms) and of steps without
//! prompts (19 to 27 ms). CUDA graphs would reduce this time.

use std::time::Duration;
use tokenweir_sim::engine::EngineSpec;
use tokenweir_sim::engine::cost_model::CostModel;

/// An engine of a simulation: a model on a kind of GPU, with measured speeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnginePreset {
    /// vLLM 0.32 on a CPU with a model of 0.4 million parameters, see `lab/engine_fit`. The KV cache has the
    /// size of the default engine, because the measured engine holds only 16,384 tokens.
    CpuVllm,
    /// Llama 3.1 8B on an H100.
    Llama8bH100,
    /// Llama 3.1 8B on an L40S.
    Llama8bL40s,
    /// Llama 3.1 70B on four H100.
    Llama70bH100,
}

/// A published measurement: the coefficients of the duration of an engine step.
struct Measured {
    base_ms: f64,
    prefill_us: f64,
    sequence_us: f64,
    context_ns: f64,
    attention_pair_ns: f64,
    kv_tokens: u32,
    max_num_seqs: u32,
    max_num_batched_tokens: u32,
}

/// LoRA adapters in a batch, and the time to load one: 100 MB at 1 GB/s.
const MAX_LORAS: u32 = 8;
const ADAPTER_LOAD: Duration = Duration::from_millis(100);
/// Tokens in a KV block.
const BLOCK_SIZE: u32 = 16;

impl EnginePreset {
    /// The parameters of the simulated engine.
    pub fn spec(self) -> EngineSpec {
        match self {
            Self::CpuVllm => cpu_vllm(),
            Self::Llama8bH100 => Measured {
                base_ms: 5.6,
                prefill_us: 19.8,
                sequence_us: 27.0,
                context_ns: 41.0,
                attention_pair_ns: 0.82,
                kv_tokens: 440_000,
                max_num_seqs: 1_024,
                max_num_batched_tokens: 8_192,
            }
            .spec(),
            Self::Llama8bL40s => Measured {
                base_ms: 19.0,
                prefill_us: 64.9,
                sequence_us: 50.0,
                context_ns: 195.0,
                attention_pair_ns: 2.82,
                kv_tokens: 190_000,
                max_num_seqs: 256,
                max_num_batched_tokens: 2_048,
            }
            .spec(),
            Self::Llama70bH100 => Measured {
                base_ms: 14.1,
                prefill_us: 72.7,
                sequence_us: 69.0,
                context_ns: 27.0,
                attention_pair_ns: 1.03,
                kv_tokens: 460_000,
                max_num_seqs: 1_024,
                max_num_batched_tokens: 8_192,
            }
            .spec(),
        }
    }
}

/// The fit of `lab/engine_fit/points.csv` by `engine_fit.py`. Its mean error is 1.3 % for prefill of up to
/// 1,792 tokens, and 8.6 % for decode. The attention on this CPU has no fused kernel, so long prompts are
/// expensive.
fn cpu_vllm() -> EngineSpec {
    let measured = Measured {
        base_ms: 2.16,
        prefill_us: 7.13,
        sequence_us: 153.9,
        context_ns: 79.3,
        attention_pair_ns: 15.3,
        kv_tokens: 430_000,
        max_num_seqs: 256,
        max_num_batched_tokens: 2_048,
    };
    let spec = measured.spec();
    let front_end_seconds = 2.74e-3;
    let cost_model = CostModel {
        front_end_seconds,
        tokenize_seconds: 0.0,
        has_batch_buckets: false,
        ..spec.cost_model
    };
    EngineSpec { cost_model, ..spec }
}

impl Measured {
    fn spec(&self) -> EngineSpec {
        EngineSpec {
            block_size: BLOCK_SIZE,
            blocks: self.kv_tokens / BLOCK_SIZE,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            step_base: Duration::from_secs_f64(self.base_ms * 1e-3),
            prefill_token: Duration::from_secs_f64(self.prefill_us * 1e-6),
            decode_sequence: Duration::from_secs_f64(self.sequence_us * 1e-6),
            kv_token: Duration::from_secs_f64(self.context_ns * 1e-9),
            max_loras: MAX_LORAS,
            adapter_load: ADAPTER_LOAD,
            cost_model: CostModel {
                attention_pair_seconds: self.attention_pair_ns * 1e-9,
                has_batch_buckets: true,
                jitter: 0.05,
                front_end_seconds: 1e-3,
                tokenize_seconds: 1.1e-6,
                ..CostModel::LINEAR
            },
        }
    }
}
