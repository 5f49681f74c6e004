//! The methods of [`Exchange`] that continue its stream at another backend.

use super::attempt_response::record_stall;
use super::exchange::{Exchange, ExchangeState};
use super::open_streams::{BackendMonitor, StreamInfo, StreamPolicy};
use super::stream_end::{Ending, LeaveReason, ObservedBodyError};
use crate::continuation::{
    Continuation, ContinuationRefusal, Continuations, InterruptionCause, StreamSplicer,
};
use crate::record::Termination;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Instant;
use tokenweir_protocol::clock;

impl Exchange {
    /// Sets the splicer, which keeps the data for a continuation of the stream.
    pub fn splice_streams(&mut self, splicer: StreamSplicer) {
        self.inner.stages.splicer = Some(Box::new(splicer));
    }

    /// Whether the bytes of the stream pass through the splicer, so that another backend can continue it.
    pub fn is_spliced(&self) -> bool {
        self.inner.response.is_staged
    }

    /// Whether a continuation needs the body of the request. `false`: the stream cannot be continued, for
    /// example because its body does not fit into memory.
    pub fn needs_body(&self) -> bool {
        self.splicer()
            .is_ok_and(|splicer| splicer.refusal().is_none())
    }

    /// The splicer of the stream. Fails if the stream cannot be continued.
    pub fn splicer(&self) -> Result<&StreamSplicer, ContinuationRefusal> {
        self.inner
            .stages
            .splicer
            .as_deref()
            .ok_or(ContinuationRefusal::Api)
    }

    /// Records that the stream continues at `backend`, whose attempt is the last one of the record.
    /// `interrupted`: time of the interruption.
    pub fn continue_at(
        &mut self,
        backend: Arc<dyn BackendMonitor>,
        cause: InterruptionCause,
        interrupted: Instant,
    ) {
        let ExchangeState { record, stages, .. } = &mut *self.inner;
        let Some(splicer) = &mut stages.splicer else {
            return;
        };
        splicer.switch();
        let span_id = record.attempts.last().map_or(0, |attempt| attempt.span_id);
        let tokens = splicer.tokens() as u64;
        let begun = Continuation {
            span_id,
            cause,
            tokens,
            interrupted,
            next_output: None,
        };
        record.notes.update(|continuations: &mut Continuations| {
            continuations.begun.push(begun);
            continuations.refusal = None;
        });
        stages.awaits_output = true;
        self.switch_backend(backend);
    }

    /// Makes `backend` the sender of the rest of the stream.
    fn switch_backend(&mut self, backend: Arc<dyn BackendMonitor>) {
        let now = clock::now();
        let ExchangeState {
            record,
            response,
            policy,
            in_flight,
            ..
        } = &mut *self.inner;
        if let Some(backend) = &response.backend {
            record.condition = backend.condition(now);
        }
        if let (Some(entry), Some(observer)) = (response.entry.take(), &mut response.observer) {
            record_stall(observer, entry.on_end(now));
        }
        let policy = StreamPolicy {
            first_output_by: None,
            ..*policy
        };
        let info = StreamInfo::from_record(record);
        let entry = in_flight.stream(backend.clone(), info, policy, None, now);
        // The silence of the backend begins with the arrival of its response head.
        entry.on_output(now, None);
        entry.set_movable();
        response.entry = Some(entry);
        response.backend = Some(backend);
    }

    /// Schedules another attempt to move the stream after a pause, because no backend has capacity now.
    pub fn move_later(&self) {
        if let Some(entry) = &self.inner.response.entry {
            entry.move_later(clock::now());
        }
    }

    /// Completes the stream if only its usage or its end is missing. Returns whether it is complete.
    pub fn complete_stream(&mut self) -> bool {
        let ExchangeState { record, stages, .. } = &mut *self.inner;
        let reports_usage = record.options.usage_requested || record.options.usage_injected;
        match &mut stages.splicer {
            Some(splicer) => splicer.complete(reports_usage),
            None => false,
        }
    }

    /// Records why the stream is not continued after its present interruption. `is_final`: the reason applies
    /// to later interruptions too.
    pub fn refuse_continuation(&mut self, reason: ContinuationRefusal, is_final: bool) {
        let ExchangeState { record, stages, .. } = &mut *self.inner;
        record
            .notes
            .update(|Continuations { refusal, .. }| *refusal = Some(reason));
        if is_final && let Some(splicer) = &mut stages.splicer {
            splicer.refuse(reason);
        }
    }

    /// Whether another backend has continued the stream.
    pub(super) fn is_continued(&self) -> bool {
        !Continuations::of(&self.inner.record).begun.is_empty()
    }

    /// The splicer of a stream that another backend can continue.
    fn open_splicer(&self) -> Option<&StreamSplicer> {
        let splicer = self.splicer().ok()?;
        let is_open = self.inner.response.is_staged && !splicer.is_done();
        is_open.then_some(splicer)
    }

    /// Why the stream needs another backend, according to its events.
    pub(super) fn cause_of_events(&self) -> Option<InterruptionCause> {
        self.open_splicer()?.interruption()
    }

    /// Why the stream needs another backend instead of ending in this way.
    pub(super) fn cause_of_end<E>(&self, ending: &Ending<E>) -> Option<InterruptionCause> {
        let splicer = self.open_splicer()?;
        match ending {
            Ok(()) | Err(ObservedBodyError::Backend(_)) => {
                splicer.interruption().or(Some(InterruptionCause::Died))
            }
            Err(ObservedBodyError::Aborted(Termination::IdleTimeout)) => {
                Some(InterruptionCause::Stalled)
            }
            Err(ObservedBodyError::Lost) => Some(InterruptionCause::BackendDown),
            Err(_) => None,
        }
    }

    /// Why the stream needs another backend if it leaves its own for this reason.
    pub(super) fn cause_of_leave(&self, leave: LeaveReason) -> Option<InterruptionCause> {
        self.open_splicer()?;
        Some(match leave {
            LeaveReason::Removed => InterruptionCause::Migrated,
            LeaveReason::Down => InterruptionCause::BackendDown,
        })
    }

    /// The events that were held back until the decision about a continuation.
    pub(super) fn release_events(&mut self) -> Bytes {
        let Some(splicer) = &mut self.inner.stages.splicer else {
            return Bytes::new();
        };
        let held = splicer.release();
        self.observe(held, clock::now())
    }
}
