//! One exchange, from the head of the request to the last byte of the response.
//!
//! It ends with its response ([`Exchange::end`]), with an answer of the gateway itself
//! ([`Exchange::refuse`]), or by being dropped, as hyper does when the client disconnects.

use super::observer::{MIN_WRITE_STALL, ResponseObserver};
use super::open_streams::{
    BackendMonitor, ExchangeRegistry, InFlightGuard, OnTruncation, ResponseAbortHandle,
    StreamEntry, StreamInfo, StreamPolicy,
};
use super::outcome::outcome;
use super::record_slot::RecordSlot;
use crate::clock;
use crate::headers::media_type;
use crate::openai::{Api, TextExcerpt};
use crate::record::{
    ObservedResponse, Outcome, RequestRecord, SampleReason, SlowCause, Stall, Termination,
};
use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

/// A consumer of records. Its methods must not block: they run on the path of the response bytes.
pub trait Sink: Send + Sync + 'static {
    /// Called at the first output of a stream. The record is not complete.
    fn first_output(&self, _record: &RequestRecord) {}

    /// Decides whether the trace of a finished request is exported, and why. Called once per
    /// request, before any of the methods below.
    fn judge(&self, _record: &RequestRecord) -> Option<SampleReason> {
        None
    }

    /// Called when a request is finished. Exactly one of this method and the two below is called
    /// for each request.
    fn finished(&self, record: &RequestRecord);

    /// As [`Sink::finished`], for a sink that takes ownership of the record.
    fn on_finished_owned(&self, record: Box<RequestRecord>) {
        self.finished(&record);
    }

    /// As [`Sink::finished`], for several requests in the order in which they ended.
    fn finished_all(&self, records: &[Box<RequestRecord>]) {
        for record in records {
            self.finished(record);
        }
    }
}

/// Owner of one request's record. Dropping it reports the record to the sink.
pub struct Exchange {
    inner: Box<ExchangeState>,
}

struct ExchangeState {
    record: RecordSlot,
    observer: Option<ResponseObserver>,
    backend: Option<Arc<dyn BackendMonitor>>,
    /// The entry among the open streams. `None`: the response is not an event stream.
    entry: Option<StreamEntry>,
    /// When the client was handed a frame, if it has not asked for the next since.
    written_at: Option<Instant>,
    /// The end of the body has been processed.
    body_ended: bool,
    policy: StreamPolicy,
    sink: Arc<dyn Sink>,
    in_flight: InFlightGuard,
    /// Aborts the response if the client does not read it.
    abort: Option<ResponseAbortHandle>,
}

/// Most stalls that are recorded per stream.
const MAX_RECORDED_STALLS: usize = 16;

/// Sent during silences, so that proxies between client and gateway do not close an idle stream.
const KEEP_ALIVE_COMMENT: Bytes = Bytes::from_static(b": keep-alive\n\n");
const TRUNCATION_MESSAGE: &str = "the backend ended the stream before the response was complete";

impl Exchange {
    /// Starts an exchange with what is known of the request. The outcome of `record` should be
    /// [`Outcome::Cancelled`], because a dropped exchange means that the client disconnected.
    pub fn open(record: RequestRecord, sink: Arc<dyn Sink>, live: &Arc<ExchangeRegistry>) -> Self {
        let in_flight = live.enter();
        let rules = in_flight.settings().streams;
        Self {
            inner: Box::new(ExchangeState {
                record: RecordSlot::new(record),
                observer: None,
                backend: None,
                entry: None,
                written_at: None,
                body_ended: false,
                policy: StreamPolicy { rules, ..StreamPolicy::default() },
                sink,
                in_flight,
                abort: None,
            }),
        }
    }

    /// Sets the handle that aborts the response if its client does not read it.
    #[must_use]
    pub fn with_abort_handle(mut self, abort: ResponseAbortHandle) -> Self {
        self.inner.abort = Some(abort);
        self
    }

