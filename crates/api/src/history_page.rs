//! The document of `GET /history`: the latencies of the last hour, and what happened in the last days.

use serde::{Deserialize, Serialize};
use tokenweir_diagnose::VerdictSeverity;
use tokenweir_protocol::named_enum;

/// The document of `GET /history`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HistoryPage {
    /// The latencies of the last hour.
    pub heat_map: HeatMap,
    /// What happened, the oldest mark first.
    pub marks: Vec<Mark>,
}

/// The numbers of latencies of the last hour by minute and by length. Each list has one list for each minute,
/// the oldest first; the last minute is not complete. It has a number for each bucket.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeatMap {
    /// Length of an interval in seconds.
    pub interval_seconds: f64,
    /// The upper bounds of all buckets but the last one, in seconds.
    pub bounds: Vec<f64>,
    /// Numbers of streams by TTFT.
    pub ttft: Vec<Vec<u32>>,
    /// Numbers of gaps between the outputs of streams, by length.
    pub itl: Vec<Vec<u32>>,
}

/// Something that happened at a moment or for some time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mark {
    /// When it began, in seconds since 1970.
    pub began: u64,
    /// When it ended, in seconds since 1970; for a moment, when it began. `None`: it has not ended, or the end is
    /// not known because the gateway stopped before.
    pub ended: Option<u64>,
    /// Whether it holds now.
    pub holds: bool,
    /// What it is.
    pub kind: MarkKind,
    /// The backend. Empty: it concerns the gateway or all backends.
    pub backend: String,
    /// The name of the verdict, the versions of the engine, the result of the reload, or the version of the gateway.
    pub name: String,
    /// The severity of a verdict. `None`: it is no verdict.
    pub severity: Option<VerdictSeverity>,
    /// The cause or the meaning of a verdict, who drained the backend and why, or why the reload failed.
    pub reason: String,
}

named_enum! {
    /// What a mark is.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum MarkKind {
        /// A verdict held.
        Verdict = "verdict",
        /// A backend was drained.
        Drain = "drain",
        /// The engine of a backend has another version.
        Deploy = "deploy",
        /// The configuration was reloaded.
        Reload = "reload",
        /// The gateway started.
        #[default]
        Start = "start",
    }
}

impl Mark {
    /// Whether another mark is about the same thing, whatever their times.
    pub fn is_same(&self, other: &Self) -> bool {
        self.kind == other.kind && self.backend == other.backend && self.name == other.name
    }
}
