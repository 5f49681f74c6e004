//! Recorded responses of real vLLM servers. For any split of its bytes, each response must give the values
//! that an independent parser finds in it.

use crate::support::recording::{self, Recording};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokenweir_protocol::openai::route::ApiRoute;
use tokenweir_protocol::openai::{Api, FinishReason};
use tokenweir_request::observe::ResponseObserver;
use tokenweir_request::record::{ObservedResponse, Timings};

fn api(recording: &Recording) -> Api {
    match ApiRoute::lookup(&http::Method::POST, &recording.path) {
        Ok((ApiRoute::Forward(api), _)) => api,
        _ => Api::Other,
    }
}

/// Passes the pieces of the body to an observer, one millisecond apart. Returns the observed values, the
/// timings and the start time.
fn observe(recording: &Recording, pieces: &[&[u8]]) -> (ObservedResponse, Timings, Instant) {
    let begin = Instant::now();
    let mut timings = Timings::begin(begin);
    let mut observer = ResponseObserver::new(api(recording));
    let content_type = recording.header("content-type").unwrap_or("");
    observer.on_head(content_type.split(';').next().unwrap_or("").trim(), false);
    let mut now = begin;
    for piece in pieces {
        now += Duration::from_millis(1);
        observer.on_data(piece, now, &mut timings);
    }
    if recording.expected["complete_http"] == json!(true) {
        observer.on_end(now, &mut timings);
    }
    (*observer.into_observed(), timings, begin)
}

/// Returns the observed values that do not depend on time, as JSON.
fn observed_values(observed: &ObservedResponse) -> Value {
    let finish: Vec<Option<&str>> = observed
        .finish_reasons
        .iter()
        .map(|reason| reason.map(FinishReason::as_str))
        .collect();
    json!({
        "stream": observed.is_stream,
        "events": observed.events,
        "comments": observed.comments,
        "output_events": observed.output_events,
        "tokens_in_events": observed.counted_event_tokens,
        "finish_reasons": finish,
        "usage": [observed.usage.input, observed.usage.output, observed.usage.cached,
            observed.usage.reasoning],
        "error": observed.error.as_ref().map(|error| [&error.code, &error.kind]),
        "id": observed.response_id,
        "model": observed.response_model,
        "terminal": observed.is_complete,
    })
}

fn expected_values(expected: &Value) -> Value {
    let finish: Vec<Option<&str>> = expected["finish_reasons"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|raw| raw.as_str().map(|raw| FinishReason::parse(raw).as_str()))
        .collect();
    let tokens = expected["tokens_in_events"]
        .as_array()
        .into_iter()
        .flatten();
    let usage = &expected["usage"];
    let error = &expected["error"];
    json!({
        "stream": expected["stream"],
        "events": expected["events"],
        "comments": expected["comments"],
        "output_events": expected["output_events"],
        "tokens_in_events": tokens.filter_map(Value::as_u64).sum::<u64>(),
        "finish_reasons": finish,
        "usage": [usage["input"], usage["output"], usage["cached"], usage["reasoning"]],
        "error": if error.is_null() { Value::Null } else { json!([error["code"], error["type"]]) },
        "id": expected["response_id"],
        "model": expected["response_model"],
        "terminal": expected["terminal"],
    })
}

#[test]
fn records_agree_with_an_independent_parser() {
    let mut wrong = Vec::new();
    for recording in recording::all() {
        let pieces: Vec<&[u8]> = recording.pieces.iter().map(Vec::as_slice).collect();
        let (observed, ..) = observe(&recording, &pieces);
        let (actual, expected) = (
            observed_values(&observed),
            expected_values(&recording.expected),
        );
        if actual != expected {
            wrong.push(format!(
                "{}\n  actual   {actual}\n  expected {expected}",
                recording.name
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} recordings differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn observed_times_are_those_of_output() {
    let mut tool_calls = 0;
    for recording in recording::all() {
        if recording.expected["stream"] != json!(true) {
            continue;
        }
        // Each piece has exactly one event, so a timestamp identifies its event.
        let body = recording.body();
        let mut pieces = Vec::new();
        let mut start = 0;
        for end in 2..=body.len() {
            let piece = &body[start..end];
            // A block of lines without data is no event. It belongs to the piece of the next event.
            if piece.ends_with(b"\n\n") && piece.windows(5).any(|window| window == b"data:") {
                pieces.push(piece);
                start = end;
            }
        }
        let (_, timings, begin) = observe(&recording, &pieces);
        let index = |mark: Option<Instant>| mark.map(|mark| (mark - begin).as_millis() as u64 - 1);
        let expected = |field: &str| recording.expected[field].as_u64();
        let name = &recording.name;
        assert_eq!(
            index(timings.first_output),
            expected("first_output_event"),
            "{name}"
        );
        assert_eq!(
            index(timings.first_answer),
            expected("first_answer_event"),
            "{name}"
        );
        if recording.path == "/v1/chat/completions" {
            let first = |has: fn(&Value) -> bool| {
                pieces
                    .iter()
                    .position(|piece| chat_deltas(piece).iter().any(has))
                    .map(|at| at as u64)
            };
            let channels = [
                timings.first_text,
                timings.first_reasoning,
                timings.first_tool_call,
            ];
            let expected = [
                first(|delta| is_text(&delta["content"])),
                first(|delta| is_text(&delta["reasoning"])),
                first(|delta| {
                    delta["tool_calls"]
                        .as_array()
                        .is_some_and(|calls| !calls.is_empty())
                }),
            ];
            assert_eq!(channels.map(index), expected, "{name}");
            tool_calls += usize::from(expected[2].is_some());
        }
    }
    assert!(tool_calls > 4, "{tool_calls} recordings with a tool call");
}

fn is_text(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty())
}

fn chat_deltas(event: &[u8]) -> Vec<Value> {
    let text = String::from_utf8_lossy(event);
    let data = text
        .lines()
        .find_map(|line| line.strip_prefix("data: "))
        .unwrap_or_default();
    let event: Value = serde_json::from_str(data).unwrap_or_default();
    let choices = event["choices"].as_array().cloned().unwrap_or_default();
    choices
        .iter()
        .map(|choice| choice["delta"].clone())
        .collect()
}

/// Bytes with a meaning in JSON or in server-sent events.
const STRUCTURAL_BYTES: &[u8] = b"\"\\{}[]:,\n\r d";

#[test]
fn no_corrupted_byte_breaks_the_observer() {
    let recordings: Vec<Recording> = recording::all()
        .into_iter()
        .filter(|recording| recording.body().len() < 20_000)
        .collect();
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..3_000 {
        let recording = &recordings[random.usize(..recordings.len())];
        let mut body = recording.body();
        for _ in 0..random.usize(1..20) {
            if body.is_empty() {
                break;
            }
            let at = random.usize(..body.len());
            match random.u8(..3) {
                0 => body[at] = random.u8(..),
                1 => body.truncate(at),
                _ => body.insert(at, STRUCTURAL_BYTES[random.usize(..STRUCTURAL_BYTES.len())]),
            }
        }
        let size = random.usize(1..200);
        let pieces: Vec<&[u8]> = body.chunks(size).collect();
        let (observed, timings, _) = observe(recording, &pieces);
        assert!(observed.output_events <= observed.events);
        assert!(timings.first_output <= timings.last_output);
    }
}
