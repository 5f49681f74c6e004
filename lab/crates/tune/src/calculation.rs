//! Computes a report: the smallest number of GPUs that is enough, the recommended settings and the inputs
//! that are unknown.

use super::advice;
use super::memory::{MemoryBudget, StepSize, weights};
use super::model::ModelShape;
use super::report::{TuneError, TuneReport, format_bytes};
use super::request::TuneRequest;
use super::step_bounds::StepBounds;

impl TuneReport {
    /// Computes the report for a model and the inputs. Fails if the size of the weights is unknown, if not
    /// even one request fits into the KV cache, or if the number of attention heads is not divisible by the
    /// number of GPUs.
    pub fn compute(model: &ModelShape, request: &TuneRequest) -> Result<Self, TuneError> {
        let bounds = StepBounds::from_targets(request);
        let steps = advice::steps(request, &bounds);
        let budget = smallest_budget(model, request, steps)?;
        let mut report = Self {
            model: model.kind.clone(),
            lines: budget.lines.clone(),
            advice: Vec::new(),
            warnings: bounds.contradictions.clone(),
            unknown: unknown_inputs(model, request),
            kv_tokens: budget.kv_tokens,
            gpus: budget.tensor_parallel,
            cost: None,
        };
        report.lines.extend(bounds.lines.iter().cloned());
        advice::advise(&mut report, model, request, &budget, &bounds, steps);
        report.cost = advice::cost(&mut report, request);
        Ok(report)
    }
}

/// Minimum number of concurrent requests of mean length for which a backend must have memory. GPUs are added
/// until the backend has it.
const MIN_CONCURRENT_REQUESTS: f64 = 16.0;
/// The numbers of GPUs per backend that are tried, in order.
const GPU_COUNTS: [u64; 4] = [1, 2, 4, 8];

/// The memory budget of a backend with the smallest number of GPUs that holds [`MIN_CONCURRENT_REQUESTS`]. If
/// no number of GPUs holds so many, the largest number is used. Fails if even this number does not hold one
/// request.
fn smallest_budget(
    model: &ModelShape,
    request: &TuneRequest,
    steps: StepSize,
) -> Result<MemoryBudget, TuneError> {
    let kv_bytes = request.kv_bytes.unwrap_or(model.bytes);
    let compute = |gpus| MemoryBudget::compute(model, request, kv_bytes, gpus, steps);
    let unknown_weights = || TuneError::Weights(model.remarks.join("; "));
    let gpu_counts: Vec<u64> = match request.tensor_parallel {
        Some(gpus) if model.heads.is_multiple_of(gpus) => vec![gpus],
        Some(gpus) => return Err(TuneError::Heads(gpus, model.heads)),
        None => GPU_COUNTS
            .into_iter()
            .filter(|gpus| model.heads.is_multiple_of(*gpus))
            .collect(),
    };
    let mut budget: Option<MemoryBudget> = None;
    for gpus in &gpu_counts {
        let candidate = compute(*gpus).ok_or_else(unknown_weights)?;
        let concurrency = candidate.concurrent_requests(request.prompt.mean + request.output.mean);
        budget = Some(candidate);
        if concurrency >= MIN_CONCURRENT_REQUESTS {
            break;
        }
    }
    let holds_one_request = |budget: &MemoryBudget| {
        budget.concurrent_requests(request.prompt.mean + request.output.mean) >= 1.0
    };
    budget
        .filter(holds_one_request)
        .ok_or_else(|| TuneError::TooSmall {
            weights: format_bytes(weights(model, request).unwrap_or(0) as f64),
            gpus: gpu_counts.last().copied().unwrap_or(1),
            memory: format_bytes(request.gpu_memory as f64),
        })
}

/// Lists the inputs of the calculation that are unknown or assumed.
fn unknown_inputs(model: &ModelShape, request: &TuneRequest) -> Vec<String> {
    let mut unknown = model.remarks.clone();
    if request.kv_memory.is_none() {
        unknown.push(
            "the real memory of activations and graphs: vLLM measures it at startup and logs \
             `KV cache size`; give that memory as --kv-memory"
                .to_owned(),
        );
    }
    let speed = &request.speed;
    if speed.prefill.is_none() || speed.step.is_none() {
        unknown.push(
            "the speed of the engine: with --from-bench, or --prefill-rate and --step, \
             max-num-batched-tokens is derived from the targets"
                .to_owned(),
        );
    }
    unknown.extend(speed.sources.iter().cloned());
    unknown.push("the effect of the prefix cache, which saves memory and time".to_owned());
    unknown
}
