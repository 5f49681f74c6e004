//! A scripted backend, and a client that reads the gateway's response body. Neither needs a socket or a
//! runtime.

use super::chance;
use super::exchange_case::{Case, Close};
use bytes::Bytes;
use fastrand::Rng;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame};
use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use tokenweir_request::observe::{
    BackendMonitor, Exchange, ExchangeRegistry, ObservedBody, PrefetchedBody, RecordReceiver,
};
use tokenweir_request::record::fixtures::begun;
use tokenweir_request::record::{RequestOptions, RequestRecord};

/// The observations of the client in an exchange, and the record of the gateway.
pub(crate) struct Seen {
    /// The body that the client received.
    pub bytes: Vec<u8>,
    /// Whether the body ended with an error.
    pub is_broken: bool,
    pub records: Vec<RequestRecord>,
    /// For each time that the gateway reported a first output: the byte range of the frame that the gateway
    /// was reading.
    pub first_outputs: Vec<Range<usize>>,
}

/// Runs the exchange: a backend with the script of the case, the observer of the gateway, and a client.
pub(crate) fn run(case: &Case, live: &Arc<ExchangeRegistry>) -> Seen {
    let sink = Arc::new(Capture::default());
    let mut exchange = Exchange::open(record(case), sink.clone(), live);
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(case.content_type));
    exchange.on_request_sent(Arc::new(Stub));
    exchange.on_head(case.status, &headers);
    let script = Script::of(case, sink.clone());
    // Before a body fails, it is pending once more, so that the server can write the frames that it has
    // buffered.
    let is_wait = |step: &&Step| matches!(step, Step::Wait);
    let pauses = script.frames.iter().filter(is_wait).count();
    let waits = pauses + usize::from(case.close == Close::Broken);
    let (bytes, is_broken) = take(
        ObservedBody::new(PrefetchedBody::new(script), exchange, ()),
        waits,
    );
    let first_outputs = std::mem::take(&mut *lock(&sink.first_outputs));
    let records = std::mem::take(&mut *lock(&sink.records));
    Seen {
        bytes,
        is_broken,
        records,
        first_outputs,
    }
}

/// Polls the frames of a body as hyper does, until the body ends or fails. Drops the body if it is pending
/// more than `waits` times. Returns the bytes, and whether the body failed.
fn take(mut body: ObservedBody<Script, ()>, mut waits: usize) -> (Vec<u8>, bool) {
    let mut context = Context::from_waker(Waker::noop());
    let mut bytes = Vec::new();
    while !body.is_end_stream() {
        match Pin::new(&mut body).poll_frame(&mut context) {
            Poll::Pending if waits == 0 => break,
            Poll::Pending => waits -= 1,
            Poll::Ready(None) => break,
            Poll::Ready(Some(Err(_))) => return (bytes, true),
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    bytes.extend_from_slice(data);
                }
            }
        }
    }
    (bytes, false)
}

/// The body of the backend's response, as frames that arrive one after the other.
struct Script {
    frames: VecDeque<Step>,
    close: Close,
    /// Whether the length of the body is known in advance, so that the body ends with its last frame.
    has_length: bool,
    sink: Arc<Capture>,
}

enum Step {
    Data(Bytes),
    Trailers,
    /// Makes the body pending once.
    Wait,
}

impl Script {
    fn of(case: &Case, sink: Arc<Capture>) -> Self {
        let bytes = Bytes::copy_from_slice(&case.stream.bytes);
        let mut random = case.random.clone();
        let mut frames = VecDeque::new();
        let mut from = 0;
        for to in cuts(case, &mut random) {
            match random.u8(..40) {
                0..2 => frames.push_back(Step::Wait),
                2..4 => frames.push_back(Step::Data(Bytes::new())),
                _ => {}
            }
            frames.push_back(Step::Data(bytes.slice(from..to)));
            from = to;
        }
        let has_length = chance(&mut random, 25);
        if case.close == Close::Whole && !has_length && chance(&mut random, 5) {
            frames.push_back(Step::Trailers);
        }
        Self {
            frames,
            close: case.close,
            has_length,
            sink,
        }
    }
}

/// Returns the positions in the response at which frames end: the ends of events, random positions, or every
/// byte.
fn cuts(case: &Case, random: &mut Rng) -> Vec<usize> {
    let all = case.arrived;
    let mut cuts: Vec<usize> = match random.u8(..20) {
        0..8 => {
            let ends = case.stream.events.iter().map(|event| event.complete_at);
            ends.filter(|end| *end < all).collect()
        }
        8..16 => (0..random.usize(..12))
            .map(|_| random.usize(..=all))
            .collect(),
        16..18 => (0..all).step_by(random.usize(2..64)).collect(),
        18 if all < 4_000 => (0..all).collect(),
        _ => Vec::new(),
    };
    cuts.push(all);
    cuts.sort_unstable();
    cuts
}

impl Body for Script {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match (self.frames.pop_front(), self.close) {
            (Some(Step::Data(data)), _) => {
                let mut frame = lock(&self.sink.frame);
                *frame = frame.end..frame.end + data.len();
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            (Some(Step::Trailers), _) => Poll::Ready(Some(Ok(Frame::trailers(HeaderMap::new())))),
            (Some(Step::Wait), _) | (None, Close::Left) => Poll::Pending,
            (None, Close::Whole) => Poll::Ready(None),
            (None, Close::Broken) => Poll::Ready(Some(Err("connection reset"))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.has_length && self.close == Close::Whole && self.frames.is_empty()
    }
}

#[derive(Default)]
struct Capture {
    records: Mutex<Vec<RequestRecord>>,
    first_outputs: Mutex<Vec<Range<usize>>>,
    /// The byte range of the frame that the backend delivered last.
    frame: Mutex<Range<usize>>,
}

impl RecordReceiver for Capture {
    fn first_output(&self, _: &RequestRecord) {
        lock(&self.first_outputs).push(lock(&self.frame).clone());
    }

    fn finished(&self, record: Box<RequestRecord>) {
        lock(&self.records).push(*record);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A backend monitor without metrics.
struct Stub;

impl BackendMonitor for Stub {}

/// Builds the record of the request with the values that a gateway knows when it has sent the request.
fn record(case: &Case) -> RequestRecord {
    RequestRecord {
        api: Some(case.api),
        options: RequestOptions {
            stream: true,
            usage_injected: case.is_usage_injected,
            ..RequestOptions::default()
        },
        ..begun(Instant::now())
    }
}
