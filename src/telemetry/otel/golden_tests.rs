//! Every way to end a request in every shape of it, as text in `golden/{shape}/{ending}.txt`, with
//! the verdict of the tail; and the same stream in other words.

use super::style::{Profile, Semconv, Style};
use super::tail::Tail;
use super::tests::{assert_is_golden, before_output};
use std::time::Duration;
use tokenweir_core::openai::{Api, EngineTimes, InBandError, Parameters};
use tokenweir_core::record::sample::{at, streamed};
use tokenweir_core::record::*;
use tokenweir_core::trace_context::TraceParent;

/// The sample in the shape of this API.
fn shaped(api: Api) -> RequestRecord {
    let mut record = streamed();
    let (route, id) = match api {
        Api::Completions => ("/v1/completions", "cmpl-1"),
        Api::Responses => ("/v1/responses", "resp_1"),
        Api::Messages => ("/v1/messages", "msg_1"),
        _ => ("/v1/chat/completions", "chatcmpl-1"),
    };
    record.api = Some(api);
    record.route = Some(route);
    record.observed.response_id = Some(id.into());
    record.asked.parameters = Parameters {
        temperature: Some(0.7),
        top_p: Some(0.9),
        top_k: Some(40.0),
        seed: Some(-7),
        output: Some("json"),
        reasoning: Some("low"),
        ..Parameters::default()
    };
    record
}

/// Compares the trees of one way to end a request. Their heads were not sampled.
fn assert_golden(ending: &str, change: impl Fn(&mut RequestRecord)) {
    for api in [Api::Chat, Api::Completions, Api::Responses, Api::Messages] {
        let mut record = shaped(api);
        change(&mut record);
        record.slow = SlowCause::of(&record, &SlowLimits::default());
        if let Some(trace) = &mut record.trace {
            trace.is_sampled = false;
        }
        record.kept = Tail::default().judge(&record);
        assert_is_golden(&format!("{}/{ending}", api.as_str()), &record, &Style::default());
    }
}

#[test]
fn a_stream_that_is_whole() {
    assert_golden("stream", |_| {});
}

#[test]
fn an_answer_that_is_no_stream() {
    assert_golden("whole", |record| {
        let timings = &mut record.timings;
        (timings.first_event, timings.first_output, timings.first_answer) = (None, None, None);
        timings.last_output = None;
        record.asked.stream = false;
        let observed = &mut record.observed;
        (observed.is_stream, observed.output_events) = (false, 0);
        observed.gaps = Observed::default().gaps;
    });
}

#[test]
fn a_failure_inside_a_200_has_the_name_that_the_replica_gave_it() {
    assert_golden("error", |record| {
        record.outcome = Outcome::StreamError;
        record.end = End::Left;
        record.observed.usage = Observed::default().usage;
        record.observed.usage_source = UsageSource::Missing;
        record.observed.finish_reasons = vec![None];
        let kind = Some("InternalServerError".into());
        record.observed.error = Some(InBandError { code: None, kind });
        record.timings.terminal = None;
    });
}

#[test]
fn a_client_that_left_in_decode_is_no_error() {
    assert_golden("cancel", |record| {
        record.outcome = Outcome::Cancelled;
        record.end = End::Left;
        record.observed.usage_source = UsageSource::Continuous;
        record.observed.finish_reasons = vec![None];
        record.observed.is_terminal = false;
        record.timings.terminal = None;
    });
}

#[test]
fn a_replica_that_cannot_be_reached_is_one_failed_attempt() {
    assert_golden("retry", |record| {
        let accepted = record.timings.accepted;
        let mut failed = record.attempts[0].clone();
        failed.ended = Some(at(accepted, 7));
        failed.status = None;
        failed.failure = Some("connect_error");
        let second = &mut record.attempts[0];
        second.backend = BackendId::new("vllm-1");
        second.address = ("[::1]".into(), 8001);
        second.provider = "sglang";
        second.span = 0xa2;
        second.started = at(accepted, 8);
        record.attempts.insert(0, failed);
    });
}

#[test]
fn a_request_that_made_room_for_a_better_one_has_no_attempt() {
    assert_golden("shed", |record| {
        let accepted = record.timings.accepted;
        *record = before_output(record.clone());
        record.status = Some(429);
        record.refusal = Some("shed");
        record.outcome = Outcome::Rejected;
        record.end = End::Refused;
        record.attempts.clear();
        record.decision = None;
        let timings = &mut record.timings;
        (timings.queued, timings.dequeued) = (Some(at(accepted, 2)), Some(at(accepted, 9)));
        (timings.routed, timings.sent, timings.headers) = (None, None, None);
        record.bytes_out = 0;
    });
}

#[test]
fn a_silence_is_two_events_with_the_replica_as_it_was_then() {
    assert_golden("stall", |record| {
        let accepted = record.timings.accepted;
        let condition = Condition {
            kv_usage: Some(0.97),
            running: Some(48),
            waiting: Some(12),
            preemptions: Some(7),
            age: Some(Duration::from_millis(80)),
            ..Condition::default()
        };
        record.observed.stalls = vec![Stall {
            since: at(accepted, 120),
            seen: at(accepted, 220),
            until: Some(at(accepted, 300)),
            condition,
        }];
        record.observed.write_stall = Duration::from_millis(30);
        record.observed.last_output_held = Duration::from_millis(30);
        record.observed.engine = Some(EngineTimes {
            queue: Some(Duration::from_millis(40)),
            prefill: Some(Duration::from_millis(45)),
            decode: Some(Duration::from_millis(301)),
        });
    });
}

#[test]
fn the_newer_conventions_have_other_names() {
    let mut record = shaped(Api::Responses);
    record.asked.parameters.previous_response = Some("resp_0".into());
    let style = Style { semconv: Semconv::Latest, profiles: Vec::new() };
    assert_is_golden("latest", &record, &style);
}

#[test]
fn viewers_find_what_they_read_besides() {
    let profiles = vec![Profile::Langfuse, Profile::OpenInference];
    let style = Style { profiles, ..Style::default() };
    assert_is_golden("profiles", &shaped(Api::Chat), &style);
}

#[test]
fn a_caller_that_is_not_part_of_the_trace_is_linked() {
    let mut record = shaped(Api::Chat);
    if let Some(trace) = &mut record.trace {
        trace.parent = None;
        trace.link = Some(TraceParent { trace_id: 0xabc, span_id: 0xdef, is_sampled: true });
    }
    assert_is_golden("linked", &record, &Style::default());
}
