//! A record for tests: one request of which everything is known, to be changed by each test.

#![expect(
    clippy::unwrap_used,
    clippy::wildcard_imports,
    clippy::missing_panics_doc,
    reason = "fixtures of tests, which fail by a panic"
)]

use super::*;
use crate::headers::X_REQUEST_ID;
use crate::openai::Usage;
use crate::routing::{Ask, Candidate, LastSaid, Policy, Prefill, Question};
use crate::spread::Gaps;
use http::{HeaderMap, HeaderValue};
use std::net::Ipv4Addr;

/// The caller's span.
pub const PARENT: u64 = 0xb7ad_6b71_6920_3331;

/// A stream of 16 tokens that went well; every moment is known.
pub fn streamed() -> RequestRecord {
    #[expect(clippy::disallowed_methods, reason = "any moment will do")]
    let accepted = Instant::now();
    let moment = |millis| Some(at(accepted, millis));
    let mut gaps = Gaps::default();
    gaps.add_gap(Duration::from_millis(20), 15);
    RequestRecord {
        request_id: RequestId::of(
            &HeaderMap::from_iter([(X_REQUEST_ID, HeaderValue::from_static("r-1"))]),
            1,
        ),
        trace: Some(continued()),
        spans: [0x51, 0x52],
        head: head(),
        client: IpAddr::V4(Ipv4Addr::LOCALHOST),
        method: "POST",
        route: Some("/v1/chat/completions"),
        api: Some(Api::Chat),
        asked: Asked { stream: true, max_tokens: Some(64), ..Asked::default() },
        model: ModelLabel::known("tiny".into()),
        decision: Some(Arc::new(usual_decision())),
        tier: Tier::default(),
        caller: None,
        attempts: vec![Attempt {
            backend: BackendId::new("vllm-0"),
            address: ("10.0.0.1".into(), 8000),
            provider: "vllm",
            span: 0xa1,
            started: at(accepted, 5),
            ended: moment(410),
            status: Some(200),
            failure: None,
        }],
        not_retried: None,
        status: Some(200),
        refusal: None,
        outcome: Outcome::Ok,
        end: End::Whole,
        started: SystemTime::UNIX_EPOCH + Duration::from_hours(500_000),
        timings: Timings {
            accepted,
            received: moment(2),
            queued: None,
            dequeued: None,
            routed: moment(3),
            sent: moment(10),
            headers: moment(60),
            first_event: moment(85),
            first_output: moment(100),
            first_answer: moment(100),
            last_output: moment(400),
            terminal: moment(405),
            ended: moment(410),
        },
        observed: Observed {
            is_stream: true,
            events: 19,
            output_events: 16,
            estimated_tokens: 16,
            tokens_in_events: 16,
            gaps,
            usage: Usage {
                input: Some(12),
                output: Some(16),
                cached: Some(8),
                cache_created: Some(4),
                reasoning: Some(6),
            },
            usage_source: UsageSource::Exact,
            finish_reasons: vec![Some(Finish::Stop)],
            is_terminal: true,
            response_id: Some("chatcmpl-1".into()),
            response_model: Some("tiny".into()),
            ..Observed::default()
        },
        condition: Condition::default(),
        recent: RecentTimes::default(),
        slow: None,
        kept: Some(Kept::Sampled),
        captured: None,
        prompt: None,
        text_for: TextFor::default(),
        bytes_in: 120,
        bytes_out: 4_000,
    }
}

/// A trace that the caller began.
fn continued() -> TraceContext {
    TraceContext {
        trace_id: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c,
        parent: Some(PARENT),
        link: None,
        is_sampled: true,
        state: None,
        baggage: None,
        is_passed_on: true,
    }
}

fn head() -> Head {
    Head {
        version: "1.1",
        host: Some("gateway:8080".into()),
        user_agent: Some("openai-python/2.9".into()),
    }
}

/// The first of two, which was predicted to answer after 80 ms, and the other after 250 ms.
fn usual_decision() -> Decision {
    let condition = Condition {
        kv_usage: Some(0.25),
        waiting: Some(3),
        age: Some(Duration::from_millis(120)),
        ..Condition::default()
    };
    decision(|candidate| candidate, condition)
}

/// A decision between two candidates that are changed like this.
pub fn decision(change: impl Fn(Candidate) -> Candidate, condition: Condition) -> Decision {
    let candidates = [(0, 0.08), (1, 0.25)].map(|(place, base)| {
        change(Candidate {
            place,
            prefill: Prefill { base, per_token: 0.0 },
            kv_usage: None,
            ..believed()
        })
    });
    let question = Question::new(Policy::default(), candidates.into(), Ask::default());
    let choice = question.pick().unwrap();
    Decision::new(
        question,
        choice,
        condition,
        &["vllm-0", "vllm-1"].map(BackendId::new).into(),
        &[],
    )
}

/// What may be believed of a replica.
pub fn believed() -> Candidate {
    Candidate {
        place: 0,
        in_flight: 2,
        weight: 1,
        has_adapter: true,
        key: 1,
        prompt: 12.0,
        cached: 6.0,
        output: 100.0,
        backlog: 400.0,
        prefill: Prefill::default(),
        is_tried: true,
        is_told: true,
        rested: 1.0,
        waiting: 3.0,
        running: 1.0,
        said: LastSaid { waiting: 3.0, running: 1.0, sent_since: 0.0 },
        kv_usage: Some(0.25),
        capacity: Some(100_000),
        certainty: 0.9,
        slot_wait: 0.0,
        overdue: 0.0,
    }
}

/// A moment, in milliseconds since the request head was read.
pub fn at(accepted: Instant, millis: u64) -> Instant {
    accepted + Duration::from_millis(millis)
}
