//! What becomes of a stream that has ended.

use super::{Part, chunks};
use http::HeaderMap;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;
use tokenweir::telemetry::access_log::AccessLog;
use tokenweir::telemetry::buckets::Buckets;
use tokenweir::telemetry::metric::Known;
use tokenweir::telemetry::otel::{self, Otel};
use tokenweir::telemetry::prometheus::Prometheus;
use tokenweir_core::clock;
use tokenweir_core::headers::RequestId;
use tokenweir_core::observe::{Observer, Sink};
use tokenweir_core::openai::Api;
use tokenweir_core::record::{
    Attempt, BackendId, Kept, ModelLabel, Outcome, RequestRecord, Timings,
};

const STREAM: &str = "python/chat-stream-long.http";

/// Each sink, told of a stream; the bytes are those of the stream.
pub(super) fn parts() -> Vec<Part> {
    let bytes = chunks(STREAM).iter().map(Vec::len).sum();
    let kept = Rc::new(RequestRecord { kept: Some(Kept::Sampled), ..finished() });
    let other = Rc::new(RequestRecord { kept: None, ..finished() });
    let known = Known { backends: vec!["vllm-0".into()], ..Known::default() };
    let metrics = Rc::new(Prometheus::new(known, &Buckets::default(), Vec::new()));
    let spans = Rc::new(Otel::with_exporter(Nowhere, &otel::Settings::default()));
    let judge = spans.clone();
    let judged = other.clone();
    let sinks: [(&str, Rc<dyn Sink>, &Rc<RequestRecord>); 5] = [
        ("count a stream", metrics.clone(), &other),
        ("count a stream, with exemplars", metrics, &kept),
        ("write a stream's line, JSON", Rc::new(log(true)), &other),
        ("write a stream's line, for people", Rc::new(log(false)), &other),
        ("make a stream's spans", spans, &kept),
    ];
    let told = sinks.map(|(name, sink, record)| {
        let record = record.clone();
        Part::new(name, 1, bytes, move || sink.finished(black_box(&record)))
    });
    let judging = Part::new("judge a stream's trace", 1, bytes, move || {
        black_box(judge.judge(black_box(&judged)));
    });
    told.into_iter().chain([judging]).collect()
}

fn log(is_json: bool) -> AccessLog {
    let nowhere = |lines| {
        black_box(lines);
    };
    AccessLog::new(is_json, Box::new(nowhere))
}

/// Takes spans and forgets them.
#[derive(Debug)]
struct Nowhere;

impl SpanExporter for Nowhere {
    async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
        Ok(())
    }
}

/// A stream that went well, as its record has it.
fn finished() -> RequestRecord {
    let accepted = clock::now();
    let moment = |millis| accepted + Duration::from_millis(millis);
    let mut observer = Observer::new(Api::Chat);
    observer.on_head("text/event-stream", false);
    let mut timings = Timings::begin(accepted);
    for (millis, chunk) in (100..).step_by(20).zip(&chunks(STREAM)) {
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
