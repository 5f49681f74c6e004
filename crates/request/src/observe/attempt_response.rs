//! The response of one attempt while it passes the gateway: its observer, its backend, and its entry
//! among the open streams.

use super::observer::ResponseObserver;
use super::open_streams::{
    BackendMonitor, InFlightGuard, ResponseAbortHandle, StreamEntry, StreamInfo, StreamPolicy,
};
use super::sink::RecordReceiver;
use crate::record::{Outcome, RequestRecord, Stall, Termination};
use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use tokenweir_protocol::headers::media_type;
use tokenweir_protocol::openai::{Api, FinishReason, TextExcerpt};

/// The response of one attempt. A failover discards it.
#[derive(Default)]
pub(super) struct AttemptResponse {
    /// The backend of the attempt. `None`: the request has not been sent, or the attempt was
    /// discarded.
    pub(super) backend: Option<Arc<dyn BackendMonitor>>,
    /// The observer of the response. `None`: the response head has not arrived.
    pub(super) observer: Option<ResponseObserver>,
    /// The entry among the open streams. `None`: the response is neither an event stream nor a WebSocket.
    pub(super) entry: Option<StreamEntry>,
    /// When the last frame was handed to the client's connection. `None`: the connection has asked
    /// for more data since, or no frame was handed over.
    written_at: Option<Instant>,
    /// When the oldest bytes were read that are not yet written to the client's connection. `None`:
    /// there are none, the response is not an event stream, or the client delays the write.
    unwritten_since: Option<Instant>,
    /// Whether the regular end of the body has been processed.
    body_ended: bool,
    /// Whether the bytes of the response pass through the splicer of the exchange, which joins the streams of
    /// several backends.
    pub(super) is_spliced: bool,
}

/// The header in which vLLM reports the metadata of embeddings.
const METADATA: HeaderName = HeaderName::from_static("metadata");
/// Shortest write stall that is recorded. A shorter pause between taking a frame and asking for the
/// next is normal for a fast client.
const MIN_WRITE_STALL: Duration = Duration::from_millis(1);
/// Greatest number of stalls that are recorded per stream.
const MAX_RECORDED_STALLS: usize = 16;

impl AttemptResponse {
    /// Processes the head of the response. `tunnel`: number of bytes that the client has sent on a
    /// connection that is now a WebSocket. `None`: the response begins no WebSocket.
    pub(super) fn on_head(
        &mut self,
        record: &mut RequestRecord,
        in_flight: &InFlightGuard,
        policy: StreamPolicy,
        headers: &HeaderMap,
        tunnel: Option<Arc<AtomicU64>>,
        now: Instant,
    ) {
        let observer = ResponseObserver::new(record.api.unwrap_or(Api::Other));
        let observer = self.observer.insert(observer);
        observer.set_refusal_phrases(in_flight.settings.phrases.clone());
        if let Some(prompt) = &record.prompt {
            observer.capture_text(TextExcerpt::new(prompt.capacity()));
        }
        // Servers write an empty value or `none` to keep proxies from compressing.
        let is_identity = |value: &HeaderValue| {
            let names: [&[u8]; 3] = [b"identity", b"none", b""];
            names.iter().any(|name| value.as_bytes().eq_ignore_ascii_case(name))
        };
        let is_encoded = headers.get(CONTENT_ENCODING).is_some_and(|value| !is_identity(value));
        // The body of a stored response has the usage of an earlier request.
        let is_read = record.api != Some(Api::Http);
        observer.on_head(if is_read { media_type(headers) } else { "" }, is_encoded && is_read);
        // The histograms have values only for streams.
        if observer.observed().is_stream {
            observer.observed_mut().set_buckets(&in_flight.settings.scales);
        }
        // vLLM reports the usage of embeddings that are encoded as bytes in a header.
        if let Some(metadata) = headers.get(METADATA) {
            observer.on_metadata(metadata.as_bytes(), now, &mut record.timings);
        }
        let fingerprint = self.backend.as_ref().and_then(|backend| backend.fingerprint());
        observer.remove_injected_usage(&record.options, fingerprint);
        // A WebSocket counts as complete, however its connection is closed: the gateway does not read
        // its frames.
        observer.observed_mut().is_complete |= tunnel.is_some();
        let has_entry = observer.observed().is_stream || tunnel.is_some();
        let open_stream = |backend| {
            in_flight.stream(backend, StreamInfo::from_record(record), policy, tunnel, now)
        };
        self.entry = self.backend.clone().filter(|_| has_entry).map(open_stream);
    }

