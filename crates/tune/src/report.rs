//! The report: the lines of the calculation, the recommended settings with their reasons, and the
//! unknown inputs.

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
    pub name: String,
    /// How it is calculated.
    pub formula: String,
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
        Self { name: what.to_owned(), formula: how.to_owned(), value, shown: gib(value) }
    }

    pub(super) fn tokens(what: &str, how: &str, value: f64) -> Self {
        Self::shown(what, how, value, format!("{} tokens", format_thousands(value as u64)))
    }

    pub(super) fn shown(what: &str, how: &str, value: f64, shown: String) -> Self {
        Self { name: what.to_owned(), formula: how.to_owned(), value, shown }
    }
}

// === impl Report ===

impl TuneReport {
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
        for TuneReportLine { name: what, formula: how, shown, .. } in &self.lines {
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

/// Formats bytes as GiB, MiB or bytes.
pub(super) fn gib(bytes: f64) -> String {
    match bytes.abs() {
        small if small < 1024.0 * 1024.0 => format!("{} bytes", format_thousands(bytes as u64)),
        middle if middle < 1e9 => format!("{:.1} MiB", bytes / f64::from(1 << 20)),
        _ => format!("{:.2} GiB", bytes / f64::from(1 << 30)),
    }
}

/// Formats a number with thousands separators.
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
    fn numbers_are_grouped_by_three() {
        let shown = [0, 999, 1_000, 1_234_567].map(format_thousands);
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
    }
}
