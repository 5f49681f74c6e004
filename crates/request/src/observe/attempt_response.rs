//! The response of one attempt while it passes the gateway: its observer, its backend, and its entry among the
//! open streams.

use super::observer::ResponseObserver;
use super::open_streams::{BackendMonitor, StreamEntry};
use crate::record::{Outcome, RequestRecord, Stall, Termination};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_protocol::openai::{EngineError, FinishReason};

/// The response of one attempt. A failover discards it.
#[derive(Default)]
pub(super) struct AttemptResponse {
    /// The backend of the attempt. `None`: the request has not been sent, or the attempt was
    /// discarded.
    pub backend: Option<Arc<dyn BackendMonitor>>,
    /// The observer of the response. `None`: the response head has not arrived.
    pub observer: Option<ResponseObserver>,
    /// The entry among the open streams. `None`: the response is neither an event stream nor a WebSocket.
    pub entry: Option<StreamEntry>,
    /// When the last frame was handed to the client's connection. `None`: no frame was handed over, or the
    /// connection has asked for more data since.
    pub written_at: Option<Instant>,
    /// When the oldest bytes were read that are not yet written to the client's connection. `None`: all bytes
    /// are written, the response is no event stream, or the client delays the write.
    pub unwritten_since: Option<Instant>,
    /// Whether the regular end of the body has been processed.
    body_ended: bool,
    /// Whether the bytes of the response pass the stages of the exchange.
    pub is_staged: bool,
}

/// Minimum duration of a recorded write stall. A fast client has shorter pauses between taking a frame and
/// asking for the next.
const MIN_WRITE_STALL: Duration = Duration::from_millis(1);
/// Maximum number of stalls that are recorded per stream.
const MAX_RECORDED_STALLS: usize = 16;

impl AttemptResponse {
    /// The topic of the error that the engine reported. `None`: unknown, or no error.
    pub(super) fn engine_error(&self) -> Option<EngineError> {
        self.observer.as_ref()?.observed().error.as_ref()?.about
    }

    /// Number of events with output that the response has had so far.
    pub(super) fn output_events(&self) -> u64 {
        self.observer
            .as_ref()
            .map_or(0, |observer| observer.observed().output_events)
    }

    /// Records that the body ended regularly by HTTP framing, for example with its last chunk or
    /// after its declared length. Repeated calls have no effect.
    pub(super) fn on_end(&mut self, record: &mut RequestRecord, now: impl FnOnce() -> Instant) {
        if let Some(observer) = &mut self.observer
            && !std::mem::replace(&mut self.body_ended, true)
        {
            observer.on_end(now(), &mut record.timings);
        }
    }

    /// Completes the record with the observed response and determines the outcome.
    pub(super) fn finalize_record(
        &mut self,
        record: &mut RequestRecord,
        termination: Termination,
        now: Instant,
    ) {
        let backend = self.backend.take();
        if let Some(backend) = &backend {
            record.condition = backend.condition(now);
        }
        let Some(observer) = &mut self.observer else {
            return;
        };
        if let Some(written_at) = self.written_at.take() {
            record_write_stall(observer, written_at, now);
        }
        if let Some(entry) = self.entry.take() {
            record_stall(observer, entry.on_end(now));
        }
        // Taken last, because the observer is large and each move copies it.
        if let Some(observed) = self.observer.take().map(ResponseObserver::into_observed) {
            record.observed = observed.into();
        }
        record.end = termination;
        record.outcome = outcome(record);
        if let Some(backend) = backend {
            record
                .observed
                .scale_estimated_tokens(backend.tokens_per_event());
            backend.on_answer(record.api, &record.observed);
            if let (Some(sent), timings) = (record.timings.sent, &record.timings) {
                let until = timings.first_output.unwrap_or(now);
                record.wait_reports = backend.wait_reports(sent, until);
            }
        }
    }
}

/// Records a write stall from `since` to `until` if it is at least [`MIN_WRITE_STALL`] long.
pub(super) fn record_write_stall(observer: &mut ResponseObserver, since: Instant, until: Instant) {
    if until.saturating_duration_since(since) >= MIN_WRITE_STALL {
        observer.on_write_stall(since, until);
    }
}

/// Adds a stall to the observations, up to [`MAX_RECORDED_STALLS`].
pub(super) fn record_stall(observer: &mut ResponseObserver, stall: Option<Stall>) {
    let Some(stall) = stall else { return };
    let stalls = &mut observer.observed_mut().stalls;
    if stalls.len() < MAX_RECORDED_STALLS {
        stalls.push(stall);
    }
}

/// Determines the outcome of a request whose response has ended.
fn outcome(record: &RequestRecord) -> Outcome {
    let observed = &*record.observed;
    let finish_reasons = &observed.finish_reasons;
    let is_complete = observed.is_complete;
    match (record.status, record.end) {
        (Some(400..=499), _) => Outcome::ClientError,
        // A redirect is no answer of an engine.
        (Some(300..=303 | 305..=399 | 500..), _) => Outcome::UpstreamError,
        // Clients disconnect on an error event without waiting for the end of the body.
        _ if observed.error.is_some() => Outcome::StreamError,
        (_, Termination::IdleTimeout | Termination::TotalTimeout) => Outcome::Timeout,
        (_, Termination::UpstreamReset) => Outcome::Truncated,
        (_, Termination::KeyRevoked) => Outcome::Cancelled,
        (_, Termination::Complete) if !is_complete => Outcome::Truncated,
        // The response ended without an answer, so the client's disconnect does not matter.
        _ if !is_complete && record.timings.terminal.is_some() => Outcome::Truncated,
        (_, Termination::ClientDisconnected | Termination::WriteTimeout) if !is_complete => {
            Outcome::Cancelled
        }
        (status, Termination::Shutdown) if !is_complete || status == Some(101) => Outcome::Shutdown,
        _ if finish_reasons.contains(&Some(FinishReason::Abort)) => Outcome::Aborted,
        // Many clients disconnect after the last event without reading the end of the body.
        _ => Outcome::Ok,
    }
}
