//! Watching costs no memory: once the first events of a stream have come, no chunk of a recorded
//! answer allocates a single byte, and neither does a metrics page. What is kept of decisions is
//! bounded. A program of its own, because it counts its allocator's bytes.

#![cfg(feature = "tools")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::disallowed_methods, reason = "tests may look at the real clock")]

#[path = "allocations/models.rs"]
mod models;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};
use http_body::{Body, Frame};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime};
use std::{fs, path::Path};
use tikv_jemalloc_ctl::thread;
use tokenweir::telemetry::explain::Explanations;
use tokenweir_core::access::{KeyDigest, KeyEntry, Keys, Limits, Roster, TenantEntry};
use tokenweir_core::dialect::Load;
use tokenweir_core::headers::RequestId;
use tokenweir_core::observe::{
    Begun, Exchange, Live, ObservedBody, Observer, Replica, Settings, Sink,
};
use tokenweir_core::openai::Api;
use tokenweir_core::record::{
    Asked, BackendId, Condition, Decision, RecentTimes, RequestRecord, Timings,
};
use tokenweir_core::routing::{Ask, Candidate, Ledger, Policy, Prompt, Question};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The front ends whose streams are recorded, each with a long one.
const STREAMS: [&str; 2] = ["python/chat-stream-long.http", "rust/chat-stream-long.http"];

/// Chunks that may allocate: the role and the first output, in which the id, the model and the
/// place of a choice are kept for the first time.
const FIRST: usize = 3;

/// Bytes that this thread has ever allocated.
fn allocated() -> u64 {
    thread::allocatedp::read().unwrap().get()
}

/// Bytes that this thread has allocated and not given back.
fn held() -> i64 {
    allocated().cast_signed() - thread::deallocatedp::read().unwrap().get().cast_signed()
}

/// The HTTP chunks of a recorded stream, each as a part of one buffer, which is what hyper gives.
fn chunks(name: &str) -> Vec<Bytes> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire").join(name);
    let mut rest = BytesMut::from(&fs::read(path).unwrap()[..]);
    let find = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).position(|part| part == what);
    let head = find(&rest, b"\r\n\r\n").unwrap() + 4;
    drop(rest.split_to(head));
    let mut chunks = Vec::new();
    loop {
        let line = find(&rest, b"\r\n").unwrap();
        let size = usize::from_str_radix(str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        drop(rest.split_to(line + 2));
        if size == 0 {
            break;
        }
        chunks.push(rest.split_to(size).freeze());
        drop(rest.split_to(2));
    }
    assert!(chunks.len() > 100, "{name} is long");
    chunks
}

/// Fails if a chunk after the first few allocated.
fn assert_free(name: &str, costs: &[u64]) {
    let costly: Vec<_> =
        costs.iter().enumerate().skip(FIRST).filter(|(_, cost)| **cost > 0).collect();
    assert!(costly.is_empty(), "{name} allocates, by chunk: {costly:?}");
}

#[test]
fn the_allocator_counts_what_is_allocated() {
    let before = allocated();
    let boxed = std::hint::black_box(Box::new([1_u8; 64]));
    assert!(allocated() - before >= 64, "{}", boxed[0]);
}

#[test]
fn a_million_unknown_keys_leave_not_a_byte() {
    let tenant = TenantEntry {
        name: "a".into(),
        tier: None,
        models: None,
        allow: Vec::new(),
        limits: Limits::default(),
        keys: vec![KeyEntry {
            name: "k".into(),
            hash: KeyDigest::of(b"known"),
            limits: Limits::default(),
        }],
    };
    let keys = Keys::new(&Roster { tenants: vec![tenant] }, &Keys::default());
    let mut headers = HeaderMap::new();
    let mut cost = 0;
    for number in 0..1_000_000 {
        headers.insert("x-api-key", HeaderValue::from(number));
        let before = allocated();
        assert!(keys.of(&headers).is_none());
        cost += allocated() - before;
    }
    assert_eq!(cost, 0);
    headers.insert("x-api-key", HeaderValue::from_static("known"));
    assert!(keys.of(&headers).is_some());
}

#[test]
fn a_metrics_page_is_read_without_allocating() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for name in ["wire/metrics/python-metrics-dp-2.http", "pages/vllm_openmetrics.txt"] {
        let page = fs::read(folder.join(name)).unwrap();
        let before = allocated();
        let load = Load::read(&page);
        assert_eq!(allocated() - before, 0, "{name}");
        assert!(load.is_understood(), "{name}");
    }
}

#[test]
fn an_observer_reads_a_chunk_without_allocating() {
    for name in STREAMS {
        let chunks = chunks(name);
        let mut now = Instant::now();
        let mut timings = Timings::begin(now);
        let mut observer = Observer::new(Api::Chat);
        observer.on_head("text/event-stream", false);
        let mut costs = Vec::with_capacity(chunks.len());
        for chunk in &chunks {
            now += Duration::from_millis(7);
            let before = allocated();
            observer.on_data(chunk, now, &mut timings);
            costs.push(allocated() - before);
        }
        assert_free(name, &costs);
        assert!(observer.into_observed().is_terminal);
    }
}

