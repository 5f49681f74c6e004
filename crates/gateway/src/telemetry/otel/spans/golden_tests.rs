//! Golden tests of the spans for each way in which a request can end and for each API, with the
//! decision of tail sampling. The golden files are `golden/chat/{termination}.txt`. Further tests
//! compare the spans of one stream with other semantic conventions.

use super::conventions::{Semconv, SpanConventions, ViewerProfile};
use super::tests::{assert_matches_golden, golden_file, refused_by_gateway, render_tree};
use crate::telemetry::otel::sampling::TailSampler;
use std::fs;
use std::time::Duration;
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::openai::{
    Api, EngineTimes, FinishReason, GenerationParameters, InBandError,
};
use tokenweir_protocol::trace_context::TraceParent;
use tokenweir_request::record::fixtures::{at, streamed};
use tokenweir_request::record::*;

/// Each API with the route, the response ID and the operation in its spans.
const APIS: [(Api, &str, &str, &str); 4] = [
    (Api::Chat, "/v1/chat/completions", "chatcmpl-1", "chat"),
    (
        Api::Completions,
        "/v1/completions",
        "cmpl-1",
        "text_completion",
    ),
    (Api::Responses, "/v1/responses", "resp_1", "chat"),
    (Api::Messages, "/v1/messages", "msg_1", "chat"),
];

/// Returns the record of a sample stream, changed to a request of this API.
fn record_for_api(api: Api) -> RequestRecord {
    let mut record = streamed();
    let (_, route, id, _) = APIS.into_iter().find(|row| row.0 == api).unwrap();
    record.api = Some(api);
    record.route = Some(route);
    record.observed.response_id = Some(id.into());
    record.options.parameters = GenerationParameters {
        temperature: Some(0.7),
        top_p: Some(0.9),
        top_k: Some(40.0),
        seed: Some(-7),
        output: Some("json"),
        reasoning: Some("low"),
        stop_sequences: vec!["END".into(), "User:".into()],
        ..GenerationParameters::default()
    };
    record
}

/// Compares the spans of a request after `change` with the golden file named `termination`, for each API. The
/// golden file contains the spans of chat. For other APIs, route, response ID and operation are replaced. Head
/// sampling does not select the trace.
fn assert_golden_for_all_apis(termination: &str, change: impl Fn(&mut RequestRecord)) {
    let golden = format!("chat/{termination}");
    for (api, route, id, operation) in APIS {
        let mut record = record_for_api(api);
        change(&mut record);
        record.slow = SlowCause::from_record(&record, &SlowLimits::default());
        if let Some(trace) = &mut record.trace {
            trace.is_sampled = false;
        }
        record.sample_reason = TailSampler::default().sample(&record);
        if api == Api::Chat {
            assert_matches_golden(&golden, &record, &SpanConventions::default());
        }
        let expected = fs::read_to_string(golden_file(&golden)).unwrap();
        let expected = expected
            .replace("/v1/chat/completions", route)
            .replace("chatcmpl-1", id)
            .replace("`chat tiny`", &format!("`{operation} tiny`"))
            .replace(
                "gen_ai.operation.name=chat",
                &format!("gen_ai.operation.name={operation}"),
            );
        let spans = render_tree(&record, &SpanConventions::default());
        assert_eq!(spans, expected, "{termination} {api:?}");
    }
}

#[test]
fn a_complete_stream_matches_its_file() {
    assert_golden_for_all_apis("stream", |_| {});
}

#[test]
fn a_complete_response_matches_its_file() {
    assert_golden_for_all_apis("whole", |record| {
        let timings = &mut record.timings;
        (
            timings.first_event,
            timings.first_output,
            timings.first_answer,
        ) = (None, None, None);
        timings.last_output = None;
        (record.options.stream, record.options.n) = (false, Some(2));
        let observed = &mut record.observed;
        (observed.is_stream, observed.output_events) = (false, 0);
        observed.finish_reasons = vec![Some(FinishReason::Stop), Some(FinishReason::Length)];
        observed.inter_chunk_latency = ObservedResponse::default().inter_chunk_latency;
    });
}

