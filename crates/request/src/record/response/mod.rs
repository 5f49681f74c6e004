//! The observations of the response, and how it ended.

mod chunk_timings;
mod outcome;

mod observed_response;

pub use chunk_timings::{ChunkGap, ChunkTimings};
pub use observed_response::{ObservedResponse, RecordedObservations, ResponseBuckets};
pub use outcome::{
    Outcome, Termination, TerminationInitiator, TerminationReason, UninspectedReason,
    UsageEventOutcome, UsageLayout, UsageSource,
};
