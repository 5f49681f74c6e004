//! Observation of responses while the gateway forwards them, without changing their content.
//!
//! [`ResponseObserver`] is a state machine without I/O that turns response bytes and instants into milestones
//! and counts. [`Exchange`] owns the record of one request and reports it once to the sinks. `stages.rs` lists
//! the stages that a response passes. [`ObservedBody`] forwards the frames of a response body and passes each
//! of them to its exchange. [`ExchangeRegistry`] lists the open streams, so that stalls are detected while they
//! last.

mod choice_timer;
mod inspection;
mod open_streams;
mod usage_filters;

mod sink;
mod stages;
mod stream_end;

mod observer;

mod attempt_response;

mod exchange;

mod continuation;

mod replacement;

mod observed_body;

pub use exchange::{AttemptAside, Exchange};
pub use observed_body::{ObservedBody, PrefetchedBody};
pub use observer::ResponseObserver;
pub use open_streams::{
    AbortRegistry, BackendMonitor, ExchangeRegistry, ObservationSettings, OnTruncation, OpenStream,
    OpenStreamsSnapshot, RegisteredAbortHandle, ResponseAbortHandle, StallLimits, StreamInfo,
    StreamPhase, StreamPolicy, StreamRules,
};
pub use replacement::{Continue, Interrupted};
pub use sink::{Admission, AdmissionPermit, RecordReceiver, Sink};
pub use stages::KEEP_ALIVE_COMMENT;
pub use stream_end::ObservedBodyError;