    /// The record in its present state.
    pub fn record(&mut self) -> &mut RequestRecord {
        &mut self.inner.record
    }

    /// The policy of the response stream: timeouts, keep-alive comments, handling of truncation.
    pub fn terms(&mut self) -> &mut StreamPolicy {
        &mut self.inner.policy
    }

    /// Silence after which the client is sent a keep-alive comment. `None`: comments are off, or
    /// the response is not an event stream.
    pub fn keep_alive_interval(&self) -> Option<Duration> {
        self.inner.policy.rules.keep_alive.filter(|_| self.inner.entry.is_some())
    }

    /// The keep-alive comment, if one is due and the stream is between two events.
    pub fn comment(&self) -> Option<Bytes> {
        let activity = self.inner.entry.as_ref()?.pulse();
        let is_between =
            self.inner.observer.as_ref().is_some_and(ResponseObserver::is_between_events);
        (is_between && activity.take_keep_alive(clock::now())).then_some(KEEP_ALIVE_COMMENT)
    }

    /// The error event that reports a truncated stream to the client. `None` unless
    /// [`OnTruncation::ErrorEvent`] is configured and the stream is between two events.
    pub fn last_words(&self) -> Option<Bytes> {
        let sends_error_event = self.inner.policy.rules.on_truncation == OnTruncation::ErrorEvent;
        let observer = self.inner.observer.as_ref().filter(|_| sends_error_event)?;
        let api = self.inner.record.api.unwrap_or(Api::Other);
        observer.is_between_events().then(|| api.error_event(TRUNCATION_MESSAGE))
    }

    /// Records the backend that the request is sent to.
    pub fn on_request_sent(&mut self, backend: Arc<dyn BackendMonitor>) {
        self.inner.backend = Some(backend);
    }

    /// Processes the head of the response.
    pub fn on_head(&mut self, status: u16, headers: &HeaderMap) {
        let now = clock::now();
        let ExchangeState { record, in_flight, policy, backend, .. } = &mut *self.inner;
        record.status = Some(status);
        record.timings.headers = Some(now);
        if let Some(attempt) = record.attempts.last_mut() {
            attempt.status = Some(status);
        }
        let mut observer = ResponseObserver::new(record.api.unwrap_or(Api::Other));
        observer.measure_by(&in_flight.settings().scales);
        observer.set_refusal_phrases(in_flight.settings().phrases.clone());
        if let Some(prompt) = &record.prompt {
            observer.capture_text(TextExcerpt::new(prompt.capacity()));
        }
        let is_identity = |value: &http::HeaderValue| value.as_bytes() == b"identity";
        let is_encoded = headers.get(CONTENT_ENCODING).is_some_and(|value| !is_identity(value));
        observer.on_head(media_type(headers), is_encoded);
        // vLLM reports the usage of embeddings that are encoded as bytes in a header.
        if let Some(metadata) = headers.get("metadata") {
            observer.on_metadata(metadata.as_bytes(), now, &mut record.timings);
        }
        observer.remove_injected_usage(&record.options);
        let is_stream = observer.observed().is_stream;
        let open_stream =
            |backend| in_flight.stream(backend, StreamInfo::from_record(record), *policy, now);
        self.inner.entry = backend.clone().filter(|_| is_stream).map(open_stream);
        self.inner.observer = Some(observer);
    }

    /// Observations of the response so far. `None` before its head.
    pub fn observed(&mut self) -> Option<&ObservedResponse> {
        self.inner.observer.as_mut().map(|observer| &*observer.observed())
    }

    /// Whether the observer can read the body of the response.
    pub fn is_inspected(&self) -> bool {
        self.inner.observer.as_ref().is_some_and(|observer| !observer.is_opaque())
    }

    /// Whether output of the response has been seen, or its end.
    pub fn has_output_or_ended(&mut self) -> bool {
        let has_output = self.inner.record.timings.first_output.is_some();
        has_output || self.observed().is_some_and(|observed| observed.is_complete)
    }

