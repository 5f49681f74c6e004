//! Diagnosis of backends under load. Rules derive named conditions, each with its evidence, from
//! the metrics of the engines and from the requests of the gateway.
//!
//! ```text
//! request_counters  counts the requests of each backend              ┐
//! sample            one observation: a metrics page and these counts ├─► history: the last five
//! step              the difference of two samples                    ┘   minutes in full, the last
//!                                                                        hour by the minute
//! measure  a table of values of a window ─► rules: a table of conditions ─► debounce ─► verdict
//! anomaly  the same values, compared with the last hour
//! ```
//! A rule requires harm to clients, not only high utilisation. A rule whose data is missing is
//! reported as undetermined. Time is always an argument, so no module reads a clock.

mod anomaly;
mod debounce;
mod diagnoser;
mod evaluation;
mod history;
mod latest_diagnosis;
mod measure;
mod request_counters;
mod rules;
mod sample;
mod statistics;
mod step;
mod verdict;

pub use anomaly::{Anomaly, CorrelatedPair};
pub use diagnoser::Diagnoser;
pub use evaluation::SLOW_START;
pub use history::BackendHistory;
pub use latest_diagnosis::LatestDiagnosis;
pub use request_counters::BackendRequestCounters;
pub use rules::{DiagnosisRule, RULES, safe_max_num_seqs};
pub use sample::{BackendRequestCounts, DiagnosisSample, GatewayObservations};
pub use verdict::{
    Confidence, DiagnosedBackend, Diagnosis, Evidence, UndeterminedRule, Verdict, VerdictSeverity,
};

use std::time::Duration;

/// Interval between two samples.
pub const EVERY: Duration = Duration::from_secs(5);
/// The window in which a condition must hold.
pub const FAST: Duration = Duration::from_mins(1);
/// The window for lengths of sequences and for correlated pairs.
pub const LONG_WINDOW: Duration = Duration::from_mins(5);
