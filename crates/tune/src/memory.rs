//! What fits into the memory of a replica.

use super::model::{Attention, Model};
use super::report::Line;
use super::request::Request;

/// The memory of one GPU of a replica, shared out. In bytes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Budget {
    pub(super) tensor_parallel: u64,
    pub(super) kv_per_token: u64,
    /// Tokens of KV cache of the replica, in whole blocks. 0: the weights do not fit.
    pub(super) capacity: u64,
    /// Tokens in a block.
    pub(super) block: u64,
    pub(super) lines: Vec<Line>,
}

/// Of CUDA's context, its graphs and the allocator's slack, on each GPU: an estimate.
const FIXED: u64 = 3 << 29;

/// Size of the weights. `None`: not known.
pub(super) fn weights(model: &Model, request: &Request) -> Option<u64> {
    request.weights.or(model.parameters.map(|parameters| parameters * model.bytes))
}

/// Bytes of KV cache of a token on each GPU, and how they come about.
pub(super) fn kv_per_token(model: &Model, kv_bytes: u64, tensor_parallel: u64) -> (u64, String) {
    let layers = model.layers;
    match model.attention {
        Attention::Heads { kv_heads, head_dim } => {
            // Heads are copied if there are fewer than GPUs.
            let here = kv_heads.div_ceil(tensor_parallel);
            let bytes = 2 * layers * here * head_dim * kv_bytes;
            let of = if tensor_parallel > 1 {
                format!("{here} of {kv_heads} KV heads")
            } else {
                format!("{kv_heads} KV heads")
            };
            let how = format!(
                "key and value 2 × {layers} layers × {of} × {head_dim} wide × {kv_bytes} bytes"
            );
            (bytes, how)
        }
        Attention::Latent { rank, rope } => {
            let bytes = layers * (rank + rope) * kv_bytes;
            let how = format!(
                "latent attention: {layers} layers × ({rank} rank + {rope} position) × {kv_bytes} \
                 bytes, whole on each GPU"
            );
            (bytes, how)
        }
    }
}

/// Activations of a step: the widest tensors inside a layer for each token of the step, and logits in
/// float32 for each request. An estimate of what vLLM measures when it starts.
fn activations(model: &Model, batched: u64, sequences: u64, tensor_parallel: u64) -> u64 {
    let inside = 2 * model.intermediate / tensor_parallel + 4 * model.hidden;
    batched * inside * model.bytes + sequences * model.vocabulary * 4 / tensor_parallel
}

impl Budget {
    /// Shares out the memory of `tensor_parallel` GPUs for steps of so many tokens and requests.
    /// `None`: the size of the weights is not known, and neither is what is left.
    pub(super) fn of(
        model: &Model,
        request: &Request,
        kv_bytes: u64,
        tensor_parallel: u64,
        (batched, sequences): (u64, u64),
    ) -> Option<Self> {
        let (kv_per_token, how) = kv_per_token(model, kv_bytes, tensor_parallel);
        let mut lines = vec![Line::bytes("KV cache of a token", &how, kv_per_token as f64)];
        let left = if let Some(given) = request.kv_memory {
            lines.push(Line::bytes("for the KV cache", "as given", given as f64));
            given as f64
        } else {
            let weights = weights(model, request)? as f64 / tensor_parallel as f64;
            let usable = request.gpu_memory as f64 * request.utilization;
            let how =
                format!("{} of memory × {}", gib(request.gpu_memory as f64), request.utilization);
            lines.push(Line::bytes("vLLM may take", &how, usable));
            lines.push(Line::bytes(
                "weights",
                &of_weights(model, request, tensor_parallel),
                weights,
            ));
            let activations = activations(model, batched, sequences, tensor_parallel);
            let how = format!("estimate: steps of {batched} tokens, {sequences} requests");
            lines.push(Line::bytes("activations", &how, activations as f64));
            lines.push(Line::bytes("context and graphs", "estimate", FIXED as f64));
            let left = usable - weights - activations as f64 - FIXED as f64;
            lines.push(Line::bytes("left for the KV cache", "what remains, on each GPU", left));
            left
        };
        let blocks = (left.max(0.0) / (kv_per_token * request.block) as f64).floor() as u64;
        let capacity = blocks * request.block;
        lines.push(Line {
            what: "KV cache".to_owned(),
            how: format!("{blocks} blocks of {} tokens", request.block),
            value: capacity as f64,
            shown: format!("{} tokens", thousands(capacity)),
        });
        Some(Self { tensor_parallel, kv_per_token, capacity, block: request.block, lines })
    }

    /// The longest request with which vLLM starts: it keeps one block of its cache for itself.
    pub(super) const fn longest(&self) -> u64 {
        self.capacity.saturating_sub(self.block)
    }

    /// Requests of so many tokens that its log says to fit at once, each in whole blocks.
    pub(super) fn concurrency(&self, tokens: u64) -> f64 {
        let blocks = tokens.div_ceil(self.block).max(1);
        (self.capacity / self.block) as f64 / blocks as f64
    }

    /// Requests of so many tokens that fit at once.
    pub(super) fn fit(&self, tokens: f64) -> f64 {
        self.capacity as f64 / tokens.max(1.0)
    }
}

fn of_weights(model: &Model, request: &Request, tensor_parallel: u64) -> String {
    let shared = match tensor_parallel {
        1 => String::new(),
        many => format!(" ÷ {many} GPUs"),
    };
    match (request.weights, model.parameters) {
        (Some(weights), _) => format!("{} as given{shared}", gib(weights as f64)),
        (None, parameters) => format!(
            "{} parameters × {} bytes{shared}",
            thousands(parameters.unwrap_or(0)),
            model.bytes
        ),
    }
}

/// Gibibytes, or less where that says more.
pub(super) fn gib(bytes: f64) -> String {
    match bytes.abs() {
        small if small < 1024.0 * 1024.0 => format!("{} bytes", thousands(bytes as u64)),
        middle if middle < 1e9 => format!("{:.1} MiB", bytes / f64::from(1 << 20)),
        _ => format!("{:.2} GiB", bytes / f64::from(1 << 30)),
    }
}

/// A number in groups of three digits.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_three() {
        let shown = [0, 999, 1_000, 1_234_567].map(thousands);
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
    }
}
