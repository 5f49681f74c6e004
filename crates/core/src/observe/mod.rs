//! Observation of responses while the gateway forwards them, without changing their content.
//!
//! [`ResponseObserver`] is a state machine without I/O: it turns response bytes and instants into
//! milestones and counts. [`Exchange`] owns the record of one request and reports it once to the
//! sinks. [`ObservedBody`] forwards the frames of a response body and passes each of them to its
//! exchange. [`ExchangeRegistry`] lists the streams that are open, so that stalls are detected while they last.

mod abort_registry;
mod attempt_response;
mod choice_timer;
mod continuous_usage_filter;
mod exchange;
mod exchange_registry;
mod observed_body;
mod observer;
mod outcome;
mod record_slot;
mod sink;
mod stream_activity;
mod stream_policy;
mod stream_snapshot;
mod usage_event_filter;
mod usage_member;

pub use abort_registry::{AbortRegistry, RegisteredAbortHandle, ResponseAbortHandle};
pub use exchange::Exchange;
pub use exchange_registry::{BackendMonitor, ExchangeRegistry, ObservationSettings, StallLimits};
pub use observed_body::{ObservedBody, ObservedBodyError, PrefetchedBody};
pub use observer::ResponseObserver;
pub use sink::{RecordReceiver, Sink};
pub use stream_policy::{OnTruncation, StreamPolicy, StreamRules};
pub use stream_snapshot::{OpenStream, OpenStreamsSnapshot, StreamInfo, StreamPhase};
