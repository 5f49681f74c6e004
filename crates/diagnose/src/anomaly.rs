//! Numbers that are far from what is usual, and numbers that move together: what to look at first,
//! not what is wrong.

use super::case::{Case, FAR};
use super::history::{Point, Window};
use super::measure::MEASURES;
use super::statistics::rank_correlation;
use super::step::{Signal, Step};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// A number that is far from what is usual.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Anomaly {
    /// The replica.
    pub backend: String,
    /// What was measured.
    pub measure: Cow<'static, str>,
    /// Its value in the last minute.
    pub value: f64,
    /// The unit.
    pub unit: Cow<'static, str>,
    /// The median of the hour before.
    pub usual: f64,
    /// (value − median) ÷ (1.4826 × median absolute deviation).
    pub z: f64,
}

/// Two numbers that moved together in the last five minutes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// The replica.
    pub backend: String,
    /// One of them.
    pub first: Cow<'static, str>,
    /// The other.
    pub second: Cow<'static, str>,
    /// Spearman's correlation by ranks.
    pub correlation: f64,
    /// How many moments had both.
    pub moments: usize,
}

/// A number has to be at least this many times what is usual, or its inverse.
const TIMES: f64 = 2.0;
/// Fewer moments show no correlation.
const LEAST: usize = 20;
/// A weaker one is not told.
const STRONG: f64 = 0.7;

/// What is looked at together.
const PAIRS: [(&str, Point, &str, Point); 5] = [
    ("kv_usage", |step| step.get(Signal::KvUsage), "engine_ttft", ttft),
    ("waiting", |step| step.get(Signal::Waiting), "engine_ttft", ttft),
    ("kv_usage", |step| step.get(Signal::KvUsage), "waiting", |step| step.get(Signal::Waiting)),
    ("running", |step| step.get(Signal::Running), "engine_inter_token", gap),
    ("preemptions", |step| step.get(Signal::Preemptions), "engine_inter_token", gap),
];

/// The measures of a replica that are far from what is usual.
pub(super) fn anomalies<'a>(
    backend: &'a str,
    case: &'a Case<'_>,
) -> impl Iterator<Item = Anomaly> + 'a {
    MEASURES.iter().filter_map(move |row| {
        let (value, usual) = (case.fast().get(row.measure)?, case.usual(row.measure)?);
        let (z, median) = (usual.z(value), usual.median);
        let is_far = z.abs() >= FAR && (value >= TIMES * median || value * TIMES <= median);
        is_far.then(|| Anomaly {
            backend: backend.to_owned(),
            measure: row.name.into(),
            value,
            unit: row.unit.into(),
            usual: median,
            z,
        })
    })
}

/// The pairs of a replica that moved together.
pub(super) fn pairs<'a>(backend: &'a str, window: Window<'a>) -> impl Iterator<Item = Pair> + 'a {
    PAIRS.iter().filter_map(move |(first, one, second, other)| {
        let moments = window.pairs(*one, *other);
        let correlation = rank_correlation(&moments, LEAST)?;
        (correlation.abs() >= STRONG).then(|| Pair {
            backend: backend.to_owned(),
            first: (*first).into(),
            second: (*second).into(),
            correlation,
            moments: moments.len(),
        })
    })
}

fn ttft(step: &Step) -> Option<f64> {
    mean(step, Signal::FirstTokenSeconds, Signal::FirstTokens)
}

fn gap(step: &Step) -> Option<f64> {
    mean(step, Signal::GapSeconds, Signal::Gaps)
}

fn mean(step: &Step, sum: Signal, count: Signal) -> Option<f64> {
    let count = step.get(count).filter(|count| *count >= 1.0)?;
    Some(step.get(sum)? / count)
}
