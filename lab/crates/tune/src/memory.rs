//! Computes the GPU memory of a backend and the size of its KV cache.

use super::model::{Attention, ModelShape};
use super::report::{TuneReportLine, format_bytes, format_thousands};
use super::request::TuneRequest;

/// The calculation of the memory of one GPU of a backend, and the size of the backend's KV cache.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MemoryBudget {
    /// Number of GPUs of the backend.
    pub(super) tensor_parallel: u64,
    /// Number of tokens that the KV cache of the backend holds, in whole blocks. 0: there is no memory left
    /// beside the weights.
    pub(super) kv_tokens: u64,
    /// Number of tokens per block of the KV cache.
    pub(super) block_tokens: u64,
    pub(super) lines: Vec<TuneReportLine>,
}

/// The maximum size of a step of the engine.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepSize {
    pub(super) tokens: u64,
    pub(super) requests: u64,
}

/// Estimated memory for the CUDA context, CUDA graphs and fragmentation, on each GPU.
const FIXED_OVERHEAD_BYTES: u64 = 3 << 29;

/// Size of all weights in bytes: the given size, or the size computed from the number of parameters. `None`:
/// no size is given, and the number of parameters is unknown.
pub(super) fn weights(model: &ModelShape, request: &TuneRequest) -> Option<u64> {
    request
        .weights
        .or(model.parameters.map(|parameters| parameters * model.bytes))
}

/// KV cache bytes of one token on each GPU, and the formula of this calculation as text. `kv_bytes`: number
/// of bytes per value.
pub(super) fn kv_per_token(
    model: &ModelShape,
    kv_bytes: u64,
    tensor_parallel: u64,
) -> (u64, String) {
    let layers = model.layers;
    match model.attention {
        Attention::Heads { kv_heads, head_dim } => {
            // KV heads are replicated if there are fewer heads than GPUs.
            let local_heads = kv_heads.div_ceil(tensor_parallel);
            let bytes = 2 * layers * local_heads * head_dim * kv_bytes;
            let heads = if tensor_parallel > 1 {
                format!("{local_heads} of {kv_heads} KV heads")
            } else {
                format!("{kv_heads} KV heads")
            };
            let formula = format!(
                "key and value 2 × {layers} layers × {heads} × {head_dim} head size × {kv_bytes} \
                 bytes"
            );
            (bytes, formula)
        }
        Attention::Latent { rank, rope } => {
            let bytes = layers * (rank + rope) * kv_bytes;
            let formula = format!(
                "latent attention: {layers} layers × ({rank} rank + {rope} position) × {kv_bytes} \
                 bytes, replicated on each GPU"
            );
            (bytes, formula)
        }
    }
}

/// Estimated bytes of the activations of a step on each GPU. They are the widest tensors of a layer for each
/// of the tokens, and the logits in float32 for each of the requests. vLLM measures the
/// real value at startup.
fn activation_bytes(model: &ModelShape, steps: StepSize, tensor_parallel: u64) -> u64 {
    let bytes_per_token = 2 * model.intermediate / tensor_parallel + 4 * model.hidden;
    steps.tokens * bytes_per_token * model.bytes
        + steps.requests * model.vocabulary * 4 / tensor_parallel
}