    /// Observes a chunk of the body. Returns the bytes to forward, which can be empty.
    pub(super) fn on_data(
        &mut self,
        record: &mut RequestRecord,
        receiver: &dyn RecordReceiver,
        abort: Option<&ResponseAbortHandle>,
        frame: Bytes,
        now: Instant,
    ) -> Bytes {
        let Some(observer) = &mut self.observer else { return frame };
        let had_output = record.timings.first_output.is_some();
        let had_id = observer.response_id().is_some();
        let chunk_summary = observer.on_data(&frame, now, &mut record.timings);
        if let Some(id) = observer.response_id().filter(|_| !had_id) {
            receiver.response_named(record, id);
        }
        if let Some(entry) = &self.entry {
            entry.activity().on_bytes(now);
            if chunk_summary.outputs > 0 {
                let stall = entry.activity().on_output(now, chunk_summary.gap);
                record_stall(observer, stall);
                let tokens = observer.observed().estimated_tokens;
                entry.activity().set_progress(tokens, record.timings.is_reasoning());
            }
            if entry.activity().is_tunnel() {
                entry.activity().on_tunnel_bytes(now);
            }
            if record.timings.terminal.is_some() {
                record_stall(observer, entry.activity().on_end(now));
            }
        }
        if !had_output && record.timings.first_output.is_some() {
            // The gateway held earlier bytes back until the first output on purpose, so their delay
            // does not count.
            self.unwritten_since = None;
            if let Some(backend) = &self.backend {
                backend.on_first_output(now);
            }
            receiver.first_output(record);
        }
        let frame = observer.forward(frame);
        record.bytes_out += frame.len() as u64;
        self.written_at = Some(now);
        if observer.observed().is_stream && !frame.is_empty() {
            self.unwritten_since.get_or_insert(now);
        }
        if let Some(abort) = abort {
            abort.on_write(now);
        }
        frame
    }

    /// Continues the response at another backend. `policy`: the policy of the stream.
    pub(super) fn continue_at(
        &mut self,
        backend: Arc<dyn BackendMonitor>,
        record: &mut RequestRecord,
        in_flight: &InFlightGuard,
        policy: StreamPolicy,
        now: Instant,
    ) {
        if let Some(backend) = &self.backend {
            record.condition = backend.condition(now);
        }
        if let (Some(entry), Some(observer)) = (self.entry.take(), &mut self.observer) {
            record_stall(observer, entry.activity().on_end(now));
        }
        let info = StreamInfo::from_record(record);
        let policy = StreamPolicy { first_output_by: None, ..policy };
        let entry = in_flight.stream(backend.clone(), info, policy, None, now);
        // The silence of the backend counts from the arrival of its response head.
        entry.activity().on_output(now, None);
        entry.activity().set_continuable();
        self.entry = Some(entry);
        self.backend = Some(backend);
    }

    /// Number of events with output that the response has had so far.
    pub(super) fn output_events(&self) -> u64 {
        self.observer.as_ref().map_or(0, |observer| observer.observed().output_events)
    }

    /// Records that the client's connection asks for more data: the write stall ends. Returns
    /// whether a frame was handed to the connection since the last call. `now` is called only in
    /// that case.
    pub(super) fn on_client_poll(&mut self, now: impl FnOnce() -> Instant) -> bool {
        let Some(written_at) = self.written_at.take() else { return false };
        if let Some(observer) = &mut self.observer {
            record_write_stall(observer, written_at, now());
        }
        if let Some(entry) = &self.entry {
            entry.activity().set_waits_for_backend(true);
        }
        true
    }