#[test]
fn an_error_event_gives_the_error_type() {
    assert_golden_for_all_apis("error", |record| {
        record.outcome = Outcome::StreamError;
        record.end = Termination::ClientDisconnected;
        record.observed.usage = ObservedResponse::default().usage;
        record.observed.usage_source = UsageSource::Missing;
        record.observed.finish_reasons = vec![None];
        let kind = Some("InternalServerError".into());
        record.observed.error = Some(InBandError {
            kind,
            ..InBandError::default()
        });
        record.timings.terminal = None;
    });
}

#[test]
fn a_client_disconnect_is_no_error() {
    assert_golden_for_all_apis("cancel", |record| {
        record.outcome = Outcome::Cancelled;
        record.end = Termination::ClientDisconnected;
        record.observed.usage_source = UsageSource::Continuous;
        record.observed.finish_reasons = vec![None];
        record.observed.is_complete = false;
        record.timings.terminal = None;
    });
}

#[test]
fn a_retried_request_has_one_failed_attempt() {
    assert_golden_for_all_apis("retry", |record| {
        let accepted = record.timings.accepted;
        let mut failed = record.attempts[0].clone();
        failed.ended = Some(at(accepted, 7));
        failed.status = None;
        failed.failure = Some("connect_error");
        let second = &mut record.attempts[0];
        second.backend = BackendId::new("vllm-1");
        second.address = ("[::1]".into(), 8001);
        second.provider = "sglang";
        second.span_id = 0xa2;
        second.started = at(accepted, 8);
        record.attempts.insert(0, failed);
    });
}

#[test]
fn a_shed_request_has_no_attempt() {
    assert_golden_for_all_apis("shed", |record| {
        *record = refused_by_gateway(record.clone(), 429, "shed");
        let timings = &mut record.timings;
        timings.queued = Some(at(timings.accepted, 2));
        timings.dequeued = Some(at(timings.accepted, 9));
    });
}

#[test]
fn a_stall_is_two_events_with_load() {
    assert_golden_for_all_apis("stall", |record| {
        let accepted = record.timings.accepted;
        let condition = BackendCondition {
            kv_usage: Some(0.97),
            running: Some(48),
            waiting: Some(12),
            preemptions: Some(7),
            age: Some(Duration::from_millis(80)),
            ..BackendCondition::default()
        };
        record.observed.stalls = vec![Stall {
            last_output_at: at(accepted, 120),
            detected_at: at(accepted, 220),
            ended_at: Some(at(accepted, 300)),
            condition,
        }];
        for (passed, gap) in [(120, None), (300, Some(Duration::from_millis(180)))] {
            record
                .observed
                .chunk_timings
                .record(accepted, at(accepted, passed), gap);
        }
        record.observed.write_stall = Duration::from_millis(30);
        record.observed.last_output_write_stall = Duration::from_millis(30);
        record.observed.engine_times = Some(EngineTimes {
            queue: Some(Duration::from_millis(40)),
            prefill: Some(Duration::from_millis(45)),
            decode: Some(Duration::from_millis(301)),
        });
    });
}

#[test]
fn the_latest_conventions_rename_attributes() {
    let mut record = record_for_api(Api::Responses);
    record.options.parameters.previous_response = Some("resp_0".into());
    let conventions = SpanConventions {
        semconv: Semconv::Latest,
        profiles: Vec::new(),
    };
    assert_matches_golden("latest", &record, &conventions);
}

#[test]
fn viewer_profiles_add_attributes() {
    for (golden, profiles, session) in [
        (
            "profiles",
            vec![ViewerProfile::Langfuse, ViewerProfile::OpenInference],
            Some("session-1"),
        ),
        ("langfuse_conversation", vec![ViewerProfile::Langfuse], None),
    ] {
        let mut record = record_for_api(Api::Chat);
        record.options.identity = RequestIdentity {
            user: Some("user-1".into()),
            session: session.map(Into::into),
            conversation: Some("chat-1".into()),
        };
        let conventions = SpanConventions {
            profiles,
            ..SpanConventions::default()
        };
        assert_matches_golden(golden, &record, &conventions);
    }
}

#[test]
fn the_server_span_links_to_the_client() {
    let mut record = record_for_api(Api::Chat);
    if let Some(trace) = &mut record.trace {
        trace.parent_span_id = None;
        trace.linked_parent = Some(TraceParent {
            trace_id: 0xabc,
            span_id: 0xdef,
            is_sampled: true,
        });
    }
    assert_matches_golden("linked", &record, &SpanConventions::default());
}
