//! The methods of [`Exchange`] that process the response of the current attempt.

use super::{Exchange, ExchangeState};
use crate::observe::attempt_response::{record_stall, record_write_stall};
use crate::observe::observer::ResponseObserver;
use crate::observe::open_streams::StreamInfo;
use crate::record::RequestRecord;
use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::time::Instant;
use tokenweir_protocol::clock;
use tokenweir_protocol::headers::media_type;
use tokenweir_protocol::openai::{Api, TextExcerpt, route};

const OK: u16 = 200;
const BAD_REQUEST: u16 = 400;
/// The status of a response that begins a WebSocket.
const SWITCHING_PROTOCOLS: u16 = 101;
/// The header in which vLLM reports the metadata of embeddings.
const METADATA: HeaderName = HeaderName::from_static("metadata");

impl Exchange {
    /// Chooses the parser by status and headers, and registers streams among the open streams.
    pub fn on_head(&mut self, status: u16, headers: &HeaderMap) {
        let now = clock::now();
        let ExchangeState {
            record,
            response,
            stages,
            policy,
            in_flight,
            forwarded_bytes,
            ..
        } = &mut *self.inner;
        let record: &mut RequestRecord = record;
        record.status = Some(status);
        record.timings.headers = Some(now);
        if let Some(attempt) = record.attempts.last_mut() {
            attempt.status = Some(status);
        }
        let observer = ResponseObserver::new(record.api.unwrap_or(Api::Other));
        let observer = response.observer.insert(observer);
        observer
            .reader
            .set_phrase_matcher(in_flight.settings.phrases.clone());
        if let Some(prompt) = &record.prompt {
            observer
                .reader
                .capture_text(TextExcerpt::new(prompt.capacity()));
        }
        read_type(observer, record, status, headers);
        // Only streams use the histograms.
        if observer.observed().is_stream {
            observer
                .observed_mut()
                .set_buckets(&in_flight.settings.scales);
        }
        // vLLM reports the usage of embeddings that are encoded as bytes in a header.
        if !observer.reads_body()
            && let Some(metadata) = headers.get(METADATA)
        {
            observer.on_metadata(metadata.as_bytes(), now, &mut record.timings);
        }
        let fingerprint = response
            .backend
            .as_ref()
            .and_then(|backend| backend.fingerprint());
        observer.remove_injected_usage(&record.options, fingerprint);
        if status == OK
            && let Some(name) = &record.options.response_model
        {
            observer.rename_model(name);
        }
        let tunnel = match status {
            SWITCHING_PROTOCOLS => forwarded_bytes.clone(),
            _ => None,
        };
        // The gateway does not read the frames of a WebSocket, so any close of the connection counts as
        // complete.
        observer.observed_mut().is_complete |= tunnel.is_some();
        if let Some(backend) = &response.backend
            && (observer.observed().is_stream || tunnel.is_some())
        {
            let info = StreamInfo::from_record(record);
            response.entry = Some(in_flight.stream(backend.clone(), info, *policy, tunnel, now));
        }
        response.is_staged = stages.on_head(status == OK, response.entry.as_ref());
    }

    /// Observes a chunk of the response body. Returns the bytes to forward, which can be empty.
    pub fn on_data(&mut self, frame: Bytes) -> Bytes {
        let now = clock::now();
        if !self.inner.response.is_staged {
            return self.observe(frame, now);
        }
        let output_events = self.inner.response.output_events();
        let frame = self.inner.stages.on_data(frame);
        let frame = self.observe(frame, now);
        let ExchangeState {
            record,
            response,
            stages,
            ..
        } = &mut *self.inner;
        if response.output_events() > output_events {
            stages.on_output(record, response.backend.as_deref(), now);
        }
        frame
    }

