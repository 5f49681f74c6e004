//! What each part of the hot path costs, over bytes recorded from a real vLLM.
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on has failed")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use http::HeaderMap;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use std::fs;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::{Duration, Instant};
use tokenweir::backend::dialect::Load;
use tokenweir::clock;
use tokenweir::headers::RequestId;
use tokenweir::observe::{Observer, Sink};
use tokenweir::openai::Api;
use tokenweir::openai::request::Peek;
use tokenweir::record::{
    Attempt, BackendId, Condition, Decision, Kept, ModelLabel, Outcome, RequestRecord, Timings,
};
use tokenweir::routing::prefix::PrefixTable;
use tokenweir::routing::{
    Ask, Candidate, Ledger, Policy, PolicyKind, Prompt, Question, Report, Shortlist,
};
use tokenweir::sse::Decoder;
use tokenweir::telemetry::access_log::AccessLog;
use tokenweir::telemetry::buckets::Buckets;
use tokenweir::telemetry::metric::Known;
use tokenweir::telemetry::otel::{self, Otel};
use tokenweir::telemetry::prometheus::Prometheus;

/// As in the gateway.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn recorded(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire").join(name);
    fs::read(path).unwrap()
}

/// The HTTP chunks of a recorded stream: one event each, as a gateway receives them.
fn chunks(name: &str) -> Vec<Vec<u8>> {
    let raw = recorded(name);
    let head = raw.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    let mut rest = &raw[head..];
    let mut chunks = Vec::new();
    while let Some(line) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            break;
        }
        chunks.push(rest[line + 2..line + 2 + size].to_vec());
        rest = &rest[line + size + 4..];
    }
    chunks
}

fn bytes(chunks: &[Vec<u8>]) -> Throughput {
    Throughput::Bytes(chunks.iter().map(|chunk| chunk.len() as u64).sum())
}

fn streams(c: &mut Criterion) {
    for name in ["python/chat-stream-long.http", "rust/chat-stream-long.http"] {
        let chunks = chunks(name);
        let mut group = c.benchmark_group(format!("stream of {} chunks, {name}", chunks.len()));
        group.throughput(bytes(&chunks));
        group.bench_function("decode", |b| {
            b.iter(|| {
                let mut decoder = Decoder::new();
                for chunk in &chunks {
                    let mut rest = &chunk[..];
                    while let Some(piece) = decoder.next(&mut rest) {
                        black_box(piece);
                    }
                }
            });
        });
        group.bench_function("observe", |b| {
            let now = clock::now();
            b.iter(|| {
                let mut observer = Observer::new(Api::Chat);
                observer.on_head("text/event-stream", false);
                let mut timings = Timings::begin(now);
                for chunk in &chunks {
                    observer.on_data(black_box(chunk), now, &mut timings);
                }
                observer.into_observed()
            });
        });
        group.finish();
    }
}

fn requests(c: &mut Criterion) {
    let mut group = c.benchmark_group("peek");
    for size in [300, 220_000, 2_000_000] {
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"{}"}}],"stream":true}}"#,
            "word ".repeat(size / 5)
        );
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(format!("{size} bytes"), |b| {
            b.iter(|| Peek::of(black_box(body.as_bytes())));
        });
    }
    group.finish();
}

/// A prompt of this many bytes, whose first half is the same for all seeds.
fn prompt(bytes: usize, seed: u8) -> Prompt {
    let (head, tail) = (vec![b'h'; bytes / 2], vec![seed; bytes / 2]);
    Prompt::new(1, [&head[..], &tail[..]].into_iter())
}

/// Replicas that have had some prompts, each others.
fn ledgers(count: usize, now: Instant) -> Vec<Ledger> {
    let ledger = |index: usize| {
        let ledger = Ledger::new(now, Duration::from_secs(5));
        let report = Report {
            kv_usage: Some((index % 100) as f64 / 100.0),
            waiting: (index % 3) as f64,
            running: (index % 40) as f64,
            capacity: Some(400_000),
        };
        ledger.on_report(&report, &ledger.own(), now);
        for seed in 0..4 {
            let prompt = prompt(32_768, (index * 4 + seed) as u8);
            ledger.promise(&ledger.candidate(&prompt, now), &prompt, true, now);
        }
        ledger
    };
    (0..count).map(ledger).collect()
}

