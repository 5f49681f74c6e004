//! Measures the memory allocations of the gateway. After the first events of a stream, the gateway may not
//! allocate for a chunk of a recorded response. Parsing a metrics page of a backend may not allocate. The
//! memory of the log of routing decisions is bounded. This is a separate program, because
//! `allocation_counter` replaces the allocator of the program.

#![cfg(feature = "tools")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::disallowed_methods, reason = "tests may use the real clock")]

#[path = "suite/support/chunked_body.rs"]
mod chunked_body;
#[path = "allocations/models.rs"]
mod models;

use allocation_counter::{AllocationInfo, measure};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};
use http_body::{Body, Frame};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use std::{fs, path::Path};
use tokenweir_engine::address::BackendId;
use tokenweir_engine::dialect::EngineLoad;
use tokenweir_gateway::telemetry::decision_log::DecisionLog;
use tokenweir_protocol::openai::Api;
use tokenweir_request::access::{ApiKeys, KeyDigest, KeyEntry, KeyFile, TenantEntry, UsageLimits};
use tokenweir_request::observe::{
    BackendMonitor, Exchange, ExchangeRegistry, ObservationSettings, ObservedBody, PrefetchedBody,
    RecordReceiver, ResponseObserver, Sink,
};
use tokenweir_request::record::fixtures::begun;
use tokenweir_request::record::{
    BackendCondition, RequestOptions, RequestRecord, RoutingDecision, Timings,
};
use tokenweir_routing::{
    Candidate, LoadEstimator, Policy, PromptFingerprint, RoutingContext, RoutingRequest,
};

/// A long recorded stream of each front end of vLLM.
const STREAMS: [&str; 2] = ["python/chat-stream-long.http", "rust/chat-stream-long.http"];

/// Number of chunks at the start of a stream for which the gateway may allocate: up to the role chunk and the
/// first output, from which it stores the id, the model and the state of a choice.
const FIRST_CHUNKS: usize = 3;

/// Runs the function. Returns its value and its allocations in this thread.
fn measured<T>(run: impl FnOnce() -> T) -> (T, AllocationInfo) {
    let mut value = None;
    let allocations = measure(|| value = Some(run()));
    (value.unwrap(), allocations)
}

/// Runs the function. Returns its value and the number of bytes that it allocated in this thread.
fn allocated<T>(run: impl FnOnce() -> T) -> (T, u64) {
    let (value, allocations) = measured(run);
    (value, allocations.bytes_total)
}

/// Returns the HTTP chunks of a recorded stream as slices of one buffer, so that splitting allocates nothing.
fn chunks(name: &str) -> Vec<Bytes> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/wire")
        .join(name);
    let raw = Bytes::from(fs::read(path).unwrap());
    let head = memchr::memmem::find(&raw, b"\r\n\r\n").unwrap() + 4;
    let (chunks, _) = chunked_body::chunks(&raw[head..]);
    assert!(chunks.len() > 100, "{name} has more than 100 chunks");
    chunks
        .into_iter()
        .map(|chunk| raw.slice_ref(chunk))
        .collect()
}

/// Asserts that no chunk after the first [`FIRST_CHUNKS`] allocated. `costs` has the allocations of each
/// chunk.
fn assert_no_allocations(name: &str, costs: &[u64]) {
    let costly: Vec<_> = costs
        .iter()
        .enumerate()
        .skip(FIRST_CHUNKS)
        .filter(|(_, cost)| **cost > 0)
        .collect();
    assert!(costly.is_empty(), "{name} allocates, by chunk: {costly:?}");
}

#[test]
fn allocated_bytes_are_counted() {
    let (_, cost) = allocated(|| std::hint::black_box(Box::new([1_u8; 64])));
    assert_eq!(cost, 64);
}

#[test]
fn unknown_api_keys_allocate_no_memory() {
    let tenant = TenantEntry {
        name: "a".into(),
        keys: vec![KeyEntry {
            name: "k".into(),
            hash: KeyDigest::from_key(b"known"),
            limits: UsageLimits::default(),
        }],
        ..TenantEntry::default()
    };
    let keys = ApiKeys::new(
        &KeyFile {
            tenants: vec![tenant],
        },
        &ApiKeys::default(),
    );
    let mut headers = HeaderMap::new();
    let mut cost = 0;
    for number in 0..1_000_000 {
        headers.insert("x-api-key", HeaderValue::from(number));
        let (authenticated, bytes) = allocated(|| keys.authenticate(&headers).is_some());
        assert!(!authenticated);
        cost += bytes;
    }
    assert_eq!(cost, 0);
    headers.insert("x-api-key", HeaderValue::from_static("known"));
    assert!(keys.authenticate(&headers).is_some());
}

#[test]
fn parsing_a_metrics_page_does_not_allocate() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for name in [
        "wire/metrics/python-metrics-dp-2.http",
        "pages/vllm_openmetrics.txt",
    ] {
        let page = fs::read(folder.join(name)).unwrap();
        let (load, cost) = allocated(|| EngineLoad::read(&page));
        assert_eq!(cost, 0, "{name}");
        assert!(load.is_understood(), "{name}");
    }
}

