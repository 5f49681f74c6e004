//! The record of one request. Metrics, spans, logs and the routing estimates read it when the request has
//! ended. Methods derive figures from it, so that all sinks report the same values.

mod answer;
mod labels;
mod notes;
mod phases;
mod sample_reason;
mod slow_cause;
mod span_ids;
mod timings;

mod request;
mod routing;

mod response;

mod request_record;
mod token_counts;

mod analysis;
#[cfg(any(test, feature = "testing"))]
#[path = "tests/fixtures.rs"]
pub mod fixtures;

pub use analysis::{ResponseEnd, ToolAnswer, WastedTokens};
pub use answer::Answer;
pub use labels::ModelLabel;
pub use notes::{LogPlace, NoteAttribute, NoteEvent, NoteValue, RecordNote, RecordNotes};
pub use phases::{FinishedPhases, PhaseDuration, RequestPhase, RequestPhases};
pub use request::{
    ClientIdentity, RequestHeadAttributes, RequestIdentity, RequestOptions, ShortName,
    TextConsumer, TextConsumers, Tier, TierResolver,
};
pub use request_record::RequestRecord;
pub use response::{
    ChunkGap, ChunkTimings, ObservedResponse, Outcome, RecordedObservations, ResponseBuckets,
    Termination, TerminationInitiator, TerminationReason, UninspectedReason, UsageEventOutcome,
    UsageLayout, UsageSource,
};
pub use routing::{
    Attempt, BY_PROXY, BackendCondition, EngineQueues, ErrorSource, FailoverDenialReason,
    PredictedCandidate, RoutingDecision, Stall, WaitReports,
};
pub use sample_reason::SampleReason;
pub use slow_cause::{SlowCause, SlowLimits};
pub use span_ids::SpanIds;
pub use timings::Timings;
