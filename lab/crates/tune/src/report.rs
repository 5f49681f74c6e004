//! The report of `tokenweir-lab tune`: the lines of the calculation, the recommended settings with
//! their reasons, and the unknown inputs.

use serde::Serialize;
use std::fmt;

/// The recommended settings of vLLM for a model on a GPU, with their calculation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TuneReport {
    /// The architecture of the model, such as `qwen3`.
    pub model: String,
    /// The lines of the calculation, in order.
    pub lines: Vec<TuneReportLine>,
    /// The recommended settings.
    pub advice: Vec<Advice>,
    /// Targets that cannot be reached, and other problems.
    pub warnings: Vec<String>,
    /// Inputs of the calculation that are unknown or assumed.
    pub unknown: Vec<String>,
    /// Number of tokens that the KV cache of one backend holds.
    pub kv_tokens: u64,
    /// Number of GPUs of one backend.
    pub gpus: u64,
    /// Cost of a million output tokens, in the currency of the given price. `None`: the price or
    /// the output rate of a backend is not given.
    pub cost: Option<f64>,
}

/// One line of the calculation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TuneReportLine {
    /// The name of the calculated quantity.
    pub name: String,
    /// The formula of the calculation, with its numbers.
    pub formula: String,
    /// The result. The name implies the unit, such as bytes or tokens.
    pub value: f64,
    /// The result as text with its unit.
    #[serde(skip)]
    pub shown: String,
}

/// A recommended flag of vLLM.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// The command-line flag of vLLM.
    pub flag: &'static str,
    /// The value of the flag.
    pub value: String,
    /// The reason for the value.
    pub reason: String,
}

/// Why no report can be computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TuneError {
    /// The size of the weights is not given and cannot be computed from the shape of the model.
    #[error("the size of the weights is unknown from the shape ({0}); give --weights")]
    Weights(String),
    /// The weights and one request of mean length do not fit into the GPUs.
    #[error("{weights} of weights and one request do not fit into {gpus} GPUs of {memory}")]
    TooSmall {
        /// Size of all weights, as text.
        weights: String,
        /// Number of GPUs.
        gpus: u64,
        /// Memory of one GPU, as text.
        memory: String,
    },
    /// The given number of GPUs does not divide the number of attention heads.
    #[error("{0} GPUs do not divide the {1} attention heads evenly; vLLM rejects that")]
    Heads(u64, u64),
}

impl TuneReportLine {
    /// Creates a line with a result in bytes.
    pub(super) fn bytes(name: &str, formula: &str, value: f64) -> Self {
        Self::new(name, formula, value, format_bytes(value))
    }

    /// Creates a line with a result in tokens.
    pub(super) fn tokens(name: &str, formula: &str, value: f64) -> Self {
        Self::new(
            name,
            formula,
            value,
            format!("{} tokens", format_thousands(value as u64)),
        )
    }

    /// Creates a line. `shown` is the result as text.
    fn new(name: &str, formula: &str, value: f64, shown: String) -> Self {
        Self {
            name: name.to_owned(),
            formula: formula.to_owned(),
            value,
            shown,
        }
    }
}

impl TuneReport {
    /// Adds a line to the calculation. `shown` is the result as text.
    pub(super) fn add_line(&mut self, name: &str, formula: &str, value: f64, shown: String) {
        self.lines
            .push(TuneReportLine::new(name, formula, value, shown));
    }
}

impl fmt::Display for TuneReport {
    /// Writes the report as text for a terminal.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "{}, {} GPU{}\n",
            self.model,
            self.gpus,
            if self.gpus > 1 { "s" } else { "" }
        )?;
        for TuneReportLine {
            name,
            formula,
            shown,
            ..
        } in &self.lines
        {
            writeln!(out, "{name:<26}{shown:>22}   {formula}")?;
        }
        writeln!(out)?;
        for Advice {
            flag,
            value,
            reason,
        } in &self.advice
        {
            writeln!(out, "{:<36}{reason}", format!("{flag} {value}"))?;
        }
        for warning in &self.warnings {
            writeln!(out, "\nwarning: {warning}")?;
        }
        writeln!(out, "\nunknown or assumed:")?;
        for unknown in &self.unknown {
            writeln!(out, "  {unknown}")?;
        }
        Ok(())
    }
}

/// Formats a number of bytes in GiB, MiB or bytes, depending on its size.
pub(super) fn format_bytes(bytes: f64) -> String {
    match bytes.abs() {
        size if size < 1024.0 * 1024.0 => format!("{} bytes", format_thousands(bytes as u64)),
        size if size < 1e9 => format!("{:.1} MiB", bytes / f64::from(1 << 20)),
        _ => format!("{:.2} GiB", bytes / f64::from(1 << 30)),
    }
}

/// Formats a number with commas between groups of three digits.
pub(super) fn format_thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
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
    fn numbers_have_commas_between_groups() {
        let shown = [0, 999, 1_000, 1_234_567].map(format_thousands);
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
    }
}