impl MemoryBudget {
    /// Computes the budget of a backend with `tensor_parallel` GPUs. `kv_bytes` is the number of bytes per value of the KV cache.
    /// `None`: the size of the weights is unknown, and the memory for the KV cache is not given.
    pub(super) fn compute(
        model: &ModelShape,
        request: &TuneRequest,
        kv_bytes: u64,
        tensor_parallel: u64,
        steps: StepSize,
    ) -> Option<Self> {
        let (kv_per_token, formula) = kv_per_token(model, kv_bytes, tensor_parallel);
        let mut lines = vec![TuneReportLine::bytes(
            "KV cache per token",
            &formula,
            kv_per_token as f64,
        )];
        let kv_memory = if let Some(kv_memory) = request.kv_memory {
            let kv_memory = kv_memory as f64;
            lines.push(TuneReportLine::bytes(
                "memory for the KV cache",
                "as given",
                kv_memory,
            ));
            kv_memory
        } else {
            remaining_memory(model, request, tensor_parallel, steps, &mut lines)?
        };
        let blocks = (kv_memory.max(0.0) / (kv_per_token * request.block) as f64).floor() as u64;
        let kv_tokens = blocks * request.block;
        let formula = format!("{blocks} blocks of {} tokens", request.block);
        lines.push(TuneReportLine::tokens(
            "KV cache",
            &formula,
            kv_tokens as f64,
        ));
        Some(Self {
            tensor_parallel,
            kv_tokens,
            block_tokens: request.block,
            lines,
        })
    }

    /// Maximum number of tokens of a request: the KV cache less one block, which vLLM reserves.
    pub(super) const fn max_request_tokens(&self) -> u64 {
        self.kv_tokens.saturating_sub(self.block_tokens)
    }

    /// Number of concurrent requests of `tokens` tokens that fit if each request occupies whole blocks. vLLM
    /// logs this number as `Maximum concurrency`.
    pub(super) fn max_concurrency(&self, tokens: u64) -> f64 {
        let blocks = tokens.div_ceil(self.block_tokens).max(1);
        (self.kv_tokens / self.block_tokens) as f64 / blocks as f64
    }

    /// Number of concurrent requests that fit into the KV cache, if a request has `tokens` tokens on average.
    pub(super) fn concurrent_requests(&self, tokens: f64) -> f64 {
        self.kv_tokens as f64 / tokens.max(1.0)
    }
}

/// Bytes of memory that remain for the KV cache on each GPU, after the weights, the activations and the fixed
/// overhead. A negative result means that the weights do not fit. Adds the calculation to `lines`. `None`:
/// the size of the weights is unknown.
fn remaining_memory(
    model: &ModelShape,
    request: &TuneRequest,
    tensor_parallel: u64,
    steps: StepSize,
    lines: &mut Vec<TuneReportLine>,
) -> Option<f64> {
    let weights = weights(model, request)? as f64 / tensor_parallel as f64;
    let usable = request.gpu_memory as f64 * request.utilization;
    let formula = format!(
        "{} of memory × {}",
        format_bytes(request.gpu_memory as f64),
        request.utilization
    );
    lines.push(TuneReportLine::bytes("memory for vLLM", &formula, usable));
    lines.push(TuneReportLine::bytes(
        "weights",
        &describe_weights(model, request, tensor_parallel),
        weights,
    ));
    let activations = activation_bytes(model, steps, tensor_parallel);
    let formula = format!(
        "estimate: steps of {} tokens, {} requests",
        steps.tokens, steps.requests
    );
    lines.push(TuneReportLine::bytes(
        "activations",
        &formula,
        activations as f64,
    ));
    let overhead = FIXED_OVERHEAD_BYTES as f64;
    lines.push(TuneReportLine::bytes(
        "CUDA context and graphs",
        "estimate",
        overhead,
    ));
    let kv_memory = usable - weights - activations as f64 - overhead;
    lines.push(TuneReportLine::bytes(
        "memory for the KV cache",
        "the rest, on each GPU",
        kv_memory,
    ));
    Some(kv_memory)
}

/// The formula for the weights on each GPU, as text.
fn describe_weights(model: &ModelShape, request: &TuneRequest, tensor_parallel: u64) -> String {
    let divisor = match tensor_parallel {
        1 => String::new(),
        gpus => format!(" ÷ {gpus} GPUs"),
    };
    match (request.weights, model.parameters) {
        (Some(weights), _) => format!("{} as given{divisor}", format_bytes(weights as f64)),
        (None, parameters) => format!(
            "{} parameters × {} bytes{divisor}",
            format_thousands(parameters.unwrap_or(0)),
            model.bytes
        ),
    }
}
