//! One exchange, from the head of the request to the last byte of the answer. Whoever holds it
//! last ends it: by saying how, or by dropping it, which is what hyper does when a client leaves.

use super::live::{Place, Presence, Replica};
use super::observer::LEAST_WRITE_STALL;
use super::on_record::OnRecord;
use super::outcome::outcome;
use super::{Leash, Live, Observer, OnTruncation, Subject, Terms};
use crate::clock;
use crate::headers::media_type;
use crate::openai::{Api, Excerpt};
use crate::record::{End, Kept, Observed, Outcome, RequestRecord, SlowCause, Stall};
use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

/// What listens to requests. A sink must not block: it is called where the bytes flow.
pub trait Sink: Send + Sync + 'static {
    /// The first output of a stream came; the record is not complete.
    fn first_output(&self, _record: &RequestRecord) {}

    /// Whether the trace of a request that is over is kept, and why. Asked once for each, before
    /// anybody is told that it is over.
    fn judge(&self, _record: &RequestRecord) -> Option<Kept> {
        None
    }

    /// The request is over. This or one of the next two is called exactly once for each.
    fn finished(&self, record: &RequestRecord);

    /// The same, for a sink that keeps the record.
    fn take(&self, record: Box<RequestRecord>) {
        self.finished(&record);
    }

    /// The same of several requests, in the order in which they ended.
    fn finished_all(&self, records: &[Box<RequestRecord>]) {
        for record in records {
            self.finished(record);
        }
    }
}

/// The guard of one exchange. Dropping it reports the record.
pub struct Exchange {
    inner: Box<Inner>,
}

struct Inner {
    record: OnRecord,
    observer: Option<Observer>,
    replica: Option<Arc<dyn Replica>>,
    /// The answer is a stream, and has a place among the open ones.
    place: Option<Place>,
    /// The client has been given a frame then, and has not asked for the next.
    given: Option<Instant>,
    /// The end of the body has been seen.
    is_read: bool,
    terms: Terms,
    sink: Arc<dyn Sink>,
    presence: Presence,
    /// What ends the answer if its client does not take it.
    leash: Option<Leash>,
}

/// Most stalls of one stream that are kept.
const MAX_STALLS: usize = 16;

/// Keeps proxies in between from taking a stream for dead.
const COMMENT: Bytes = Bytes::from_static(b": keep-alive\n\n");
const BROKEN_OFF: &str = "the replica broke off its answer; what came is not whole";

impl Exchange {
    /// Begins with what is known of the request. The record's outcome should be
    /// [`Outcome::Cancelled`]: that is what a dropped exchange means.
    pub fn open(record: RequestRecord, sink: Arc<dyn Sink>, live: &Arc<Live>) -> Self {
        let presence = live.enter();
        let rules = presence.settings().streams;
        Self {
            inner: Box::new(Inner {
                record: OnRecord::new(record),
                observer: None,
                replica: None,
                place: None,
                given: None,
                is_read: false,
                terms: Terms { rules, ..Terms::default() },
                sink,
                presence,
                leash: None,
            }),
        }
    }

    /// The answer is ended by this if its client does not take it.
    #[must_use]
    pub fn on_leash(mut self, leash: Leash) -> Self {
        self.inner.leash = Some(leash);
        self
    }

    /// The record so far.
    pub fn record(&mut self) -> &mut RequestRecord {
        &mut self.inner.record
    }

    /// The terms on which its stream is carried, if it has one.
    pub fn terms(&mut self) -> &mut Terms {
        &mut self.inner.terms
    }

    /// How long a stream may be silent before its client is sent a comment. `None`: for ever, or the
    /// answer is no stream.
    pub fn keep_alive(&self) -> Option<Duration> {
        self.inner.terms.rules.keep_alive.filter(|_| self.inner.place.is_some())
    }

    /// A comment, if its client is to be told that its stream lives.
    pub fn comment(&self) -> Option<Bytes> {
        let pulse = self.inner.place.as_ref()?.pulse();
        let is_between = self.inner.observer.as_ref().is_some_and(Observer::is_between_events);
        (is_between && pulse.take_comment(clock::now())).then_some(COMMENT)
    }

    /// What tells the client that its stream breaks off, if it is to be told, and can be.
    pub fn last_words(&self) -> Option<Bytes> {
        let is_told = self.inner.terms.rules.on_truncation == OnTruncation::ErrorEvent;
        let observer = self.inner.observer.as_ref().filter(|_| is_told)?;
        let api = self.inner.record.api.unwrap_or(Api::Other);
        observer.is_between_events().then(|| api.error_event(BROKEN_OFF))
    }