#[test]
fn observing_a_chunk_does_not_allocate() {
    for name in STREAMS {
        let chunks = chunks(name);
        let mut now = Instant::now();
        let mut timings = Timings::begin(now);
        let mut observer = ResponseObserver::new(Api::Chat);
        observer.on_head("text/event-stream", false);
        let mut costs = Vec::with_capacity(chunks.len());
        for chunk in &chunks {
            now += Duration::from_millis(7);
            costs.push(allocated(|| observer.on_data(chunk, now, &mut timings)).1);
        }
        assert_no_allocations(name, &costs);
        assert!(observer.into_observed().is_complete);
    }
}

#[test]
fn forwarding_a_chunk_does_not_allocate() {
    for name in STREAMS {
        for usage_injected in [false, true] {
            let chunks = chunks(name);
            let mut body = observed_body(&chunks, usage_injected);
            let mut context = Context::from_waker(Waker::noop());
            let mut costs = Vec::with_capacity(chunks.len());
            loop {
                let (polled, cost) = allocated(|| Pin::new(&mut body).poll_frame(&mut context));
                match polled {
                    Poll::Ready(Some(Ok(_))) => costs.push(cost),
                    Poll::Ready(None) => break,
                    other => panic!("{other:?}"),
                }
            }
            // The poll that removes the usage event returns the chunk after it, so there is one poll less.
            assert_eq!(
                costs.len() + usize::from(usage_injected),
                chunks.len(),
                "{name}"
            );
            // In a stream, at most two polls may allocate: when the event with the finish reason waits for
            // the usage event, and when the usage event is removed.
            let costs = &costs[..costs.len() - 2 * usize::from(usage_injected)];
            assert_no_allocations(name, costs);
        }
    }
}

/// A thousand backend names, which all routing decisions of the test share.
static NAMES: LazyLock<Arc<[BackendId]>> = LazyLock::new(|| {
    (0..1_000)
        .map(|index| BackendId::new(&format!("vllm-{index}")))
        .collect()
});

/// Builds a routing decision among this number of backends, all without metrics.
fn decision(backends: usize) -> Arc<RoutingDecision> {
    let now = Instant::now();
    let load_estimator = LoadEstimator::new(now, Duration::from_secs(5));
    let candidates = vec![load_estimator.candidate(&PromptFingerprint::default(), now); backends];
    let context = RoutingContext::new(Policy::default(), candidates, RoutingRequest::default());
    let choice = context.pick().unwrap();
    LazyLock::force(&NAMES);
    let (decision, cost) =
        allocated(|| RoutingDecision::new(context, choice, BackendCondition::default(), &NAMES));
    let cost = usize::try_from(cost).unwrap();
    // If there are many candidates, the decision stores only a few of them, in a separate table. A second
    // table ranks the candidates.
    let table = if backends > RoutingDecision::MAX_RECORDED_CANDIDATES {
        RoutingDecision::MAX_RECORDED_CANDIDATES * size_of::<Candidate>()
    } else {
        0
    };
    let ranking = RoutingDecision::MAX_RECORDED_CANDIDATES * 16;
    assert!(
        (table..=table + ranking).contains(&cost) && (cost == 0) == (table == 0),
        "{cost} bytes for {table}"
    );
    Arc::new(decision)
}

#[test]
fn a_decision_allocates_at_most_one_table() {
    for backends in [1, 2, 16, 17, 1_000] {
        assert_eq!(decision(backends).candidate_count(), backends);
    }
}

#[test]
fn the_decision_log_has_bounded_memory() {
    LazyLock::force(&NAMES);
    let decision_log = DecisionLog::new(1_024, Vec::new());
    let mut record = record(Instant::now());
    let allocations = measure(|| {
        for _ in 0..3_000 {
            record.decision = Some(decision(100));
            decision_log.finished(&[&record]);
        }
        record.decision = None;
    });
    let used = allocations.bytes_current;
    println!("1024 decisions among 100 backends: {used} bytes");
    assert!((1 << 20..=9 << 19).contains(&used), "{used} bytes");
}

/// Builds the response body that the gateway forwards and observes. All its frames, `chunks`, are available
/// at once.
fn observed_body(chunks: &[Bytes], usage_injected: bool) -> ObservedBody<Frames, ()> {
    let now = Instant::now();
    let mut record = record(now);
    record.options = RequestOptions {
        stream: true,
        usage_injected,
        ..RequestOptions::default()
    };
    let live = ExchangeRegistry::new(ObservationSettings::default(), now);
    let mut exchange = Exchange::open(record, Arc::new(NoOp), &live);
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    exchange.on_request_sent(Arc::new(NoOp));
    exchange.on_head(200, &headers);
    assert_eq!(exchange.may_change_length(), usage_injected);
    ObservedBody::new(
        PrefetchedBody::new(Frames(chunks.iter().cloned().collect())),
        exchange,
        (),
    )
}

fn record(now: Instant) -> RequestRecord {
    RequestRecord {
        api: Some(Api::Chat),
        ..begun(now)
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

/// A backend monitor and a receiver of records that do nothing.
struct NoOp;

impl BackendMonitor for NoOp {
    // An empty fingerprint: the backend has none. A fingerprint would be inserted once in a stream, which
    // allocates.
    fn fingerprint(&self) -> Option<Bytes> {
        Some(Bytes::new())
    }
}

impl RecordReceiver for NoOp {
    fn finished(&self, _: Box<RequestRecord>) {}
}