    /// Records a flush of the client's connection. `is_complete`: all bytes that were handed to the
    /// connection are written. `now` is called only if bytes of a stream are among them.
    pub(super) fn on_flush(&mut self, is_complete: bool, now: impl FnOnce() -> Instant) {
        let unwritten_since = self.unwritten_since.take().filter(|_| is_complete);
        if let (Some(since), Some(observer)) = (unwritten_since, &mut self.observer) {
            let transit = now().saturating_duration_since(since).as_secs_f64();
            observer.observed_mut().chunk_transit.record_n(transit, 1);
        }
    }

    /// Records that the body ended regularly by HTTP framing, for example with its last chunk or
    /// after its declared length. Repeated calls have no effect.
    pub(super) fn on_end(&mut self, record: &mut RequestRecord, now: impl FnOnce() -> Instant) {
        let Self { observer, body_ended, .. } = self;
        if let Some(observer) = observer.as_mut().filter(|_| !std::mem::replace(body_ended, true)) {
            observer.on_end(now(), &mut record.timings);
        }
    }

    /// The bytes that the usage filter holds back. Called at the end of the body.
    pub(super) fn flush(&mut self, record: &mut RequestRecord) -> Bytes {
        let held = self.observer.as_mut().map(ResponseObserver::flush).unwrap_or_default();
        record.bytes_out += held.len() as u64;
        held
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
        let Some(mut observer) = self.observer.take() else { return };
        if let Some(written_at) = self.written_at.take() {
            record_write_stall(&mut observer, written_at, now);
        }
        if let Some(entry) = self.entry.take() {
            record_stall(&mut observer, entry.activity().on_end(now));
        }
        record.observed = observer.into_observed().into();
        record.end = termination;
        record.outcome = outcome(record);
        if let Some(backend) = backend {
            record.observed.scale_estimated_tokens(backend.tokens_per_event());
            backend.on_answer(record.api, &record.observed);
            if let (Some(sent), timings) = (record.timings.sent, &record.timings) {
                let until = timings.first_output.unwrap_or(now);
                record.wait_reports = backend.wait_reports(sent, until);
            }
        }
    }
}

/// Records a write stall from `since` to `until` if it is at least [`MIN_WRITE_STALL`] long.
fn record_write_stall(observer: &mut ResponseObserver, since: Instant, until: Instant) {
    if until.saturating_duration_since(since) >= MIN_WRITE_STALL {
        observer.on_write_stall(since, until);
    }
}

/// Adds a stall to the observations, up to [`MAX_RECORDED_STALLS`].
fn record_stall(observer: &mut ResponseObserver, stall: Option<Stall>) {
    let stalls = &mut observer.observed_mut().stalls;
    if let Some(stall) = stall.filter(|_| stalls.len() < MAX_RECORDED_STALLS) {
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
        (Some(500..), _) => Outcome::UpstreamError,
        // Clients disconnect on an error event without waiting for the end of the body.
        _ if observed.is_stream && observed.error.is_some() => Outcome::StreamError,
        (_, Termination::IdleTimeout | Termination::TotalTimeout) => Outcome::Timeout,
        (_, Termination::UpstreamReset) => Outcome::Truncated,
        (_, Termination::KeyRevoked) => Outcome::Cancelled,
        (_, Termination::Complete) if !is_complete => Outcome::Truncated,
        (_, Termination::ClientDisconnected | Termination::WriteTimeout) if !is_complete => {
            Outcome::Cancelled
        }
        (status, Termination::Shutdown) if !is_complete || status == Some(101) => Outcome::Shutdown,
        _ if finish_reasons.contains(&Some(FinishReason::Abort)) => Outcome::Aborted,
        // Many clients disconnect after the last event without reading the end of the body.
        _ => Outcome::Ok,
    }
}
