//! Computes the GPU memory of a backend and the size of its KV cache.

use super::model::{Attention, ModelShape};
use super::report::{TuneReportLine, format_thousands, gib};
use super::request::TuneRequest;

/// The memory of one GPU of a backend, in bytes, and its KV cache.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MemoryBudget {
    pub(super) tensor_parallel: u64,
    pub(super) kv_per_token: u64,
    /// Tokens in the KV cache of the backend, in whole blocks. 0: the weights do not fit.
    pub(super) capacity: u64,
    /// Tokens per block.
    pub(super) block: u64,
    pub(super) lines: Vec<TuneReportLine>,
}

/// Estimated memory for the CUDA context, CUDA graphs and fragmentation, on each GPU.
const FIXED_OVERHEAD_BYTES: u64 = 3 << 29;

/// Size of all weights in bytes. `None`: unknown.
pub(super) fn weights(model: &ModelShape, request: &TuneRequest) -> Option<u64> {
    request.weights.or(model.parameters.map(|parameters| parameters * model.bytes))
}

/// KV cache bytes per token on each GPU, and a description of the calculation.
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
            let how = format!(
                "key and value 2 × {layers} layers × {heads} × {head_dim} head size × {kv_bytes} \
                 bytes"
            );
            (bytes, how)
        }
        Attention::Latent { rank, rope } => {
            let bytes = layers * (rank + rope) * kv_bytes;
            let how = format!(
                "latent attention: {layers} layers × ({rank} rank + {rope} position) × {kv_bytes} \
                 bytes, replicated on each GPU"
            );
            (bytes, how)
        }
    }
}

/// Activation bytes of a step: the widest tensors of a layer for each token, and logits in float32
/// for each request. This is an estimate; vLLM measures the real value at startup.
fn activation_bytes(model: &ModelShape, batched: u64, sequences: u64, tensor_parallel: u64) -> u64 {
    let bytes_per_token = 2 * model.intermediate / tensor_parallel + 4 * model.hidden;
    batched * bytes_per_token * model.bytes + sequences * model.vocabulary * 4 / tensor_parallel
}

impl MemoryBudget {
    /// Computes the memory of `tensor_parallel` GPUs for steps of `batched` tokens and `sequences`
    /// requests. `None`: the size of the weights is unknown, and no KV cache memory is given.
    pub(super) fn compute(
        model: &ModelShape,
        request: &TuneRequest,
        kv_bytes: u64,
        tensor_parallel: u64,
        (batched, sequences): (u64, u64),
    ) -> Option<Self> {
        let (kv_per_token, how) = kv_per_token(model, kv_bytes, tensor_parallel);
        let mut lines =
            vec![TuneReportLine::bytes("KV cache per token", &how, kv_per_token as f64)];
        let left = if let Some(given) = request.kv_memory {
            lines.push(TuneReportLine::bytes("memory for the KV cache", "as given", given as f64));
            given as f64
        } else {
            let weights = weights(model, request)? as f64 / tensor_parallel as f64;
            let usable = request.gpu_memory as f64 * request.utilization;
            let how =
                format!("{} of memory × {}", gib(request.gpu_memory as f64), request.utilization);
            lines.push(TuneReportLine::bytes("memory for vLLM", &how, usable));
            lines.push(TuneReportLine::bytes(
                "weights",
                &describe_weights(model, request, tensor_parallel),
                weights,
            ));
            let activations = activation_bytes(model, batched, sequences, tensor_parallel);
            let how = format!("estimate: steps of {batched} tokens, {sequences} requests");
            lines.push(TuneReportLine::bytes("activations", &how, activations as f64));
            let overhead = FIXED_OVERHEAD_BYTES as f64;
            lines.push(TuneReportLine::bytes("CUDA context and graphs", "estimate", overhead));
            let left = usable - weights - activations as f64 - overhead;
            lines.push(TuneReportLine::bytes(
                "memory for the KV cache",
                "the rest, on each GPU",
                left,
            ));
            left
        };
        let blocks = (left.max(0.0) / (kv_per_token * request.block) as f64).floor() as u64;
        let capacity = blocks * request.block;
        lines.push(TuneReportLine {
            name: "KV cache".to_owned(),
            formula: format!("{blocks} blocks of {} tokens", request.block),
            value: capacity as f64,
            shown: format!("{} tokens", format_thousands(capacity)),
        });
        Some(Self { tensor_parallel, kv_per_token, capacity, block: request.block, lines })
    }

    /// Maximum length of a request: vLLM reserves one block of the cache.
    pub(super) const fn longest(&self) -> u64 {
        self.capacity.saturating_sub(self.block)
    }

    /// The `Maximum concurrency` that vLLM logs for requests of this length, in whole blocks.
    pub(super) fn concurrency(&self, tokens: u64) -> f64 {
        let blocks = tokens.div_ceil(self.block).max(1);
        (self.capacity / self.block) as f64 / blocks as f64
    }

    /// Number of concurrent requests of this length that fit into the cache.
    pub(super) fn fit(&self, tokens: f64) -> f64 {
        self.capacity as f64 / tokens.max(1.0)
    }
}

fn describe_weights(model: &ModelShape, request: &TuneRequest, tensor_parallel: u64) -> String {
    let divisor = match tensor_parallel {
        1 => String::new(),
        gpus => format!(" ÷ {gpus} GPUs"),
    };
    match (request.weights, model.parameters) {
        (Some(weights), _) => format!("{} as given{divisor}", gib(weights as f64)),
        (None, parameters) => format!(
            "{} parameters × {} bytes{divisor}",
            format_thousands(parameters.unwrap_or(0)),
            model.bytes
        ),
    }
}