fn routing(c: &mut Criterion) {
    let mut group = c.benchmark_group("decide");
    let now = clock::now();
    let policy = Policy { kind: PolicyKind::KvAware, ..Policy::default() };
    let mut ask = Ask { sequence: 5, seed: 7, session: None };
    for count in [2, 16, 1_000] {
        let ledgers = ledgers(count, now);
        let all: Vec<usize> = (0..count).collect();
        let shortlist = Shortlist::new(count);
        for position in &all {
            for seed in 0..4 {
                shortlist.sent(&prompt(32_768, (position * 4 + seed) as u8), *position);
            }
        }
        for (what, prompt) in
            [("no prompt", Prompt::default()), ("32k tokens", prompt(4 * 32_768, 9))]
        {
            group.bench_function(format!("kv_aware, {count} replicas, {what}"), |b| {
                b.iter(|| {
                    let prompt = black_box(&prompt);
                    ask.seed += 1;
                    let short = shortlist.of(policy.kind, &all, prompt, &ask);
                    let positions = short.as_deref().unwrap_or(&all);
                    let candidate = |position: &usize| ledgers[*position].candidate(prompt, now);
                    let candidates: Vec<Candidate> = positions.iter().map(candidate).collect();
                    policy.pick(&candidates, &ask)
                });
            });
        }
        let prompt = Prompt::default();
        let short = shortlist.of(policy.kind, &all, &prompt, &ask).unwrap_or(all);
        let candidate = |position: usize| ledgers[position].candidate(&prompt, now);
        let candidates: Vec<Candidate> = short.into_iter().map(candidate).collect();
        let question = Question::new(&policy, &candidates, &ask);
        let choice = question.pick().unwrap();
        let name = BackendId::new("vllm-0");
        let id = |_: usize| name.clone();
        let decision = || Decision::new(black_box(&question), choice, Condition::default(), id);
        group.bench_function(format!("explain, {count} replicas"), |b| b.iter(decision));
        let shadow = [PolicyKind::LeastRequests, PolicyKind::PrefixAffinity, PolicyKind::Session];
        let shadow = shadow.map(|kind| Policy { kind, ..policy });
        group.bench_function(format!("explain and 3 in shadow, {count} replicas"), |b| {
            b.iter(|| decision().with_shadow(&question, &shadow, id));
        });
    }
    group.finish();
    let mut group = c.benchmark_group("prompt");
    let body = vec![b'x'; 4 * 32_768];
    group.throughput(Throughput::Bytes(body.len() as u64));
    group.bench_function("hash 32k tokens", |b| {
        b.iter(|| Prompt::new(1, std::iter::once(black_box(&body[..]))));
    });
    let table = PrefixTable::new(4_000);
    let blocks = Prompt::new(1, std::iter::once(&body[..])).blocks;
    group.bench_function("remember 32k tokens", |b| b.iter(|| table.touch(black_box(&blocks))));
    group.finish();
}

/// A stream that went well, as its record has it.
fn finished() -> RequestRecord {
    let accepted = clock::now();
    let moment = |millis| accepted + Duration::from_millis(millis);
    let mut observer = Observer::new(Api::Chat);
    observer.on_head("text/event-stream", false);
    let mut timings = Timings::begin(accepted);
    for (millis, chunk) in (100..).step_by(20).zip(&chunks("python/chat-stream-long.http")) {
        observer.on_data(chunk, moment(millis), &mut timings);
    }
    timings.received = Some(moment(1));
    timings.routed = Some(moment(1));
    timings.sent = Some(moment(2));
    timings.headers = Some(moment(90));
    timings.ended = timings.terminal.or(timings.last_output);
    let begun = clock::wall();
    let id = RequestId::of(&HeaderMap::new(), 7);
    let mut record =
        RequestRecord::begin(id, IpAddr::V4(Ipv4Addr::LOCALHOST), "POST", begun, accepted);
    record.route = Some("/v1/chat/completions");
    record.api = Some(Api::Chat);
    record.model = ModelLabel::known("tiny".into());
    record.trace =
        Some(otel::Settings::default().propagation.begin(&HeaderMap::new(), 9, accepted));
    record.attempts.push(Attempt {
        backend: BackendId::new("vllm-0"),
        address: ("10.0.0.1".into(), 8000),
        provider: "vllm",
        span: 3,
        started: moment(2),
        ended: timings.ended,
        status: Some(200),
        failure: None,
    });
    record.status = Some(200);
    record.outcome = Outcome::Ok;
    record.observed = observer.into_observed();
    record.timings = timings;
    record
}

/// Takes spans and forgets them.
#[derive(Debug)]
struct Nowhere;

impl SpanExporter for Nowhere {
    async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
        Ok(())
    }
}

fn sinks(c: &mut Criterion) {
    let mut group = c.benchmark_group("a finished stream");
    let kept = RequestRecord { kept: Some(Kept::Sampled), ..finished() };
    let other = RequestRecord { kept: None, ..finished() };
    let known = Known { backends: vec!["vllm-0".into()], ..Known::default() };
    let metrics = Prometheus::new(known, &Buckets::default(), Vec::new());
    group.bench_function("metrics", |b| b.iter(|| metrics.finished(black_box(&other))));
    group.bench_function("metrics with exemplars", |b| {
        b.iter(|| metrics.finished(black_box(&kept)));
    });
    for (name, is_json) in [("a JSON line", true), ("a line for people", false)] {
        let log = AccessLog::new(
            is_json,
            Box::new(|lines| {
                black_box(lines);
            }),
        );
        group.bench_function(name, |b| b.iter(|| log.finished(black_box(&other))));
    }
    let spans = Otel::with_exporter(Nowhere, &otel::Settings::default());
    group.bench_function("judge its trace", |b| b.iter(|| spans.judge(black_box(&other))));
    group.bench_function("make its spans", |b| b.iter(|| spans.finished(black_box(&kept))));
    group.finish();
}

fn pages(c: &mut Criterion) {
    let mut group = c.benchmark_group("scrape");
    for name in ["metrics/python-metrics-after.http", "metrics/rust-metrics-after.http"] {
        let page = recorded(name);
        group.throughput(Throughput::Bytes(page.len() as u64));
        group.bench_function(name, |b| b.iter(|| Load::read(black_box(&page))));
    }
    group.finish();
}

fn config() -> Criterion {
    // Short: these are for comparing before and after a change, in one sitting.
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(30)
}

criterion_group!(name = parts; config = config(); targets = streams, requests, routing, sinks, pages);
criterion_main!(parts);
