//! The methods of [`Exchange`] that continue its stream at another backend.

use super::{Exchange, ExchangeState};
use crate::continuation::{ContinuationRefusal, InterruptionCause, StreamSplicer};
use crate::observe::attempt_response::record_stall;
use crate::observe::open_streams::{BackendMonitor, StreamInfo, StreamPolicy};
use crate::observe::stream_end::EarlyEnd;
use crate::record::Continuation;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Instant;
use tokenweir_protocol::clock;

impl Exchange {
    /// Sets the splicer, which keeps what a continuation of the stream needs.
    pub fn splice_streams(&mut self, splicer: StreamSplicer) {
        self.inner.splicer = Some(Box::new(splicer));
    }

    /// Whether the bytes of the stream pass through the splicer, so that another backend can continue it.
    pub fn is_spliced(&self) -> bool {
        self.inner.response.is_spliced
    }

    /// Whether a continuation needs the body of the request. `false`: the stream is not continued, for
    /// example because there is no memory for its body.
    pub fn needs_body(&self) -> bool {
        let splicer = self.inner.splicer.as_ref();
        splicer.is_some_and(|splicer| splicer.refusal().is_none())
    }

    /// Why no backend can continue the stream now.
    pub fn check_continuation(&self) -> Result<(), ContinuationRefusal> {
        let splicer = self.inner.splicer.as_ref().ok_or(ContinuationRefusal::Api)?;
        splicer.check()
    }

    /// The body of the request that continues the stream. `body`: the body of the first request.
    pub fn continuation_request(&self, body: &[u8]) -> Result<Bytes, ContinuationRefusal> {
        let splicer = self.inner.splicer.as_ref().ok_or(ContinuationRefusal::Api)?;
        splicer.request(body)
    }

    /// Records that the stream goes on at `backend`, whose attempt is the last one of the record.
    /// `interrupted`: the time from which the stream needed another backend.
    pub fn continue_at(
        &mut self,
        backend: Arc<dyn BackendMonitor>,
        cause: InterruptionCause,
        interrupted: Instant,
    ) {
        let now = clock::now();
        let ExchangeState { record, response, policy, in_flight, splicer, .. } = &mut *self.inner;
        let Some(splicer) = splicer else { return };
        splicer.switch();
        if let Some(backend) = &response.backend {
            record.condition = backend.condition(now);
        }
        if let (Some(entry), Some(observer)) = (response.entry.take(), &mut response.observer) {
            record_stall(observer, entry.activity().on_end(now));
        }
        let policy = StreamPolicy { first_output_by: None, ..*policy };
        let info = StreamInfo::from_record(record);
        let entry = in_flight.stream(backend.clone(), info, policy, None, now);
        // The silence of the backend counts from the arrival of its response head.
        entry.activity().on_output(now, None);
        entry.activity().set_continuable();
        response.entry = Some(entry);
        response.backend = Some(backend);
        let span_id = record.attempts.last().map_or(0, |attempt| attempt.span_id);
        let tokens = splicer.tokens() as u64;
        let begun = Continuation { span_id, cause, tokens, interrupted, resumed: None };
        record.continuations.begun.push(begun);
        record.continuations.refusal = None;
    }

    /// Tries again a moment later to move the stream to another backend.
    pub fn move_later(&self) {
        if let Some(entry) = &self.inner.response.entry {
            entry.activity().move_later(clock::now());
        }
    }

    /// Completes the stream if only its usage or its end is missing. Returns whether it is complete.
    pub fn complete_stream(&mut self) -> bool {
        let ExchangeState { record, splicer, .. } = &mut *self.inner;
        let reports_usage = record.options.usage_requested || record.options.usage_injected;
        splicer.as_mut().is_some_and(|splicer| splicer.complete(reports_usage))
    }

    /// Whether another backend has continued the stream.
    pub(in crate::observe) fn is_continued(&self) -> bool {
        !self.inner.record.continuations.begun.is_empty()
    }

    /// Whether the stream had its last event.
    pub(in crate::observe) fn has_last_event(&self) -> bool {
        self.inner.record.timings.terminal.is_some()
    }

    /// Records why the stream is not continued after its present interruption. `is_final`: the reason also
    /// holds for later interruptions.
    pub fn refuse_continuation(&mut self, reason: ContinuationRefusal, is_final: bool) {
        let ExchangeState { record, splicer, .. } = &mut *self.inner;
        record.continuations.refusal = Some(reason);
        if let Some(splicer) = splicer.as_mut().filter(|_| is_final) {
            splicer.refuse(reason);
        }
    }

    /// Why the stream needs another backend after the early end `end`. `None`: the stream needs none.
    pub(in crate::observe) fn interruption<E>(
        &self,
        end: &EarlyEnd<E>,
    ) -> Option<InterruptionCause> {
        let ExchangeState { response, splicer, .. } = &*self.inner;
        let splicer = splicer.as_ref().filter(|it| response.is_spliced && !it.is_done())?;
        match end {
            EarlyEnd::Events => splicer.interruption(),
            EarlyEnd::Body(_) => splicer.interruption().or(Some(InterruptionCause::Died)),
            EarlyEnd::Stall => Some(InterruptionCause::Stalled),
            EarlyEnd::Move(cause) => Some(*cause),
            EarlyEnd::Lost => Some(InterruptionCause::BackendDown),
        }
    }

    /// The events that were held back until it was known whether the stream is continued.
    pub(in crate::observe) fn release_events(&mut self) -> Bytes {
        let splicer = self.inner.splicer.as_mut();
        let held = splicer.map(|splicer| splicer.release()).unwrap_or_default();
        self.observe(held, clock::now())
    }

    /// The last event of a stream that ended in order but lacks its last blank line. Empty: there is no such
    /// event.
    pub(in crate::observe) fn take_partial_event(&mut self) -> Bytes {
        let splicer = self.inner.splicer.as_mut();
        let partial = splicer.map(|splicer| splicer.finish()).unwrap_or_default();
        if partial.is_empty() { partial } else { self.observe(partial, clock::now()) }
    }

    /// Lets the bytes of the response pass through the splicer, if the response is an event stream that can
    /// be continued.
    pub(super) fn begin_splicing(&mut self, is_success: bool) {
        let ExchangeState { response, splicer, .. } = &mut *self.inner;
        if let (Some(splicer), Some(entry)) = (splicer, &response.entry)
            && is_success
            && splicer.is_active()
        {
            splicer.restart();
            response.is_spliced = true;
            entry.activity().set_continuable();
        }
    }

    /// Passes a chunk through the splicer and observes the result. Returns the bytes to forward, which can
    /// be empty.
    pub(super) fn on_spliced_data(&mut self, frame: Bytes) -> Bytes {
        let ExchangeState { response, splicer, .. } = &mut *self.inner;
        let (now, outputs) = (clock::now(), response.output_events());
        let frame = splicer.as_mut().map(|splicer| splicer.push(frame)).unwrap_or_default();
        let frame = self.observe(frame, now);
        let ExchangeState { record, response, .. } = &mut *self.inner;
        if let Some(continuation) = record.continuations.begun.last_mut()
            && continuation.resumed.is_none()
            && response.output_events() > outputs
        {
            continuation.resumed = Some(now);
            if let Some(backend) = &response.backend {
                backend.on_first_output(now);
            }
        }
        frame
    }
}
