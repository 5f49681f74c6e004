//! One exchange, from the head of the request to the last byte of the answer. Whoever holds it
//! last ends it: by saying how, or by dropping it, which is what hyper does when a client leaves.

use super::Observer;
use crate::clock;
use crate::headers::media_type;
use crate::openai::{Api, Finish};
use crate::record::{Outcome, RequestRecord};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use std::sync::Arc;

/// What listens to requests. A sink must not block: it is called where the bytes flow.
pub trait Sink: Send + Sync + 'static {
    /// The first output of a stream came; the record is not complete.
    fn first_output(&self, _record: &RequestRecord) {}

    /// The request is over. Called exactly once for each.
    fn finished(&self, record: &RequestRecord);
}

/// The guard of one exchange. Dropping it reports the record.
pub struct Exchange {
    inner: Box<Inner>,
}

struct Inner {
    record: RequestRecord,
    observer: Option<Observer>,
    sink: Arc<dyn Sink>,
}

/// How the body of an answer ended.
#[derive(Debug, Clone, Copy)]
enum End {
    /// As HTTP says it should.
    Whole,
    /// The replica's connection broke.
    Broken,
    /// Nobody wanted the rest.
    Dropped,
}

impl Exchange {
    /// Begins with what is known of the request. The record's outcome should be
    /// [`Outcome::Cancelled`]: that is what a dropped exchange means.
    pub fn open(record: RequestRecord, sink: Arc<dyn Sink>) -> Self {
        Self { inner: Box::new(Inner { record, observer: None, sink }) }
    }

    /// The record so far.
    pub fn record(&mut self) -> &mut RequestRecord {
        &mut self.inner.record
    }

    /// The head of the answer came from a replica.
    pub fn on_head(&mut self, status: u16, headers: &HeaderMap) {
        let now = clock::now();
        let record = &mut self.inner.record;
        record.status = Some(status);
        record.timings.headers = Some(now);
        if let Some(attempt) = record.attempts.last_mut() {
            attempt.status = Some(status);
        }
        let mut observer = Observer::new(record.api.unwrap_or(Api::Other));
        let is_identity = |value: &http::HeaderValue| value.as_bytes() == b"identity";
        let is_encoded = headers.get(CONTENT_ENCODING).is_some_and(|value| !is_identity(value));
        observer.on_head(media_type(headers), is_encoded);
        self.inner.observer = Some(observer);
    }

    /// Some of the answer's body passes.
    pub fn on_data(&mut self, bytes: &[u8]) {
        let Inner { record, observer, sink } = &mut *self.inner;
        record.bytes_out += bytes.len() as u64;
        let Some(observer) = observer else { return };
        let had_output = record.timings.first_output.is_some();
        observer.on_data(bytes, clock::now(), &mut record.timings);
        if !had_output && record.timings.first_output.is_some() {
            sink.first_output(record);
        }
    }

    /// The gateway answers itself, with a body of `bytes`.
    pub fn refuse(mut self, status: u16, bytes: u64, reason: &'static str, outcome: Outcome) {
        let record = self.record();
        record.status = Some(status);
        record.bytes_out = bytes;
        record.refusal = Some(reason);
        record.outcome = outcome;
    }

    /// The body ended as HTTP says it should.
    pub fn complete(mut self) {
        let inner = &mut *self.inner;
        if let Some(observer) = &mut inner.observer {
            observer.on_end(clock::now(), &mut inner.record.timings);
        }
        inner.conclude(End::Whole);
    }

    /// The body broke off.
    pub fn broken(mut self) {
        self.inner.conclude(End::Broken);
    }
}

impl Inner {
    /// Takes over what was seen of an answer, and says what that makes of it.
    fn conclude(&mut self, end: End) {
        let Some(observer) = self.observer.take() else { return };
        self.record.observed = observer.into_observed();
        let observed = &self.record.observed;
        let is_aborted = observed.finish_reasons.contains(&Some(Finish::Abort));
        self.record.outcome = match (self.record.status, end) {
            (Some(400..=499), _) => Outcome::ClientError,
            (Some(500..), _) => Outcome::UpstreamError,
            // Clients hang up on an error event without waiting for what follows.
            _ if observed.is_stream && observed.error.is_some() => Outcome::StreamError,
            (_, End::Broken) => Outcome::Truncated,
            (_, End::Whole) if !observed.is_terminal => Outcome::Truncated,
            (_, End::Dropped) if !observed.is_terminal => Outcome::Cancelled,
            _ if is_aborted => Outcome::Aborted,
            // Many clients hang up on the last event without reading the end of the body.
            _ => Outcome::Ok,
        };
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let inner = &mut *self.inner;
        inner.conclude(End::Dropped);
        let now = clock::now();
        if std::thread::panicking() {
            inner.record.outcome = Outcome::Rejected;
            inner.record.refusal = Some("internal");
        }
        inner.record.timings.ended = Some(now);
        if let Some(attempt) = inner.record.attempts.last_mut() {
            attempt.ended.get_or_insert(now);
        }
        inner.sink.finished(&inner.record);
    }
}