    /// The request is sent to this replica.
    pub fn on_sent(&mut self, replica: Arc<dyn Replica>) {
        self.inner.replica = Some(replica);
    }

    /// The head of the answer came.
    pub fn on_head(&mut self, status: u16, headers: &HeaderMap) {
        let now = clock::now();
        let Inner { record, presence, terms, replica, .. } = &mut *self.inner;
        record.status = Some(status);
        record.timings.headers = Some(now);
        if let Some(attempt) = record.attempts.last_mut() {
            attempt.status = Some(status);
        }
        let mut observer = Observer::new(record.api.unwrap_or(Api::Other));
        observer.measure_by(&presence.settings().scales);
        observer.look_for(presence.settings().phrases.clone());
        if let Some(prompt) = &record.prompt {
            observer.keep_text(Excerpt::new(prompt.room()));
        }
        let is_identity = |value: &http::HeaderValue| value.as_bytes() == b"identity";
        let is_encoded = headers.get(CONTENT_ENCODING).is_some_and(|value| !is_identity(value));
        observer.on_head(media_type(headers), is_encoded);
        // vLLM's embeddings in bytes tell their usage in a header.
        if let Some(metadata) = headers.get("metadata") {
            observer.on_metadata(metadata.as_bytes(), now, &mut record.timings);
        }
        observer.remove_injected_usage(&record.asked);
        let is_stream = observer.observed().is_stream;
        let join = |replica| presence.stream(replica, Subject::of(record), *terms, now);
        self.inner.place = replica.clone().filter(|_| is_stream).map(join);
        self.inner.observer = Some(observer);
    }

    /// What has been seen of the answer so far. `None` before its head.
    pub fn observed(&mut self) -> Option<&Observed> {
        self.inner.observer.as_mut().map(|observer| &*observer.observed())
    }

    /// Whether the answer is one that can be read.
    pub fn is_reading(&self) -> bool {
        self.inner.observer.as_ref().is_some_and(|observer| !observer.is_blind())
    }

    /// Output of the answer has been seen, or its end.
    pub fn has_begun(&mut self) -> bool {
        let has_output = self.inner.record.timings.first_output.is_some();
        has_output || self.observed().is_some_and(|observed| observed.is_terminal)
    }

    /// The engine gave up a choice of the answer.
    pub fn is_given_up(&self) -> bool {
        self.inner.observer.as_ref().is_some_and(Observer::is_given_up)
    }

    /// This answer does not go on, for a reason of a closed set: another replica is asked.
    pub fn discard(&mut self, why: &'static str) {
        let Inner { record, observer, replica, place, given, is_read, leash, .. } =
            &mut *self.inner;
        (*observer, *place, *given) = (None, None, None);
        // The client has not been given anything of it, so the write timeout must not run.
        if let Some(leash) = leash {
            leash.take();
        }
        if let Some(replica) = replica.take() {
            record.condition = replica.condition(clock::now());
        }
        *is_read = false;
        record.status = None;
        record.bytes_out = 0;
        record.timings = record.timings.before_answer();
        if let Some(attempt) = record.attempts.last_mut() {
            attempt.ended.get_or_insert_with(clock::now);
            attempt.failure = Some(why);
        }
    }

    /// Whether the body may become shorter on its way.
    pub fn is_stripping(&self) -> bool {
        self.inner.observer.as_ref().is_some_and(Observer::is_stripping)
    }

    /// Whether the body may become longer or shorter on its way, so that the length that the backend
    /// declared may be wrong.
    pub fn may_change_length(&self) -> bool {
        let rules = &self.inner.terms.rules;
        let may_add = rules.keep_alive.is_some() || rules.on_truncation == OnTruncation::ErrorEvent;
        // Only event streams have a place.
        self.is_stripping() || (may_add && self.inner.place.is_some())
    }

    /// The client asks for more.
    pub fn on_poll(&mut self) {
        let inner = &mut *self.inner;
        let Some(given) = inner.given.take() else { return };
        if let Some(leash) = &inner.leash {
            leash.take();
        }
        if let Some(observer) = &mut inner.observer {
            count_hold(observer, given, clock::now());
        }
        if let Some(place) = &inner.place {
            place.pulse().wait_for_replica(true);
        }
    }

    /// Nothing has come. Whether the stream is to be cut, now; else `waker` is woken when it is.
    pub fn is_cut(&self, waker: &Waker) -> bool {
        self.inner.place.as_ref().is_some_and(|place| place.pulse().is_cut(waker))
    }

