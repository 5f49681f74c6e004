//! One exchange, from the head of the request to the last byte of the response.
//!
//! An exchange ends with its response ([`Exchange::end`]), with an answer of the gateway itself
//! ([`Exchange::refuse`]), or when it is dropped. hyper drops the exchange when the client disconnects.

mod response;

use super::attempt_response::AttemptResponse;
use super::observer::ResponseObserver;
use super::open_streams::{
    BackendMonitor, ExchangeRegistry, InFlightGuard, Loss, OnTruncation, ResponseAbortHandle,
    StreamPolicy,
};
use super::sink::{Admission, AdmissionPermit, RecordReceiver};
use super::stages::{self, KEEP_ALIVE_COMMENT, ResponseStages};
use super::stream_end::{Cut, LeaveReason, ObservedBodyError};
use crate::record::{Outcome, RequestRecord, SlowCause, Termination, Timings};
use bytes::Bytes;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::task::Waker;
use tokenweir_protocol::atomic::AtomicCount;
use tokenweir_protocol::clock;
use tokenweir_protocol::openai::Api;

/// The owner of the record of one request. When the exchange is dropped, it completes the record and passes it
/// to the sinks.
pub struct Exchange {
    pub(super) inner: Box<ExchangeState>,
}

pub(super) struct ExchangeState {
    pub record: RecordSlot,
    pub response: AttemptResponse,
    pub stages: ResponseStages,
    pub policy: StreamPolicy,
    receiver: Arc<dyn RecordReceiver>,
    pub in_flight: InFlightGuard,
    /// The permits of the admission gate and of other options, held until the end.
    permits: Vec<Box<dyn AdmissionPermit>>,
    /// Aborts the response if the client does not read it. `None`: no write timeout.
    abort: Option<ResponseAbortHandle>,
    /// Number of request bytes so far, of a body that the gateway forwards unread. `None`: the gateway received
    /// the whole body first.
    forwarded_bytes: Option<Arc<AtomicCount>>,
}

/// Holds the record of an exchange. The record leaves the slot when the exchange ends.
pub(super) struct RecordSlot(Option<Box<RequestRecord>>);

/// The response of an attempt that is set aside while the request is sent to another backend.
pub struct AttemptAside {
    response: AttemptResponse,
    status: Option<u16>,
    bytes_out: u64,
    timings: Timings,
    /// Id of the attempt's span. `None`: no attempt.
    span_id: Option<u64>,
}

impl Exchange {
    /// Starts an exchange with the record of a request and registers it in `registry`. The outcome
    /// of `record` should be [`Outcome::Cancelled`], because a dropped exchange means that the
    /// client disconnected.
    pub fn open(
        record: impl Into<Box<RequestRecord>>,
        receiver: Arc<dyn RecordReceiver>,
        registry: &Arc<ExchangeRegistry>,
    ) -> Self {
        let record = record.into();
        let in_flight = registry.enter(record.timings.accepted);
        let rules = in_flight.settings.streams;
        // The state is created in place, because `Box::new` would copy its more than 2 KiB.
        let inner = Box::write(
            Box::new_uninit(),
            ExchangeState {
                record: RecordSlot(Some(record)),
                response: AttemptResponse::default(),
                stages: ResponseStages::default(),
                policy: StreamPolicy {
                    rules,
                    ..StreamPolicy::default()
                },
                receiver,
                in_flight,
                permits: Vec::new(),
                abort: None,
                forwarded_bytes: None,
            },
        );
        Self { inner }
    }

    /// Sets the handle that aborts the response if its client does not read it.
    #[must_use]
    pub fn with_abort_handle(mut self, abort: ResponseAbortHandle) -> Self {
        self.inner.abort = Some(abort);
        self
    }

    /// Counts the bytes of a request body that is forwarded unread. The caller adds the length of each
    /// chunk to the returned number.
    pub fn count_forwarded_bytes(&mut self) -> Arc<AtomicCount> {
        self.inner.forwarded_bytes.insert(Arc::default()).clone()
    }

