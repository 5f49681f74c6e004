//! The report: the lines of the calculation, the recommended settings with their reasons, and the
//! unknown inputs.

use super::advice;
use super::memory::{MemoryBudget, format_thousands, gib, weights};
use super::model::ModelShape;
use super::request::TuneRequest;
use super::step_bounds::StepBounds;
use serde::Serialize;
use std::fmt::Write;

/// The report about a model on a GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TuneReport {
    /// The architecture.
    pub model: String,
    /// The lines of the calculation, in order.
    pub lines: Vec<TuneReportLine>,
    /// The recommended settings.
    pub advice: Vec<Advice>,
    /// Unreachable targets and other problems.
    pub warnings: Vec<String>,
    /// Inputs that are unknown or assumed.
    pub unknown: Vec<String>,
    /// Tokens in the KV cache of a backend.
    pub kv_tokens: u64,
    /// GPUs of a backend.
    pub gpus: u64,
    /// Cost of a million output tokens, in the currency of the price.
    pub cost: Option<f64>,
}

/// A line of the calculation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TuneReportLine {
    /// The name of the result.
    pub what: String,
    /// How it is calculated.
    pub how: String,
    /// The result, in bytes, tokens or the unit of its name.
    pub value: f64,
    /// The result as text.
    #[serde(skip)]
    pub shown: String,
}

/// A recommended setting.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// The flag of vLLM.
    pub flag: &'static str,
    /// The value of the flag.
    pub value: String,
    /// The reason.
    pub reason: String,
}

/// Why there is no report.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TuneError {
    /// The size of the weights is unknown.
    #[error("the size of the weights is unknown from the shape ({0}); give --weights")]
    Weights(String),
    /// The weights and one request do not fit.
    #[error("{weights} of weights and one request do not fit into {gpus} GPUs of {memory}")]
    TooSmall {
        /// Size of all weights.
        weights: String,
        /// Number of GPUs.
        gpus: u64,
        /// Memory of one GPU.
        memory: String,
    },
    /// The number of GPUs does not divide the number of heads.
    #[error("{0} GPUs do not divide the {1} attention heads evenly; vLLM rejects that")]
    Heads(u64, u64),
}

// === impl Line ===

impl TuneReportLine {
    pub(super) fn bytes(what: &str, how: &str, value: f64) -> Self {
        Self { what: what.to_owned(), how: how.to_owned(), value, shown: gib(value) }
    }

    pub(super) fn tokens(what: &str, how: &str, value: f64) -> Self {
        Self::shown(what, how, value, format!("{} tokens", format_thousands(value as u64)))
    }

    pub(super) fn shown(what: &str, how: &str, value: f64, shown: String) -> Self {
        Self { what: what.to_owned(), how: how.to_owned(), value, shown }
    }
}

// === impl Report ===

impl TuneReport {
    /// Computes the report for a model and the inputs.
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
            kv_tokens: budget.capacity,
            gpus: budget.tensor_parallel,
            cost: None,
        };
        report.lines.extend(bounds.lines.iter().cloned());
        advice::advise(&mut report, model, request, &budget, &bounds, steps);
        report.cost = advice::cost(&mut report, request);
        Ok(report)
    }

    /// The report as text for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_to(&mut text);
        text
    }

    fn write_to(&self, to: &mut String) -> std::fmt::Result {
        writeln!(
            to,
            "{}, {} GPU{}\n",
            self.model,
            self.gpus,
            if self.gpus > 1 { "s" } else { "" }
        )?;
        for TuneReportLine { what, how, shown, .. } in &self.lines {
            writeln!(to, "{what:<26}{shown:>22}   {how}")?;
        }
        writeln!(to)?;
        for Advice { flag, value, reason } in &self.advice {
            writeln!(to, "{:<36}{reason}", format!("{flag} {value}"))?;
        }
        for warning in &self.warnings {
            writeln!(to, "\nwarning: {warning}")?;
        }
        writeln!(to, "\nunknown or assumed:")?;
        for unknown in &self.unknown {
            writeln!(to, "  {unknown}")?;
        }
        Ok(())
    }
}

/// Minimum number of concurrent requests of mean length for which GPUs are added.
const MIN_CONCURRENT_REQUESTS: f64 = 16.0;
/// Numbers of GPUs per backend that are tried.
const GPU_COUNTS: [u64; 4] = [1, 2, 4, 8];

/// The memory of a backend with the fewest GPUs that suffice.
fn smallest_budget(
    model: &ModelShape,
    request: &TuneRequest,
    steps: (u64, u64),
) -> Result<MemoryBudget, TuneError> {
    let kv_bytes = request.kv_bytes.unwrap_or(model.bytes);
    let compute = |gpus| MemoryBudget::compute(model, request, kv_bytes, gpus, steps);
    let unknown = || TuneError::Weights(model.remarks.join("; "));
    let gpu_counts: Vec<u64> = match request.tensor_parallel {
        Some(gpus) if model.heads.is_multiple_of(gpus) => vec![gpus],
        Some(gpus) => return Err(TuneError::Heads(gpus, model.heads)),
        None => GPU_COUNTS.into_iter().filter(|gpus| model.heads.is_multiple_of(*gpus)).collect(),
    };
    let mut best: Option<MemoryBudget> = None;
    for gpus in &gpu_counts {
        let budget = compute(*gpus).ok_or_else(unknown)?;
        let concurrency = budget.fit(request.prompt.mean + request.output.mean);
        best = Some(budget);
        if concurrency >= MIN_CONCURRENT_REQUESTS {
            break;
        }
    }
    let holds_one =
        |budget: &MemoryBudget| budget.fit(request.prompt.mean + request.output.mean) >= 1.0;
    best.filter(holds_one).ok_or_else(|| TuneError::TooSmall {
        weights: gib(weights(model, request).unwrap_or(0) as f64),
        gpus: gpu_counts.last().copied().unwrap_or(1),
        memory: gib(request.gpu_memory as f64),
    })
}

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