    /// Some of the answer's body came. Gives what of it goes on to the client, which can be
    /// nothing yet.
    pub fn on_data(&mut self, frame: Bytes) -> Bytes {
        let Inner { record, observer: Some(observer), replica, place, given, sink, leash, .. } =
            &mut *self.inner
        else {
            return frame;
        };
        let now = clock::now();
        let had_output = record.timings.first_output.is_some();
        let arrival = observer.on_data(&frame, now, &mut record.timings);
        if let Some(place) = place {
            place.pulse().on_bytes(now);
            if arrival.outputs > 0 {
                let stall = place.pulse().on_output(now, arrival.gap);
                keep(observer, stall);
                place.pulse().count(observer.observed().estimated_tokens);
            }
            if record.timings.terminal.is_some() {
                keep(observer, place.pulse().on_end(now));
            }
        }
        if !had_output && record.timings.first_output.is_some() {
            if let Some(replica) = replica {
                replica.on_first_output(now);
            }
            sink.first_output(record);
        }
        let frame = observer.forward(frame);
        record.bytes_out += frame.len() as u64;
        *given = Some(now);
        if let Some(leash) = leash {
            leash.give(now);
        }
        frame
    }

    /// The body ended as HTTP says it should.
    pub fn on_end(&mut self) {
        let Inner { record, observer, is_read, .. } = &mut *self.inner;
        if let Some(observer) = observer.as_mut().filter(|_| !std::mem::replace(is_read, true)) {
            observer.on_end(clock::now(), &mut record.timings);
        }
    }

    /// Nothing more comes: what was kept back, and goes on now.
    pub fn flush(&mut self) -> Bytes {
        let Inner { record, observer, .. } = &mut *self.inner;
        let rest = observer.as_mut().map(Observer::flush).unwrap_or_default();
        record.bytes_out += rest.len() as u64;
        rest
    }

    /// The gateway answers itself, with a body of `bytes`.
    pub fn refuse(mut self, status: u16, bytes: u64, reason: &'static str, outcome: Outcome) {
        let record = self.record();
        record.status = Some(status);
        record.bytes_out = bytes;
        record.refusal = Some(reason);
        record.outcome = outcome;
        record.end = End::Refused;
    }

    /// The body is over.
    pub fn end(mut self, end: End) {
        if end == End::Whole {
            self.on_end();
        }
        self.inner.conclude(end, clock::now());
    }
}

impl Inner {
    /// Takes over what was seen of an answer, and says what that makes of it.
    fn conclude(&mut self, end: End, now: Instant) {
        let replica = self.replica.take();
        if let Some(replica) = &replica {
            self.record.condition = replica.condition(now);
        }
        let Some(mut observer) = self.observer.take() else { return };
        if let Some(given) = self.given.take() {
            count_hold(&mut observer, given, now);
        }
        if let Some(place) = self.place.take() {
            keep(&mut observer, place.pulse().on_end(now));
        }
        let record = &mut self.record;
        record.observed = observer.into_observed();
        record.end = end;
        record.outcome = outcome(record);
        if let Some(replica) = replica {
            record.observed.scale_estimate(replica.tokens_per_event());
            replica.on_answer(&record.observed);
            record.recent = replica.recent_times();
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let inner = &mut *self.inner;
        let is_cutting = inner.presence.is_cutting();
        let now = clock::now();
        let is_pulled = inner.leash.as_ref().is_some_and(Leash::is_pulled);
        let left = if is_pulled { End::Untaken } else { End::Left };
        inner.conclude(if is_cutting { End::Shutdown } else { left }, now);
        if is_cutting && inner.record.end == End::Left {
            inner.record.end = End::Shutdown;
            inner.record.outcome = Outcome::Shutdown;
        }
        if std::thread::panicking() {
            inner.record.outcome = Outcome::Rejected;
            inner.record.refusal = Some("internal");
            inner.record.end = End::Refused;
        }
        inner.record.timings.ended = Some(now);
        if let Some(attempt) = inner.record.attempts.last_mut() {
            attempt.ended.get_or_insert(now);
        }
        inner.record.slow = SlowCause::of(&inner.record, &inner.presence.settings().slow);
        inner.record.kept = inner.sink.judge(&inner.record);
        if let Some(record) = inner.record.take() {
            inner.sink.take(record);
        }
    }
}

/// The client did not take what it was given `since` then, `until` now.
fn count_hold(observer: &mut Observer, since: Instant, until: Instant) {
    if until.saturating_duration_since(since) >= LEAST_WRITE_STALL {
        observer.on_held_up(since, until);
    }
}

fn keep(observer: &mut Observer, stall: Option<Stall>) {
    let stalls = &mut observer.observed().stalls;
    if let Some(stall) = stall.filter(|_| stalls.len() < MAX_STALLS) {
        stalls.push(stall);
    }
}