    /// Records how the request was admitted, and keeps its permit until the exchange ends.
    pub fn admit(&mut self, admission: Admission) {
        self.inner.record.admission = Some(admission.reason);
        self.inner.permits.extend(admission.permit);
    }

    /// Keeps a permit until the exchange ends.
    pub fn keep(&mut self, permit: Box<dyn AdmissionPermit>) {
        self.inner.permits.push(permit);
    }

    /// The record of the request, to read or change.
    pub fn record(&mut self) -> &mut RequestRecord {
        &mut self.inner.record
    }

    /// The policy of the response stream: timeouts, keep-alive comments, handling of truncation.
    pub fn policy(&mut self) -> &mut StreamPolicy {
        &mut self.inner.policy
    }

    /// The observer of the response. `None`: the response head has not arrived.
    pub fn observer(&self) -> Option<&ResponseObserver> {
        self.inner.response.observer.as_ref()
    }

    /// Whether the first output of the response has arrived, or the response is complete.
    pub fn has_output_or_ended(&self) -> bool {
        let has_output = self.inner.record.timings.first_output.is_some();
        has_output && self.observer().is_none_or(ResponseObserver::is_answered)
            || self.observer().is_some_and(|observer| {
                observer.observed().is_complete || observer.has_opaque_answer()
            })
    }

    /// Counts a response without an answer as complete, because the request asked for nothing.
    pub fn accept_empty_answer(&mut self) {
        if let Some(observer) = &mut self.inner.response.observer {
            observer.accept_empty_answer();
        }
    }

    /// Whether the forwarded body can be longer or shorter than the backend declared.
    pub fn may_change_length(&self) -> bool {
        let rules = &self.inner.policy.rules;
        let may_add_bytes =
            rules.keep_alive.is_some() || rules.on_truncation == OnTruncation::ErrorEvent;
        // Only event streams and WebSockets have an entry among the open streams.
        self.may_shorten_frames() || (may_add_bytes && self.inner.response.entry.is_some())
    }

    /// Stores the backend, to which the exchange reports gaps, stalls and the first output.
    pub fn on_request_sent(&mut self, backend: Arc<dyn BackendMonitor>) {
        self.inner.response.backend = Some(backend);
    }

    /// Discards the response of the current attempt before a failover. `reason` is the failure of
    /// the attempt, from a closed set.
    pub fn discard_attempt(&mut self, reason: &'static str) {
        let ExchangeState {
            record,
            response,
            abort,
            ..
        } = &mut *self.inner;
        let error = response.engine_error();
        let AttemptResponse { backend, .. } = std::mem::take(response);
        // The bytes of the discarded response were not sent to the client, so the write timeout
        // must not run.
        if let Some(abort) = abort {
            abort.on_drained();
        }
        if let Some(backend) = backend {
            record.condition = backend.condition(clock::now());
        }
        record.status = None;
        record.bytes_out = 0;
        record.timings = record.timings.without_response();
        if let Some(attempt) = record.attempts.last_mut() {
            attempt.ended.get_or_insert_with(clock::now);
            attempt.failure = Some(reason);
            attempt.engine_error = error;
        }
    }

    /// Discards the response of the current attempt, as [`Self::discard_attempt`] does, and returns it
    /// for [`Self::restore_attempt`].
    pub fn set_attempt_aside(&mut self, reason: &'static str) -> AttemptAside {
        let ExchangeState {
            record, response, ..
        } = &mut *self.inner;
        let backend = response.backend.take();
        let aside = AttemptAside {
            response: std::mem::take(response),
            status: record.status,
            bytes_out: record.bytes_out,
            timings: record.timings,
            span_id: record.attempts.last().map(|attempt| attempt.span_id),
        };
        response.backend = backend;
        self.discard_attempt(reason);
        if let Some(attempt) = self.inner.record.attempts.last_mut() {
            attempt.engine_error = aside.response.engine_error();
        }
        aside
    }

