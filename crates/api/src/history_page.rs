//! The document of `GET /history`: the latencies of the last hour, and the events of the last days.

use serde::Deserialize;
use tokenweir_diagnose::VerdictSeverity;
use tokenweir_protocol::named_enum;

document! {
    /// The document of `GET /history`.
    pub struct HistoryPage {
        /// The latencies of the last hour.
        heat_map: HeatMap,
        /// The events of the last days, the oldest first.
        marks: Vec<Mark>,
    }

    /// The latencies of the last hour, counted for each minute and each bucket. A table has one list per
    /// minute, the oldest first; the last minute is not complete. A list has one number per bucket.
    pub struct HeatMap {
        /// Length of a minute of the table, in seconds.
        interval_seconds: f64,
        /// The upper bounds of all buckets but the last one, in seconds.
        bounds: Vec<f64>,
        /// Numbers of streams by TTFT.
        ttft: Vec<Vec<u32>>,
        /// Numbers of gaps between outputs of streams, by length.
        itl: Vec<Vec<u32>>,
    }

    /// An event at one moment, or a state that lasted for some time.
    #[derive(Eq)]
    pub struct Mark {
        /// Time of the event or start of the state, in seconds since 1970.
        began: u64,
        /// End of the state in seconds since 1970; `began` for an event. `None`: the state has not ended, or the
        /// gateway stopped before its end.
        ended: Option<u64>,
        /// Whether the state still holds.
        holds: bool,
        /// The kind of the event or state.
        kind: MarkKind,
        /// The name of the backend. Empty: the mark is about the gateway or all backends.
        backend: String,
        /// The name of the verdict, the versions of the engine, the result of the reload, or the version of the gateway.
        name: String,
        /// The severity of a verdict. `None`: the mark is not a verdict.
        severity: Option<VerdictSeverity>,
        /// The cause or the meaning of a verdict, who drained the backend and why, or why the reload failed.
        reason: String,
    }
}

named_enum! {
    /// The kind of event or state that a mark shows.
    #[derive(Default, PartialOrd, Ord, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum MarkKind {
        /// A verdict was active.
        Verdict = "verdict",
        /// A backend was drained by an operator or by the configuration.
        Drain = "drain",
        /// The engine of a backend has another version.
        Deploy = "deploy",
        /// A reload of the configuration succeeded or failed.
        Reload = "reload",
        /// The process of the gateway started.
        #[default]
        Start = "start",
    }
}

impl Mark {
    /// Whether two marks differ only in their times, so that they are about the same event.
    pub fn is_same(&self, other: &Self) -> bool {
        self.kind == other.kind && self.backend == other.backend && self.name == other.name
    }
}