    /// Whether the engine aborted a choice of the response.
    pub fn has_aborted_choice(&self) -> bool {
        self.inner.observer.as_ref().is_some_and(ResponseObserver::has_aborted_choice)
    }

    /// Discards the current attempt before a failover; `reason` is from a closed set.
    pub fn discard_attempt(&mut self, reason: &'static str) {
        let ExchangeState {
            record, observer, backend, entry, written_at, body_ended, abort, ..
        } = &mut *self.inner;
        (*observer, *entry, *written_at) = (None, None, None);
        // Its bytes were not sent to the client, so the write timeout must not run.
        if let Some(abort) = abort {
            abort.on_drained();
        }
        if let Some(backend) = backend.take() {
            record.condition = backend.condition(clock::now());
        }
        *body_ended = false;
        record.status = None;
        record.bytes_out = 0;
        record.timings = record.timings.without_response();
        if let Some(attempt) = record.attempts.last_mut() {
            attempt.ended.get_or_insert_with(clock::now);
            attempt.failure = Some(reason);
        }
    }

    /// Whether forwarded frames can be shorter than received ones, because usage is removed.
    pub fn is_stripping(&self) -> bool {
        self.inner.observer.as_ref().is_some_and(ResponseObserver::is_stripping)
    }

    /// Whether the body can become longer or shorter than the backend declared.
    pub fn may_change_length(&self) -> bool {
        let rules = &self.inner.policy.rules;
        let may_add = rules.keep_alive.is_some() || rules.on_truncation == OnTruncation::ErrorEvent;
        // Only event streams have an entry.
        self.is_stripping() || (may_add && self.inner.entry.is_some())
    }

    /// Records that the client's connection asks for more data: the write stall ends.
    pub fn on_client_poll(&mut self) {
        let inner = &mut *self.inner;
        let Some(written_at) = inner.written_at.take() else { return };
        if let Some(abort) = &inner.abort {
            abort.on_drained();
        }
        if let Some(observer) = &mut inner.observer {
            record_write_stall(observer, written_at, clock::now());
        }
        if let Some(entry) = &inner.entry {
            entry.pulse().set_waits_for_backend(true);
        }
    }

    /// Whether to abort the silent stream now. If not, `waker` is woken when it must be aborted.
    pub fn is_cut(&self, waker: &Waker) -> bool {
        self.inner.entry.as_ref().is_some_and(|entry| entry.pulse().is_cut(waker))
    }

    /// Observes a chunk of the response body. Returns the bytes to forward, which can be empty.
    pub fn on_data(&mut self, frame: Bytes) -> Bytes {
        let ExchangeState {
            record,
            observer: Some(observer),
            backend,
            entry,
            written_at,
            sink,
            abort,
            ..
        } = &mut *self.inner
        else {
            return frame;
        };
        let now = clock::now();
        let had_output = record.timings.first_output.is_some();
        let arrival = observer.on_data(&frame, now, &mut record.timings);
        if let Some(entry) = entry {
            entry.pulse().on_bytes(now);
            if arrival.outputs > 0 {
                let stall = entry.pulse().on_output(now, arrival.gap);
                record_stall(observer, stall);
                entry.pulse().count(observer.observed().estimated_tokens);
            }
            if record.timings.terminal.is_some() {
                record_stall(observer, entry.pulse().on_end(now));
            }
        }
        if !had_output && record.timings.first_output.is_some() {
            if let Some(backend) = backend {
                backend.on_first_output(now);
            }
            sink.first_output(record);
        }
        let frame = observer.forward(frame);
        record.bytes_out += frame.len() as u64;
        *written_at = Some(now);
        if let Some(abort) = abort {
            abort.on_write(now);
        }
        frame
    }

