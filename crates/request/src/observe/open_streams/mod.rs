//! The exchanges and response streams that are open: their activity, stalls and aborts.

mod abort_registry;
mod backend_monitor;
mod exchange_registry;
mod loss;
mod open_requests;
mod open_table;
mod stream_activity;
mod stream_policy;
mod stream_snapshot;
#[cfg(test)]
mod tests;

pub use abort_registry::{AbortRegistry, RegisteredAbortHandle, ResponseAbortHandle};
pub use backend_monitor::BackendMonitor;
pub use exchange_registry::{ExchangeRegistry, ObservationSettings, StallLimits};
pub(super) use exchange_registry::{InFlightGuard, StreamEntry};
pub(super) use loss::Loss;
pub use stream_policy::{OnTruncation, StreamPolicy, StreamRules};
pub use stream_snapshot::{OpenStream, OpenStreamsSnapshot, StreamInfo, StreamPhase};
