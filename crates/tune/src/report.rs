//! What comes of tuning: arithmetic line by line, settings with their reasons, and what is not known.

use super::advice;
use super::memory::{Budget, gib, thousands, weights};
use super::model::Model;
use super::pace::Pace;
use super::request::Request;
use serde::Serialize;
use std::fmt::Write;

/// Settings for a model on a GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The architecture.
    pub model: String,
    /// The arithmetic, in order.
    pub lines: Vec<Line>,
    /// What to give vLLM.
    pub advice: Vec<Advice>,
    /// What cannot be reached, or should be looked at.
    pub warnings: Vec<String>,
    /// What this cannot know.
    pub unknown: Vec<String>,
    /// Tokens of KV cache of a replica.
    pub kv_tokens: u64,
    /// GPUs of a replica.
    pub gpus: u64,
    /// For a million output tokens, in the currency of the price.
    pub cost: Option<f64>,
}

/// A line of arithmetic.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// What comes out.
    pub what: String,
    /// Of what.
    pub how: String,
    /// The number: bytes, tokens or what it is called.
    pub value: f64,
    /// The number as it is shown.
    #[serde(skip)]
    pub shown: String,
}

/// A setting.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// vLLM's flag.
    pub flag: &'static str,
    /// Its value.
    pub value: String,
    /// Why.
    pub reason: String,
}

/// Why there are no settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TuneError {
    /// The weights are not known.
    #[error("the size of the weights is not known from the shape ({0}); give --weights")]
    Weights(String),
    /// They do not fit.
    #[error("{weights} of weights and one request do not fit into {gpus} GPUs of {memory}")]
    TooSmall {
        /// Of all weights.
        weights: String,
        /// As many as were tried.
        gpus: u64,
        /// Of one.
        memory: String,
    },
    /// Heads do not divide.
    #[error("{0} GPUs do not divide the model's {1} heads evenly; vLLM refuses that")]
    Heads(u64, u64),
}

// === impl Line ===

impl Line {
    pub(super) fn bytes(what: &str, how: &str, value: f64) -> Self {
        Self { what: what.to_owned(), how: how.to_owned(), value, shown: gib(value) }
    }

    pub(super) fn tokens(what: &str, how: &str, value: f64) -> Self {
        Self::shown(what, how, value, format!("{} tokens", thousands(value as u64)))
    }

    pub(super) fn shown(what: &str, how: &str, value: f64, shown: String) -> Self {
        Self { what: what.to_owned(), how: how.to_owned(), value, shown }
    }
}

// === impl Report ===

impl Report {
    /// For a model and what is asked of it.
    pub fn of(model: &Model, request: &Request) -> Result<Self, TuneError> {
        let pace = Pace::of(request);
        let steps = advice::steps(request, &pace);
        let budget = budget(model, request, steps)?;
        let mut report = Self {
            model: model.kind.clone(),
            lines: budget.lines.clone(),
            advice: Vec::new(),
            warnings: pace.contradictions.clone(),
            unknown: unknown(model, request),
            kv_tokens: budget.capacity,
            gpus: budget.tensor_parallel,
            cost: None,
        };
        report.lines.extend(pace.lines.iter().cloned());
        advice::advise(&mut report, model, request, &budget, &pace, steps);
        report.cost = advice::cost(&mut report, request);
        Ok(report)
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, to: &mut String) -> std::fmt::Result {
        writeln!(
            to,
            "{}, {} GPU{}\n",
            self.model,
            self.gpus,
            if self.gpus > 1 { "s" } else { "" }
        )?;
        for Line { what, how, shown, .. } in &self.lines {
            writeln!(to, "{what:<26}{shown:>22}   {how}")?;
        }
        writeln!(to)?;
        for Advice { flag, value, reason } in &self.advice {
            writeln!(to, "{:<36}{reason}", format!("{flag} {value}"))?;
        }
        for warning in &self.warnings {
            writeln!(to, "\nwarning: {warning}")?;
        }
        writeln!(to, "\nnot known:")?;
        for unknown in &self.unknown {
            writeln!(to, "  {unknown}")?;
        }
        Ok(())
    }
}

/// Requests of mean length for which a replica should have room at least, if more GPUs can give it.
const ROOM: f64 = 16.0;
/// As many GPUs as are tried for a replica.
const GPUS: [u64; 4] = [1, 2, 4, 8];

/// The memory of a replica of as few GPUs as it takes.
fn budget(model: &Model, request: &Request, steps: (u64, u64)) -> Result<Budget, TuneError> {
    let kv_bytes = request.kv_bytes.unwrap_or(model.bytes);
    let on = |gpus| Budget::of(model, request, kv_bytes, gpus, steps);
    let unknown = || TuneError::Weights(model.remarks.join("; "));
    let tried: Vec<u64> = match request.tensor_parallel {
        Some(gpus) if model.heads.is_multiple_of(gpus) => vec![gpus],
        Some(gpus) => return Err(TuneError::Heads(gpus, model.heads)),
        None => GPUS.into_iter().filter(|gpus| model.heads.is_multiple_of(*gpus)).collect(),
    };
    let mut best: Option<Budget> = None;
    for gpus in &tried {
        let budget = on(*gpus).ok_or_else(unknown)?;
        let is_enough = budget.fit(request.prompt.mean + request.output.mean) >= ROOM;
        best = Some(budget);
        if is_enough {
            break;
        }
    }
    let holds_one = |it: &Budget| it.fit(request.prompt.mean + request.output.mean) >= 1.0;
    best.filter(holds_one).ok_or_else(|| TuneError::TooSmall {
        weights: gib(weights(model, request).unwrap_or(0) as f64),
        gpus: tried.last().copied().unwrap_or(1),
        memory: gib(request.gpu_memory as f64),
    })
}

fn unknown(model: &Model, request: &Request) -> Vec<String> {
    let mut unknown = model.remarks.clone();
    if request.kv_memory.is_none() {
        unknown.push(
            "what activations and graphs really take: vLLM measures it at its start, and its log's \
             `KV cache size` is what counts; give that memory as --kv-memory"
                .to_owned(),
        );
    }
    let speed = &request.speed;
    if speed.prefill.is_none() || speed.step.is_none() {
        unknown.push(
            "how fast the engine is: give --from-bench, or --prefill-rate and --step, and \
             max-num-batched-tokens follows from the targets"
                .to_owned(),
        );
    }
    unknown.extend(speed.sources.iter().cloned());
    unknown
        .push("how much of the prompts a prefix cache saves: that makes room and time".to_owned());
    unknown
}
