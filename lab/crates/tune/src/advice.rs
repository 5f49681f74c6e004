//! Derives the recommended settings of vLLM from the calculation.

use super::memory::{MemoryBudget, StepSize};
use super::model::ModelShape;
use super::report::{Advice, TuneReport, TuneReportLine, format_thousands};
use super::request::TuneRequest;
use super::step_bounds::StepBounds;

/// The default settings of the server of vLLM 0.32 for GPUs of different size. Each row: minimum memory of
/// the GPU in bytes, tokens per step, requests per step. The first row whose minimum is met applies.
const VLLM_STEP_DEFAULTS: [(u64, u64, u64); 3] = [
    (160 << 30, 16_384, 1_024),
    (70 << 30, 8_192, 1_024),
    (0, 2_048, 256),
];
/// The recommended number of tokens per step is rounded to a multiple of this number.
const STEP_TOKEN_MULTIPLE: u64 = 64;
/// Maximum recommended number of requests per step. With more, each step gets noticeably slower.
const MAX_STEP_REQUESTS: f64 = 1_024.0;

/// The default tokens and requests per step of vLLM for the given GPU.
fn step_defaults(request: &TuneRequest) -> StepSize {
    let defaults = VLLM_STEP_DEFAULTS
        .iter()
        .find(|(memory, ..)| request.gpu_memory >= *memory);
    let (_, tokens, requests) = defaults.copied().unwrap_or((0, 2_048, 256));
    StepSize { tokens, requests }
}

/// The recommended tokens and requests per step. They are the defaults of vLLM, but the number of tokens is
/// changed if the bounds require it.
pub(super) fn steps(request: &TuneRequest, bounds: &StepBounds) -> StepSize {
    let StepSize { tokens, requests } = step_defaults(request);
    let tokens = tokens.max(
        bounds
            .min_tokens
            .unwrap_or(0)
            .next_multiple_of(STEP_TOKEN_MULTIPLE),
    );
    // The upper bound has priority over the lower bound, because too long steps delay all running requests.
    let tokens = bounds.max_tokens.map_or(tokens, |max_tokens| {
        let rounded = max_tokens / STEP_TOKEN_MULTIPLE * STEP_TOKEN_MULTIPLE;
        tokens.min(rounded.max(STEP_TOKEN_MULTIPLE))
    });
    StepSize { tokens, requests }
}

/// Adds the recommended settings to the report, with the lines of their calculation.
pub(super) fn advise(
    report: &mut TuneReport,
    model: &ModelShape,
    request: &TuneRequest,
    budget: &MemoryBudget,
    bounds: &StepBounds,
    steps: StepSize,
) {
    let setting = |flag, value: String, reason: String| Advice {
        flag,
        value,
        reason,
    };
    let mut advice = Vec::new();
    advice.push(setting(
        "--gpu-memory-utilization",
        request.utilization.to_string(),
        "the value of the calculation above; the default is 0.92 in vLLM 0.32, and 0.9 before"
            .to_owned(),
    ));
    if budget.tensor_parallel > 1 {
        advice.push(setting(
            "--tensor-parallel-size",
            budget.tensor_parallel.to_string(),
            "with fewer GPUs, 16 requests of mean length do not fit".to_owned(),
        ));
    }
    advice.extend(advise_max_model_len(report, model, budget));
    advice.push(advise_max_num_seqs(report, request, budget));
    let reason = match (bounds.min_tokens, bounds.max_tokens) {
        (None, None) => {
            "vLLM's default for this GPU: no target or speed requires another value".to_owned()
        }
        _ => "from the bounds above".to_owned(),
    };
    advice.push(setting(
        "--max-num-batched-tokens",
        steps.tokens.to_string(),
        reason,
    ));
    advice.extend(advise_kv_cache_dtype(report, model, request, budget));
    report.advice = advice;
    add_backend_count(report, request, budget);
}

/// Recommends a shorter `--max-model-len` if a request with the model's maximum length does not fit into the
/// KV cache. Also adds a line with the number of concurrent requests of the usable maximum length. `None`:
/// the maximum length fits or is unknown.
fn advise_max_model_len(
    report: &mut TuneReport,
    model: &ModelShape,
    budget: &MemoryBudget,
) -> Option<Advice> {
    let longest = model.longest?;
    let served = longest.min(budget.max_request_tokens());
    let concurrency = budget.max_concurrency(served);
    report.add_line(
        "longest requests at once",
        &format!(
            "{} blocks ÷ {} for {served} tokens: vLLM logs this as Maximum concurrency, and a size \
             of {} tokens",
            format_thousands(budget.kv_tokens / budget.block_tokens),
            served.div_ceil(budget.block_tokens),
            format_thousands((concurrency * served as f64) as u64)
        ),
        concurrency,
        format!("{concurrency:.2}"),
    );
    (served < longest).then(|| Advice {
        flag: "--max-model-len",
        value: served.to_string(),
        reason: format!(
            "a request of the model's maximum of {longest} tokens does not fit, because vLLM \
             reserves one block: it would not start"
        ),
    })
}