    /// Observes a chunk that has passed the stages. Returns the bytes to forward, which can be empty.
    pub(in crate::observe) fn observe(&mut self, frame: Bytes, now: Instant) -> Bytes {
        let ExchangeState {
            record,
            response,
            receiver,
            abort,
            ..
        } = &mut *self.inner;
        let record: &mut RequestRecord = record;
        let Some(observer) = &mut response.observer else {
            return frame;
        };
        let had_output = record.timings.first_output.is_some();
        let had_id = observer.response_id().is_some();
        let chunk_summary = observer.on_data(&frame, now, &mut record.timings);
        if let Some(id) = observer.response_id()
            && !had_id
        {
            receiver.response_named(record, id);
        }
        if let Some(entry) = &response.entry {
            if chunk_summary.outputs == 0 {
                entry.on_bytes(now);
            } else {
                entry.on_output_bytes(now);
                let stall = entry.on_output(now, chunk_summary.gap);
                record_stall(observer, stall);
                let tokens = observer.observed().estimated_tokens;
                entry.set_progress(tokens, record.timings.is_reasoning());
            }
            if entry.is_tunnel() {
                entry.on_tunnel_bytes(now);
            }
            if record.timings.terminal.is_some() {
                record_stall(observer, entry.on_end(now));
            }
        }
        if !had_output && record.timings.first_output.is_some() {
            // The gateway held earlier bytes back on purpose until the first output, so their delay does not
            // count.
            response.unwritten_since = None;
            if let Some(backend) = &response.backend {
                backend.on_first_output(now);
            }
            receiver.first_output(record);
        }
        let frame = observer.forward(frame);
        record.bytes_out += frame.len() as u64;
        response.written_at = Some(now);
        if observer.observed().is_stream && !frame.is_empty() {
            response.unwritten_since.get_or_insert(now);
        }
        if let Some(abort) = abort {
            abort.on_write(now);
        }
        frame
    }

    /// Records that the client's connection asks for more data, which ends the write stall.
    pub fn on_client_poll(&mut self) {
        let ExchangeState {
            response, abort, ..
        } = &mut *self.inner;
        let Some(written_at) = response.written_at.take() else {
            return;
        };
        if let Some(observer) = &mut response.observer {
            record_write_stall(observer, written_at, clock::now());
        }
        if let Some(entry) = &response.entry {
            entry.set_waits_for_backend(true);
        }
        if let Some(abort) = abort {
            abort.on_drained();
        }
    }

    /// Records a flush of the client's connection. `is_complete`: all bytes that were handed to the connection
    /// are written.
    pub(in crate::observe) fn on_flush(&mut self, is_complete: bool) {
        let response = &mut self.inner.response;
        if let Some(since) = response.unwritten_since.take()
            && let Some(observer) = &mut response.observer
            && is_complete
        {
            let transit = clock::now().saturating_duration_since(since).as_secs_f64();
            observer.observed_mut().chunk_transit.record_n(transit, 1);
        }
    }

    /// The bytes that the usage filter holds back. Called at the end of the body.
    pub(in crate::observe) fn flush(&mut self) -> Bytes {
        let ExchangeState {
            record, response, ..
        } = &mut *self.inner;
        let Some(observer) = &mut response.observer else {
            return Bytes::new();
        };
        let held = observer.flush();
        record.bytes_out += held.len() as u64;
        held
    }
}

/// Determines how the body is parsed, and tells the observer.
fn read_type(
    observer: &mut ResponseObserver,
    record: &RequestRecord,
    status: u16,
    headers: &HeaderMap,
) {
    // Servers write an empty value or `none` to prevent proxies from compressing.
    let is_identity = |value: &HeaderValue| {
        let names: [&[u8]; 3] = [b"identity", b"none", b""];
        names
            .iter()
            .any(|name| value.as_bytes().eq_ignore_ascii_case(name))
    };
    let is_encoded = headers
        .get(CONTENT_ENCODING)
        .is_some_and(|value| !is_identity(value));
    if record.api == Some(Api::Http) {
        // Two bodies are not read: a stored response contains the usage of an earlier request, and a Realtime
        // connection carries WebSocket frames.
        return observer.on_head("", false);
    }
    let media_type = media_type(headers);
    observer.on_head(media_type, is_encoded);
    let is_known = match record.api {
        None => false,
        Some(Api::Other) => record.route.is_some_and(route::is_api_path),
        Some(_) => true,
    };
    if status < BAD_REQUEST && is_known {
        observer.expect_answer(media_type);
    }
}
