//! Records for tests: a successful request, which each test changes as needed.

#![expect(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "fixtures of tests, which fail by a panic"
)]

use super::{
    Attempt, BackendCondition, ModelLabel, ObservedResponse, Outcome, RequestHeadAttributes,
    RequestOptions, RequestRecord, RoutingDecision, SampleReason, SpanIds, Termination, Timings,
    UsageSource,
};
use http::{HeaderMap, HeaderValue};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::clock;
use tokenweir_protocol::headers::{RequestId, X_REQUEST_ID};
use tokenweir_protocol::histogram::OutputGapHistogram;
use tokenweir_protocol::openai::{Api, FinishReason, Usage};
use tokenweir_protocol::trace_context::TraceContext;
use tokenweir_routing::{
    Candidate, LoadEstimator, Policy, PrefillCost, PromptFingerprint, ReportedLoad, RoutingContext,
    RoutingRequest,
};

/// Id of the client's span.
pub const PARENT: u64 = 0xb7ad_6b71_6920_3331;

/// The record of a successful stream of 16 tokens that was not queued, and had neither reasoning nor a tool
/// call. All other instants are set.
pub fn streamed() -> RequestRecord {
    #[expect(
        clippy::disallowed_methods,
        reason = "the absolute instant does not matter"
    )]
    let accepted = Instant::now();
    RequestRecord {
        trace: Some(continued_trace()),
        spans: SpanIds {
            server: 0x51,
            inference: 0x52,
        },
        head: head_attributes(),
        route: Some("/v1/chat/completions"),
        api: Some(Api::Chat),
        options: RequestOptions {
            stream: true,
            max_tokens: Some(64),
            ..RequestOptions::default()
        },
        model: ModelLabel::Known("tiny".into()),
        decision: Some(Arc::new(default_decision())),
        attempts: vec![successful_attempt(accepted)],
        status: Some(200),
        outcome: Outcome::Ok,
        end: Termination::Complete,
        timings: stream_timings(accepted),
        observed: Box::new(observed_stream()).into(),
        sample_reason: Some(SampleReason::Sampled),
        bytes_in: 120,
        bytes_out: 4_000,
        ..begun(accepted)
    }
}

/// The record of a POST request whose head was read at `accepted`, before anything else is known.
pub fn begun(accepted: Instant) -> RequestRecord {
    let headers = HeaderMap::from_iter([(X_REQUEST_ID, HeaderValue::from_static("r-1"))]);
    let started = SystemTime::UNIX_EPOCH + Duration::from_hours(500_000);
    let client = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let id = RequestId::from_headers(&headers, 1);
    *RequestRecord::begin(id, client, "POST", started, accepted)
}

/// The only attempt of the streamed fixture request. It succeeds on the first backend.
fn successful_attempt(accepted: Instant) -> Attempt {
    Attempt {
        backend: BackendId::new("vllm-0"),
        address: ("10.0.0.1".into(), 8000),
        provider: "vllm",
        span_id: 0xa1,
        started: at(accepted, 5),
        ended: Some(at(accepted, 410)),
        status: Some(200),
        failure: None,
        proxy: None,
        engine_error: None,
    }
}

/// The instants of the streamed fixture request, whose head was read at `accepted`.
fn stream_timings(accepted: Instant) -> Timings {
    let instant = |millis| Some(at(accepted, millis));
    Timings {
        received: instant(2),
        routed: instant(3),
        sent: instant(10),
        headers: instant(60),
        first_event: instant(85),
        first_output: instant(100),
        first_answer: instant(100),
        first_text: instant(100),
        last_output: instant(400),
        terminal: instant(405),
        ended: instant(410),
        ..Timings::begin(accepted)
    }
}

/// The response of the stream: 16 tokens in 16 events, with 20 ms between them.
fn observed_stream() -> ObservedResponse {
    let mut gaps = OutputGapHistogram::default();
    gaps.record_duration_n(Duration::from_millis(20), 15);
    ObservedResponse {
        is_stream: true,
        events: 19,
        output_events: 16,
        estimated_tokens: 16,
        counted_event_tokens: 16,
        inter_chunk_latency: gaps,
        usage: Usage {
            input: Some(12),
            output: Some(16),
            cached: Some(8),
            cache_created: Some(4),
            reasoning: Some(6),
        },
        usage_source: UsageSource::Exact,
        finish_reasons: vec![Some(FinishReason::Stop)],
        is_complete: true,
        response_id: Some("chatcmpl-1".into()),
        response_model: Some("tiny".into()),
        ..ObservedResponse::default()
    }
}

/// A trace that the client started.
fn continued_trace() -> TraceContext {
    TraceContext {
        trace_id: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c,
        parent_span_id: Some(PARENT),
        linked_parent: None,
        is_sampled: true,
        trace_state: None,
        baggage: None,
        is_propagated: true,
    }
}

fn head_attributes() -> RequestHeadAttributes {
    RequestHeadAttributes {
        version: "1.1",
        host: Some("gateway:8080".into()),
        user_agent: Some("openai-python/2.9".into()),
    }
}

/// A decision for the first of two backends, with predicted TTFTs of 80 ms and 250 ms.
fn default_decision() -> RoutingDecision {
    let condition = BackendCondition {
        kv_usage: Some(0.25),
        waiting: Some(3),
        age: Some(Duration::from_millis(120)),
        ..BackendCondition::default()
    };
    decision(|candidate| candidate, condition)
}

/// A decision between two candidates, to each of which `change` was applied.
pub fn decision(
    change: impl Fn(Candidate) -> Candidate,
    condition: BackendCondition,
) -> RoutingDecision {
    let candidates = [(0, 0.08), (1, 0.25)].map(|(position, base)| {
        change(Candidate {
            position,
            prefill: PrefillCost {
                base,
                per_token: 0.0,
            },
            kv_usage: None,
            ..believed()
        })
    });
    let context = RoutingContext::new(
        Policy::default(),
        candidates.into(),
        RoutingRequest::default(),
    );
    let choice = context.pick().unwrap();
    let fleet = ["vllm-0", "vllm-1"].map(BackendId::new).into();
    RoutingDecision::new(context, choice, condition, &fleet)
}

/// A candidate of a routing decision, with plausible values.
pub fn believed() -> Candidate {
    let now = clock::epoch();
    let prompt = PromptFingerprint::default();
    Candidate {
        in_flight: 2,
        key: 1,
        prompt: 12.0,
        cached: 6.0,
        output: 100.0,
        backlog: 400.0,
        prefill_freshness: 1.0,
        tokens_in_flight: 1_300.0,
        is_calibrated: true,
        has_usage: true,
        idle_seconds: 1.0,
        waiting: 3.0,
        running: 1.0,
        reported: ReportedLoad {
            waiting: 3.0,
            running: 1.0,
            sent_since: 0.0,
        },
        kv_usage: Some(0.25),
        capacity: Some(100_000),
        certainty: 0.9,
        ..LoadEstimator::new(now, Duration::from_secs(5)).candidate(&prompt, now)
    }
}

/// The instant `millis` milliseconds after the request head was read.
pub fn at(accepted: Instant, millis: u64) -> Instant {
    accepted + Duration::from_millis(millis)
}