#[test]
fn a_body_forwards_a_chunk_without_allocating() {
    for name in STREAMS {
        for usage_injected in [false, true] {
            let chunks = chunks(name);
            let mut body = observed_body(&chunks, usage_injected);
            let mut context = Context::from_waker(Waker::noop());
            let mut costs = Vec::with_capacity(chunks.len());
            loop {
                let before = allocated();
                let polled = Pin::new(&mut body).poll_frame(&mut context);
                let cost = allocated() - before;
                match polled {
                    Poll::Ready(Some(Ok(_))) => costs.push(cost),
                    Poll::Ready(None) => break,
                    other => panic!("{other:?}"),
                }
            }
            // The poll that takes the usage event out goes on to the next chunk.
            assert_eq!(costs.len() + usize::from(usage_injected), chunks.len(), "{name}");
            assert_free(name, &costs);
        }
    }
}

/// A thousand names. Decisions share them.
static NAMES: LazyLock<Arc<[BackendId]>> =
    LazyLock::new(|| (0..1_000).map(|index| BackendId::new(&format!("vllm-{index}"))).collect());

/// A decision among this many replicas of which nothing is known.
fn decision(replicas: usize) -> Arc<Decision> {
    let now = Instant::now();
    let ledger = Ledger::new(now, Duration::from_secs(5));
    let candidates = vec![ledger.candidate(&Prompt::default(), now); replicas];
    let question = Question::new(Policy::default(), candidates, Ask::default());
    let choice = question.pick().unwrap();
    LazyLock::force(&NAMES);
    let before = allocated();
    let decision = Decision::new(question, choice, Condition::default(), &NAMES, &[]);
    let cost = usize::try_from(allocated() - before).unwrap();
    // Of many a few are kept in a table of their own, which is ranked in another.
    let table = if replicas > Decision::MOST { Decision::MOST * size_of::<Candidate>() } else { 0 };
    let ranking = Decision::MOST * 16;
    // The allocator rounds up by a quarter at most.
    assert!(
        (table..=(table + ranking) * 5 / 4).contains(&cost) && (cost == 0) == (table == 0),
        "{cost} bytes for {table}"
    );
    Arc::new(decision)
}

#[test]
fn a_decision_keeps_the_candidates_where_they_are_or_a_few_of_many_in_one_table() {
    for replicas in [1, 2, 16, 17, 1_000] {
        assert_eq!(decision(replicas).candidates(), replicas);
    }
}

#[test]
fn what_is_kept_of_decisions_is_bounded() {
    // A thread may free what another one has allocated.
    let freed = || thread::deallocatedp::read().unwrap().get();
    let held = || allocated().wrapping_sub(freed());
    LazyLock::force(&NAMES);
    let before = held();
    let explanations = Explanations::new(1_024);
    let mut record = record(Instant::now());
    for _ in 0..3_000 {
        record.decision = Some(decision(100));
        explanations.finished(&record);
    }
    record.decision = None;
    let kept = held().wrapping_sub(before);
    println!("1024 decisions among 100 replicas: {kept} bytes");
    assert!((1 << 20..=4 << 20).contains(&kept), "{kept} bytes");
}

/// A body whose frames are there, as a gateway observes it.
fn observed_body(chunks: &[Bytes], usage_injected: bool) -> ObservedBody<Frames, ()> {
    let now = Instant::now();
    let mut record = record(now);
    record.asked = Asked { stream: true, usage_injected, ..Asked::default() };
    let live = Live::new(Settings::default(), now);
    let mut exchange = Exchange::open(record, Arc::new(Nobody), &live);
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    exchange.on_sent(Arc::new(Nobody));
    exchange.on_head(200, &headers);
    assert_eq!(exchange.is_stripping(), usage_injected);
    ObservedBody::new(Begun::new(Frames(chunks.iter().cloned().collect())), exchange, ())
}

fn record(now: Instant) -> RequestRecord {
    let request_id = RequestId::of(&HeaderMap::new(), 1);
    let client = IpAddr::V4(Ipv4Addr::LOCALHOST);
    RequestRecord {
        api: Some(Api::Chat),
        ..RequestRecord::begin(request_id, client, "POST", SystemTime::UNIX_EPOCH, now)
    }
}

struct Frames(VecDeque<Bytes>);

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|chunk| Ok(Frame::data(chunk))))
    }
}

/// A replica and a sink that do nothing.
struct Nobody;

impl Replica for Nobody {
    fn condition(&self, _: Instant) -> Condition {
        Condition::default()
    }
    fn recent_times(&self) -> RecentTimes {
        RecentTimes::default()
    }
    fn on_gap(&self, _: Duration) {}
    fn usual_gap(&self) -> Option<f64> {
        None
    }
    fn on_stall(&self, _: bool) {}
}

impl Sink for Nobody {
    fn finished(&self, _: &RequestRecord) {}
}