    /// Makes a response that was set aside the current response of the exchange. Its attempt becomes the last
    /// one of the record.
    pub fn restore_attempt(&mut self, aside: AttemptAside) {
        let ExchangeState {
            record, response, ..
        } = &mut *self.inner;
        let now = clock::now();
        let attempts = &mut record.attempts;
        if let Some(attempt) = attempts.last_mut() {
            attempt.ended.get_or_insert(now);
        }
        if let Some(index) = attempts
            .iter()
            .position(|attempt| Some(attempt.span_id) == aside.span_id)
        {
            attempts[index..].rotate_left(1);
        }
        *response = aside.response;
        record.status = aside.status;
        record.bytes_out = aside.bytes_out;
        record.timings = aside.timings;
    }

    /// Records that the body ended regularly by HTTP framing, for example with its last chunk or
    /// after its declared length.
    pub fn on_end(&mut self) {
        let ExchangeState {
            record, response, ..
        } = &mut *self.inner;
        response.on_end(record, clock::now);
    }

    /// The keep-alive comment to send now. `None`: none is due, or the stream is inside an event.
    pub(super) fn take_keep_alive_comment(&self) -> Option<Bytes> {
        let activity = self.inner.response.entry.as_ref()?;
        let is_due = self.is_between_events() && activity.take_keep_alive(clock::now());
        is_due.then_some(KEEP_ALIVE_COMMENT)
    }

    /// The error event that reports a truncated stream to the client. Empty:
    /// [`OnTruncation::ErrorEvent`] is not configured, or the stream is inside an event.
    fn error_event(&self, termination: Termination) -> Bytes {
        let is_sent = self.inner.policy.rules.on_truncation == OnTruncation::ErrorEvent;
        if termination == Termination::Complete || !is_sent || !self.is_between_events() {
            return Bytes::new();
        }
        stages::error_event(self.inner.record.api.unwrap_or(Api::Other), termination)
    }

    /// Whether the response is an event stream between two events. `false` before the head.
    fn is_between_events(&self) -> bool {
        self.observer()
            .is_some_and(ResponseObserver::is_between_events)
    }

    /// Whether forwarded frames can be shorter than received ones. Removed usage, a renamed model and held
    /// events have this effect.
    pub(super) fn may_shorten_frames(&self) -> bool {
        self.inner.response.is_staged
            || self.observer().is_some_and(ResponseObserver::changes_bytes)
    }

    /// Whether an event stream with output has ended inside its last event, so that its answer is incomplete.
    /// Events that stages hold back are whole.
    pub(super) fn ends_inside_event(&mut self) -> bool {
        let is_cut = self.inner.record.timings.first_output.is_some()
            && !self.inner.response.is_staged
            && self
                .observer()
                .is_some_and(ResponseObserver::is_inside_event);
        if is_cut {
            // The end of the body can complete an event.
            self.on_end();
        }
        is_cut
            && self
                .observer()
                .is_some_and(|observer| !observer.observed().is_complete)
    }

    pub(super) fn has_last_event(&self) -> bool {
        self.inner.record.timings.terminal.is_some()
    }

    /// How the gateway interrupts the stream now. `None`: the stream continues, and `waker` is woken when it
    /// must be interrupted.
    pub(super) fn cut<E>(&self, waker: &Waker) -> Option<Cut<E>> {
        let ExchangeState {
            response,
            policy,
            in_flight,
            ..
        } = &*self.inner;
        let activity = response.entry.as_ref()?;
        if !activity.is_cut(waker) {
            return None;
        }
        if activity.take_move() {
            return Some(Cut::Leave(LeaveReason::Removed));
        }
        let now = clock::now();
        match activity.take_loss(now) {
            None => {}
            Some(Loss::Over) => return None,
            Some(Loss::Moves) => return Some(Cut::Leave(LeaveReason::Down)),
            Some(Loss::Ends) => return Some(Cut::End(ObservedBodyError::Lost)),
        }
        let termination = if in_flight.is_closing(activity) {
            Termination::Shutdown
        } else if activity.is_revoked(now) {
            Termination::KeyRevoked
        } else if policy.ends_by.is_some_and(|deadline| now >= deadline) {
            Termination::TotalTimeout
        } else {
            Termination::IdleTimeout
        };
        Some(Cut::End(ObservedBodyError::Aborted(termination)))
    }