    /// Records that the body ended in the way that HTTP framing demands.
    pub fn on_end(&mut self) {
        let ExchangeState { record, observer, body_ended, .. } = &mut *self.inner;
        if let Some(observer) = observer.as_mut().filter(|_| !std::mem::replace(body_ended, true)) {
            observer.on_end(clock::now(), &mut record.timings);
        }
    }

    /// The bytes that the usage filter held back. Call it at the end of the body.
    pub fn flush(&mut self) -> Bytes {
        let ExchangeState { record, observer, .. } = &mut *self.inner;
        let rest = observer.as_mut().map(ResponseObserver::flush).unwrap_or_default();
        record.bytes_out += rest.len() as u64;
        rest
    }

    /// Finishes a request that the gateway answered itself, with a body of `bytes` bytes.
    pub fn refuse(mut self, status: u16, bytes: u64, reason: &'static str, outcome: Outcome) {
        let record = self.record();
        record.status = Some(status);
        record.bytes_out = bytes;
        record.refusal = Some(reason);
        record.outcome = outcome;
        record.end = Termination::LocalReply;
    }

    /// Finishes the exchange: the body has ended.
    pub fn end(mut self, termination: Termination) {
        if termination == Termination::Complete {
            self.on_end();
        }
        self.inner.finalize_record(termination, clock::now());
    }
}

impl ExchangeState {
    /// Completes the record with the observed response and determines the outcome.
    fn finalize_record(&mut self, termination: Termination, now: Instant) {
        let backend = self.backend.take();
        if let Some(backend) = &backend {
            self.record.condition = backend.condition(now);
        }
        let Some(mut observer) = self.observer.take() else { return };
        if let Some(written_at) = self.written_at.take() {
            record_write_stall(&mut observer, written_at, now);
        }
        if let Some(entry) = self.entry.take() {
            record_stall(&mut observer, entry.pulse().on_end(now));
        }
        let record = &mut self.record;
        record.observed = observer.into_observed();
        record.end = termination;
        record.outcome = outcome(record);
        if let Some(backend) = backend {
            record.observed.scale_estimated_tokens(backend.tokens_per_event());
            backend.on_answer(&record.observed);
            record.recent = backend.recent_times();
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let inner = &mut *self.inner;
        let is_shutting_down = inner.in_flight.is_cutting();
        let now = clock::now();
        let is_aborted = inner.abort.as_ref().is_some_and(ResponseAbortHandle::is_aborted);
        let dropped =
            if is_aborted { Termination::WriteTimeout } else { Termination::ClientDisconnected };
        inner.finalize_record(if is_shutting_down { Termination::Shutdown } else { dropped }, now);
        if is_shutting_down && inner.record.end == Termination::ClientDisconnected {
            inner.record.end = Termination::Shutdown;
            inner.record.outcome = Outcome::Shutdown;
        }
        if std::thread::panicking() {
            inner.record.outcome = Outcome::Rejected;
            inner.record.refusal = Some("internal");
            inner.record.end = Termination::LocalReply;
        }
        inner.record.timings.ended = Some(now);
        if let Some(attempt) = inner.record.attempts.last_mut() {
            attempt.ended.get_or_insert(now);
        }
        inner.record.slow = SlowCause::from_record(&inner.record, &inner.in_flight.settings().slow);
        inner.record.sample_reason = inner.sink.judge(&inner.record);
        if let Some(record) = inner.record.take() {
            inner.sink.on_finished_owned(record);
        }
    }
}

/// Records a write stall if the client did not ask for data from `since` to `until`.
fn record_write_stall(observer: &mut ResponseObserver, since: Instant, until: Instant) {
    if until.saturating_duration_since(since) >= MIN_WRITE_STALL {
        observer.on_write_stall(since, until);
    }
}

fn record_stall(observer: &mut ResponseObserver, stall: Option<Stall>) {
    let stalls = &mut observer.observed().stalls;
    if let Some(stall) = stall.filter(|_| stalls.len() < MAX_RECORDED_STALLS) {
        stalls.push(stall);
    }
}
