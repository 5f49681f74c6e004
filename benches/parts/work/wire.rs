//! The parts that parse streams, requests and metrics pages.

use super::{Part, chunked_body};
use bytes::Bytes;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use tokenweir_engine::dialect::EngineLoad;
use tokenweir_protocol::clock;
use tokenweir_protocol::limits::memory_charge::{Charge, MemoryLimits};
use tokenweir_protocol::openai::Api;
use tokenweir_protocol::openai::request_fields::RequestFields;
use tokenweir_protocol::sse::SseDecoder;
use tokenweir_request::continuation::{ContinuationMode, ContinuationPlan, StreamSplicer};
use tokenweir_request::observe::ResponseObserver;
use tokenweir_request::record::Timings;

const STREAMS: [(&str, &str); 2] = [
    ("Python front end", "python/chat-stream-long.http"),
    ("Rust front end", "rust/chat-stream-long.http"),
];
const PAGES: [(&str, &str); 2] = [
    ("Python front end", "metrics/python-metrics-after.http"),
    ("Rust front end", "metrics/rust-metrics-after.http"),
];
const BODIES: [(&str, usize); 3] = [("300 bytes", 300), ("220 KB", 220_000), ("2 MB", 2_000_000)];

pub(super) fn parts() -> Vec<Part> {
    let streams = STREAMS.into_iter().flat_map(|(from, name)| {
        let decoded = chunks(name);
        let observed = decoded.clone();
        let (count, bytes) = (decoded.len(), decoded.iter().map(Vec::len).sum());
        [
            Part::new(format!("decode a chunk, {from}"), count, bytes, move || {
                decode(&decoded);
            }),
            Part::new(
                format!("observe a chunk, {from}"),
                count,
                bytes,
                move || observe(&observed),
            ),
        ]
    });
    let peeks = BODIES.into_iter().map(|(size, bytes)| {
        let body = body(bytes);
        Part::new(format!("peek at {size}"), 1, body.len(), move || {
            let peek = RequestFields::parse(black_box(body.as_bytes()));
            assert!(black_box(peek).is_ok());
        })
    });
    let pages = PAGES.into_iter().map(|(from, name)| {
        let page = recorded(name);
        Part::new(
            format!("read a page of metrics, {from}"),
            1,
            page.len(),
            move || {
                black_box(EngineLoad::read(black_box(&page)));
            },
        )
    });
    let spliced = with_ids(chunks(STREAMS[0].1));
    let (count, bytes) = (spliced.len(), spliced.iter().map(Bytes::len).sum());
    let splice = Part::new("splice a chunk", count, bytes, move || splice(&spliced));
    streams.chain(peeks).chain(pages).chain([splice]).collect()
}

/// These events with one token id in each, as a backend writes it if the request asks for `return_token_ids`.
fn with_ids(chunks: Vec<Vec<u8>>) -> Vec<Bytes> {
    let with_ids = |(id, chunk)| {
        let event = String::from_utf8(chunk).unwrap();
        event
            .replace(
                r#""token_ids":null"#,
                &format!(r#""token_ids":[{}]"#, 10_000 + id),
            )
            .into()
    };
    chunks.into_iter().enumerate().map(with_ids).collect()
}

fn recorded(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/wire")
        .join(name);
    fs::read(path).unwrap()
}

/// The HTTP chunks of a recorded stream, one event each, as a gateway receives them.
pub(crate) fn chunks(name: &str) -> Vec<Vec<u8>> {
    let raw = recorded(name);
    let head = memchr::memmem::find(&raw, b"\r\n\r\n").unwrap() + 4;
    let (chunks, _) = chunked_body::chunks(&raw[head..]);
    chunks.into_iter().map(<[u8]>::to_vec).collect()
}

/// Builds a chat request of about this number of bytes.
fn body(bytes: usize) -> String {
    format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":"{}"}}],"stream":true}}"#,
        "word ".repeat(bytes / 5)
    )
}

fn decode(chunks: &[Vec<u8>]) {
    let mut decoder = SseDecoder::new();
    for chunk in chunks {
        let mut rest = &chunk[..];
        while let Some(piece) = decoder.next(&mut rest) {
            black_box(piece);
        }
    }
}

fn observe(chunks: &[Vec<u8>]) {
    let now = clock::now();
    let mut observer = ResponseObserver::new(Api::Chat);
    observer.on_head("text/event-stream", false);
    let mut timings = Timings::begin(now);
    for chunk in chunks {
        observer.on_data(black_box(chunk), now, &mut timings);
    }
    black_box(observer.into_observed());
}

fn splice(chunks: &[Bytes]) {
    let request = br#"{"model":"m","messages":[],"temperature":0}"#;
    let plan = ContinuationPlan::read(Some(Api::Chat), request, ContinuationMode::Exact, false);
    let limits = MemoryLimits {
        one: usize::MAX,
        party: usize::MAX,
        total: usize::MAX,
    };
    let mut splicer = StreamSplicer::new(Ok(plan.unwrap()), Charge::default(), limits);
    for chunk in chunks {
        black_box(splicer.push(black_box(chunk.clone())));
    }
    assert!(splicer.is_done() && splicer.tokens() > 0);
}