    /// Finishes a request that the gateway answered itself, with a body of `bytes` bytes. `reason`
    /// is the name of the error, from a closed set.
    pub fn refuse(mut self, status: u16, bytes: u64, reason: &'static str, outcome: Outcome) {
        let record = self.record();
        record.status = Some(status);
        record.bytes_out = bytes;
        record.refusal = Some(reason);
        record.outcome = outcome;
        record.end = Termination::LocalReply;
    }

    /// Finishes the exchange when the body has ended. Returns the last bytes for the client: `before`, the
    /// bytes that stages hold back, and an error event.
    pub(super) fn finish(mut self, before: Bytes, termination: Termination) -> Bytes {
        let mut last_event = Bytes::new();
        if termination == Termination::Complete {
            last_event = self.inner.stages.on_end();
            if !last_event.is_empty() {
                last_event = self.observe(last_event, clock::now());
            }
            // The end can complete the last event, which the usage filter holds back.
            self.on_end();
        }
        let held = self.flush();
        let last = if held.is_empty() {
            self.error_event(termination)
        } else {
            held
        };
        self.end(termination);
        [before, last_event, last].concat().into()
    }

    /// Finishes the exchange of a body that has ended and of which no bytes are held back.
    pub(super) fn end(mut self, termination: Termination) {
        let now = clock::now();
        let ExchangeState {
            record, response, ..
        } = &mut *self.inner;
        if termination == Termination::Complete {
            response.on_end(record, || now);
        }
        response.finalize_record(record, termination, now);
        record.timings.ended = Some(now);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let ExchangeState {
            record,
            response,
            receiver,
            in_flight,
            permits,
            abort,
            forwarded_bytes,
            stages,
            ..
        } = &mut *self.inner;
        if let Some(bytes) = forwarded_bytes {
            record.bytes_in = bytes.get() as u64;
        }
        let is_shutting_down = in_flight.is_cutting();
        let now = record.timings.ended.unwrap_or_else(clock::now);
        let is_aborted = abort.as_ref().is_some_and(ResponseAbortHandle::is_aborted);
        let early_end = if is_aborted {
            Termination::WriteTimeout
        } else {
            Termination::ClientDisconnected
        };
        let termination = if is_shutting_down {
            Termination::Shutdown
        } else {
            early_end
        };
        response.finalize_record(record, termination, now);
        if is_shutting_down && record.end == Termination::ClientDisconnected {
            record.end = Termination::Shutdown;
            record.outcome = Outcome::Shutdown;
        }
        if std::thread::panicking() {
            record.outcome = Outcome::Rejected;
            record.refusal = Some("internal");
            record.end = Termination::LocalReply;
        }
        record.timings.ended = Some(now);
        if let Some(attempt) = record.attempts.last_mut() {
            attempt.ended.get_or_insert(now);
        }
        stages.on_record(record);
        record.slow = SlowCause::from_record(record, &in_flight.settings.slow);
        for permit in &mut *permits {
            permit.finished(record);
        }
        permits.clear();
        if let Some(record) = record.0.take() {
            receiver.finished(record);
        }
    }
}

#[expect(
    clippy::expect_used,
    reason = "the record is taken only when its exchange is dropped"
)]
impl Deref for RecordSlot {
    type Target = RequestRecord;

    fn deref(&self) -> &RequestRecord {
        self.0.as_ref().expect("the exchange has not ended")
    }
}

#[expect(
    clippy::expect_used,
    reason = "the record is taken only when its exchange is dropped"
)]
impl DerefMut for RecordSlot {
    fn deref_mut(&mut self) -> &mut RequestRecord {
        self.0.as_mut().expect("the exchange has not ended")
    }
}
