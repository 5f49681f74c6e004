//! The trait by which an exchange reports to its backend and reads the values of the backend.

use crate::record::{BackendCondition, ObservedResponse, WaitReports};
use bytes::Bytes;
use std::time::{Duration, Instant};
use tokenweir_protocol::openai::Api;

/// The backend of an exchange. Exchanges report events to their backend and read its values. The default
/// methods ignore the events and return empty values.
pub trait BackendMonitor: Send + Sync + 'static {
    /// The load and state that the backend last reported.
    fn condition(&self, _now: Instant) -> BackendCondition {
        BackendCondition::default()
    }
    /// Returns facts about the wait of a request, from the scraped load of the backend and its recent outputs.
    /// The wait begins when the request was sent. It ends with the first output, or with the end of a request
    /// without output.
    fn wait_reports(&self, _from: Instant, _until: Instant) -> WaitReports {
        WaitReports::default()
    }
    /// Records the time between two outputs of a stream, and the time of the second one.
    fn on_gap(&self, _gap: Duration, _now: Instant) {}
    /// The p99 of the recent output gaps of the backend, in seconds. `None`: there are too few samples.
    fn usual_gap(&self) -> Option<f64> {
        None
    }
    /// Whether the health checker has declared the backend down, so that its requests go elsewhere.
    fn is_declared_down(&self) -> bool {
        false
    }
    /// Records that a stream of the backend stalled (`true`), or that a stall ended (`false`).
    fn on_stall(&self, _is_stalled: bool) {}
    /// Records the first output of a response, which ends the prefill of its prompt.
    fn on_first_output(&self, _now: Instant) {}
    /// Mean tokens per output event of the streams of the backend, computed from exact counts. 1.0
    /// until an exact count has arrived.
    fn tokens_per_event(&self) -> f64 {
        1.0
    }
    /// The member `system_fingerprint` in the usage events of the backend. Empty: the events lack it. `None`:
    /// not known.
    fn fingerprint(&self) -> Option<Bytes> {
        None
    }
    /// Records the observations of a response of `api` that has ended.
    fn on_answer(&self, _api: Option<Api>, _observed: &ObservedResponse) {}
}