/// Recommends `--max-num-seqs`: the number of requests of mean length that fit into the KV cache
/// when half of their output is generated, at most [`MAX_STEP_REQUESTS`]. Warns if two requests of
/// p95 length do not fit.
fn advise_max_num_seqs(
    report: &mut TuneReport,
    request: &TuneRequest,
    budget: &MemoryBudget,
) -> Advice {
    let prompt = request.prompt;
    let output = request.output;
    let fit = budget.concurrent_requests(request.mean_tokens());
    let formula = format!(
        "KV cache ÷ ({:.0} prompt + {:.0} ÷ 2 output)",
        prompt.mean, output.mean
    );
    report.add_line("concurrent requests", &formula, fit, format!("{fit:.1}"));
    let long_fit = budget.concurrent_requests(prompt.p95 + output.p95);
    let formula = format!(
        "KV cache ÷ ({:.0} prompt + {:.0} output, both p95)",
        prompt.p95, output.p95
    );
    report.add_line(
        "concurrent, all at p95",
        &formula,
        long_fit,
        format!("{long_fit:.1}"),
    );
    if long_fit < 2.0 {
        report.warnings.push(
            "two requests of p95 length do not fit: one of them will be \
                   preempted"
                .to_owned(),
        );
    }
    let value = fit.min(MAX_STEP_REQUESTS).floor().max(1.0);
    let reason = if fit > MAX_STEP_REQUESTS {
        "more would fit, but each step would get slower: measure before you raise it".to_owned()
    } else {
        "as many as fit; more would be preempted and computed twice, fewer would wait".to_owned()
    };
    Advice {
        flag: "--max-num-seqs",
        value: format!("{value:.0}"),
        reason,
    }
}

/// Recommends a KV cache with 1 byte per value (fp8) if the target throughput needs more concurrent requests
/// than fit otherwise. `None`: the data type of the model is enough, or there is no target throughput.
fn advise_kv_cache_dtype(
    report: &mut TuneReport,
    model: &ModelShape,
    request: &TuneRequest,
    budget: &MemoryBudget,
) -> Option<Advice> {
    let kv_bytes = request.kv_bytes.unwrap_or(model.bytes);
    if kv_bytes == 1 {
        return Some(Advice {
            flag: "--kv-cache-dtype",
            value: "fp8".to_owned(),
            reason: "as given; measure whether the quality of outputs suffices".to_owned(),
        });
    }
    let fp8_capacity = budget.kv_tokens * kv_bytes;
    report.lines.push(TuneReportLine::tokens(
        "with --kv-cache-dtype fp8",
        "1 byte for each value",
        fp8_capacity as f64,
    ));
    let required = required_concurrency(request)?;
    (required > budget.concurrent_requests(request.mean_tokens())).then(|| Advice {
        flag: "--kv-cache-dtype",
        value: "fp8".to_owned(),
        reason: format!(
            "the targets need {required:.0} concurrent requests; measure whether the quality of \
             outputs suffices"
        ),
    })
}

/// Number of concurrent requests that the target throughput needs: target throughput × duration of a step,
/// because each request generates one token per step (Little's law). `None`: there is no target throughput,
/// or neither the duration of a step nor the target time between tokens is known.
fn required_concurrency(request: &TuneRequest) -> Option<f64> {
    let step = request.speed.step.or(request.targets.tbt)?;
    Some(request.targets.throughput? * step)
}

/// Adds the number of backends that the target throughput needs to the report.
fn add_backend_count(report: &mut TuneReport, request: &TuneRequest, budget: &MemoryBudget) {
    let Some(throughput) = request.targets.throughput else {
        return;
    };
    let (backend_rate, formula) = match (
        request.speed.output,
        request.speed.step.or(request.targets.tbt),
    ) {
        (Some(output), _) => (output, "as measured or given".to_owned()),
        (None, Some(step)) => {
            let fit = budget.concurrent_requests(request.mean_tokens());
            let fit = fit.min(MAX_STEP_REQUESTS);
            (
                fit / step,
                format!(
                    "at most: {fit:.0} requests ÷ {:.1} ms per token",
                    step * 1e3
                ),
            )
        }
        (None, None) => {
            report
                .warnings
                .push("the target throughput needs --tbt, --step or --from-bench".to_owned());
            return;
        }
    };
    let per_second = format!("{} tokens/s", format_thousands(backend_rate as u64));
    report.add_line("output of one backend", &formula, backend_rate, per_second);
    let count = (throughput / backend_rate.max(1e-9)).ceil();
    let formula = format!("{throughput:.0} tokens/s ÷ {backend_rate:.0}");
    report.add_line(
        "backends for the target",
        &formula,
        count,
        format!("{count:.0}"),
    );
}

/// Cost of a million output tokens: price per GPU hour ÷ output tokens of a GPU per hour × 1,000,000. `None`:
/// the price or the output rate is not given. If only the output rate is missing, adds a warning.
pub(super) fn cost(report: &mut TuneReport, request: &TuneRequest) -> Option<f64> {
    let price = request.price?;
    let Some(output) = request.speed.output else {
        report.warnings.push(
            "the cost needs the output rate of a backend: give --from-bench or \
             --output-rate"
                .to_owned(),
        );
        return None;
    };
    let per_gpu = output / report.gpus as f64;
    let cost = price / (per_gpu * 3600.0) * 1e6;
    let formula = format!(
        "{price} per hour ÷ ({output:.0} tokens/s ÷ {} GPU{} × 3600 s) × 1,000,000",
        report.gpus,
        if report.gpus == 1 { "" } else { "s" }
    );
    report.add_line(
        "cost per million tokens",
        &formula,
        cost,
        format!("{cost:.4}"),
    );
    Some(cost)
}
