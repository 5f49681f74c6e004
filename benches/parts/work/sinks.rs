//! The parts that process the record of a finished stream.

use super::{Part, chunks};
use http::HeaderMap;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;
use tokenweir_engine::address::BackendId;
use tokenweir_gateway::telemetry::access_log::AccessLog;
use tokenweir_gateway::telemetry::metrics_registry::BucketOverrides;
use tokenweir_gateway::telemetry::metrics_registry::Prometheus;
use tokenweir_gateway::telemetry::otel::{self, SpanSink};
use tokenweir_protocol::clock;
use tokenweir_protocol::headers::RequestId;
use tokenweir_protocol::openai::Api;
use tokenweir_request::observe::{ResponseObserver, Sink};
use tokenweir_request::record::{
    Attempt, ModelLabel, Outcome, RequestRecord, SampleReason, Timings,
};

const STREAM: &str = "python/chat-stream-long.http";

/// The parts that give the record of a stream to each sink. The bytes of a part are those of the stream.
pub(super) fn parts() -> Vec<Part> {
    let bytes = chunks(STREAM).iter().map(Vec::len).sum();
    let sampled = Rc::new(RequestRecord {
        sample_reason: Some(SampleReason::Sampled),
        ..finished()
    });
    let unsampled = Rc::new(RequestRecord {
        sample_reason: None,
        ..finished()
    });
    let metrics = Rc::new(Prometheus::new(BucketOverrides::default(), Vec::new()));
    let spans = Rc::new(SpanSink::with_exporter(
        Nowhere,
        &otel::TracingSettings::default(),
    ));
    let sampler = spans.clone();
    let judged = unsampled.clone();
    let sinks: [(&str, Rc<dyn Sink>, &Rc<RequestRecord>); 5] = [
        ("count a stream", metrics.clone(), &unsampled),
        ("count a stream, with exemplars", metrics, &sampled),
        (
            "write a stream's line, JSON",
            Rc::new(log(true)),
            &unsampled,
        ),
        (
            "write a stream's line, for people",
            Rc::new(log(false)),
            &unsampled,
        ),
        ("make a stream's spans", spans, &sampled),
    ];
    let sink_parts = sinks.map(|(name, sink, record)| {
        let record = record.clone();
        Part::new(name, 1, bytes, move || {
            sink.finished(black_box(&[&*record]));
        })
    });
    let judging = Part::new("judge a stream's trace", 1, bytes, move || {
        black_box(sampler.sample_reason(black_box(&judged)));
    });
    sink_parts.into_iter().chain([judging]).collect()
}

fn log(is_json: bool) -> AccessLog {
    let nowhere = |lines| {
        black_box(lines);
    };
    AccessLog::new(is_json, Box::new(nowhere), None, false)
}

/// A span exporter that discards spans.
#[derive(Debug)]
struct Nowhere;

impl SpanExporter for Nowhere {
    async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
        Ok(())
    }
}

/// Builds the record of a successful stream.
fn finished() -> RequestRecord {
    let accepted = clock::now();
    let moment = |millis| accepted + Duration::from_millis(millis);
    let mut observer = ResponseObserver::new(Api::Chat);
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
    let begun = clock::wall_time();
    let id = RequestId::from_headers(&HeaderMap::new(), 7);
    let mut record =
        RequestRecord::begin(id, IpAddr::V4(Ipv4Addr::LOCALHOST), "POST", begun, accepted);
    record.route = Some("/v1/chat/completions");
    record.api = Some(Api::Chat);
    record.model = ModelLabel::Known("tiny".into());
    record.trace = Some(otel::TracingSettings::default().propagation.start_trace(
        &HeaderMap::new(),
        9,
        accepted,
    ));
    record.attempts.push(Attempt {
        backend: BackendId::new("vllm-0"),
        address: ("10.0.0.1".into(), 8000),
        provider: "vllm",
        span_id: 3,
        started: moment(2),
        ended: timings.ended,
        status: Some(200),
        failure: None,
        engine_error: None,
        proxy: None,
    });
    record.status = Some(200);
    record.outcome = Outcome::Ok;
    record.observed = observer.into_observed().into();
    record.timings = timings;
    *record
}
