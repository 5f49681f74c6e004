//! What is the matter with the replicas: conditions, each named with its evidence, from what their
//! metrics say and from what passed through here.
//!
//! ```text
//! tally    counts what ends at each replica                    ┐
//! sample   one moment: its page, and what was counted since    ├─► history: the last minutes in
//! step     what a moment adds to the one before                ┘   full, the hour by the minute
//! measure  one table of numbers of a window ─► rules: one table of conditions ─► steady ─► verdict
//! anomaly  the same numbers, against the hour before
//! ```
//!
//! A rule names a condition when somebody is harmed by it, never because something is hot. What
//! cannot be known is said to be so. Time is an argument everywhere.

mod anomaly;
mod board;
mod case;
mod history;
mod measure;
mod rules;
mod sample;
mod statistics;
mod steady;
mod step;
mod tally;
mod verdict;
mod watch;

pub use anomaly::{Anomaly, Pair};
pub use board::Board;
pub use case::SLOW_START;
pub use history::History;
pub use rules::{RULES, Rule, safe_max_num_seqs};
pub use sample::{Counts, Sample, Seen};
pub use tally::Tallies;
pub use verdict::{CannotTell, Confidence, Diagnosis, Evidence, Severity, Verdict, Watched};
pub use watch::Watch;

use std::time::Duration;

/// Time between two looks.
pub const EVERY: Duration = Duration::from_secs(5);
/// The window in which a condition must show.
pub const FAST: Duration = Duration::from_mins(1);
/// The window over which lengths and pairs are measured.
pub const MAIN: Duration = Duration::from_mins(5);
