//! Figures of a record that need several of its parts: the phases of the time, what the first output
//! waited for, and the cause of slowness.

mod phases;

mod first_output_wait;

mod slowness;

pub use phases::{PhaseDuration, RequestPhase, RequestPhases};
