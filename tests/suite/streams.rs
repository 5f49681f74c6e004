//! Every recorded answer of a real vLLM gives the facts that an independent reading finds in it,
//! however its bytes are cut.

use crate::support::recording::{self, Recording};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokenweir_core::observe::Observer;
use tokenweir_core::openai::route::Route;
use tokenweir_core::openai::{Api, Finish};
use tokenweir_core::record::{Observed, Timings};

fn api(recording: &Recording) -> Api {
    match Route::of(&http::Method::POST, &recording.path) {
        Ok((Route::Forward(api), _)) => api,
        _ => Api::Other,
    }
}

/// Observes the body in `pieces`, one millisecond apart. Also gives how many events, those in one
/// piece at a time, had been seen at each mark.
fn observe(recording: &Recording, pieces: &[&[u8]]) -> (Observed, Timings, Instant) {
    let begin = Instant::now();
    let mut timings = Timings::begin(begin);
    let mut observer = Observer::new(api(recording));
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
    (observer.into_observed(), timings, begin)
}

/// What does not depend on when the bytes came.
fn facts(observed: &Observed) -> Value {
    let finish: Vec<Option<&str>> =
        observed.finish_reasons.iter().map(|reason| reason.map(Finish::as_str)).collect();
    json!({
        "stream": observed.is_stream,
        "events": observed.events,
        "comments": observed.comments,
        "output_events": observed.output_events,
        "tokens_in_events": observed.tokens_in_events,
        "finish_reasons": finish,
        "usage": [observed.usage.input, observed.usage.output, observed.usage.cached,
            observed.usage.reasoning],
        "error": observed.error.as_ref().map(|error| [&error.code, &error.kind]),
        "id": observed.response_id,
        "model": observed.response_model,
        "terminal": observed.is_terminal,
    })
}

fn expected_facts(expected: &Value) -> Value {
    let finish: Vec<Option<&str>> = expected["finish_reasons"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|raw| raw.as_str().map(|raw| Finish::of(raw).as_str()))
        .collect();
    let tokens = expected["tokens_in_events"].as_array().into_iter().flatten();
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
fn a_recorded_answer_gives_the_facts_that_an_independent_reading_finds() {
    let mut wrong = Vec::new();
    for recording in recording::all() {
        let pieces: Vec<&[u8]> = recording.pieces.iter().map(Vec::as_slice).collect();
        let (observed, ..) = observe(&recording, &pieces);
        let (seen, expected) = (facts(&observed), expected_facts(&recording.expected));
        if seen != expected {
            wrong.push(format!("{}\n  seen     {seen}\n  expected {expected}", recording.name));
        }
    }
    assert!(wrong.is_empty(), "{} recordings differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_marks_of_a_recorded_stream_are_at_the_events_that_carry_output() {
    for recording in recording::all() {
        if recording.expected["stream"] != json!(true) {
            continue;
        }
        // One event per piece, so that the time of a mark tells its event.
        let body = recording.body();
        let mut pieces = Vec::new();
        let mut start = 0;
        for end in 2..=body.len() {
            let piece = &body[start..end];
            // A block without data is no event: it goes with the event after it.
            if piece.ends_with(b"\n\n") && piece.windows(5).any(|window| window == b"data:") {
                pieces.push(piece);
                start = end;
            }
        }
        let (_, timings, begin) = observe(&recording, &pieces);
        let index = |mark: Option<Instant>| mark.map(|mark| (mark - begin).as_millis() as u64 - 1);
        let expected = |field: &str| recording.expected[field].as_u64();
        let name = &recording.name;
        assert_eq!(index(timings.first_output), expected("first_output_event"), "{name}");
        assert_eq!(index(timings.first_answer), expected("first_answer_event"), "{name}");
    }
}

#[test]
fn cutting_a_recorded_stream_at_any_byte_never_changes_its_facts() {
    for recording in recording::all() {
        if recording.expected["stream"] != json!(true) {
            continue;
        }
        let body = recording.body();
        let expected = expected_facts(&recording.expected);
        let check = |pieces: &[&[u8]], cut: usize| {
            let (observed, ..) = observe(&recording, pieces);
            assert_eq!(facts(&observed), expected, "{} cut at {cut}", recording.name);
        };
        // Every single cut of short streams, and of long ones a sample with a prime stride.
        let stride = if body.len() < 8_000 { 1 } else { 997 };
        for cut in (0..body.len()).step_by(stride) {
            check(&[&body[..cut], &body[cut..]], cut);
        }
        for size in [1, 2, 7, 13, 100] {
            check(&body.chunks(size).collect::<Vec<_>>(), size);
        }
    }
}

#[test]
fn line_endings_and_a_byte_order_mark_never_change_the_facts() {
    for recording in recording::all() {
        if recording.expected["stream"] != json!(true) {
            continue;
        }
        let body = String::from_utf8(recording.body()).unwrap();
        let expected = expected_facts(&recording.expected);
        for ending in ["\r\n", "\r"] {
            let other = format!("\u{FEFF}{}", body.replace('\n', ending));
            for size in [1, 64, other.len().max(1)] {
                let pieces: Vec<&[u8]> = other.as_bytes().chunks(size).collect();
                let (observed, ..) = observe(&recording, &pieces);
                assert_eq!(facts(&observed), expected, "{} with {ending:?}", recording.name);
            }
        }
    }
}

/// The bytes that mean something to the readers.
const MARKS: &[u8] = b"\"\\{}[]:,\n\r d";

#[test]
fn no_damage_to_a_recorded_answer_stops_its_observer() {
    let recordings: Vec<Recording> =
        recording::all().into_iter().filter(|recording| recording.body().len() < 20_000).collect();
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
                _ => body.insert(at, MARKS[random.usize(..MARKS.len())]),
            }
        }
        let size = random.usize(1..200);
        let pieces: Vec<&[u8]> = body.chunks(size).collect();
        let (observed, timings, _) = observe(recording, &pieces);
        assert!(observed.output_events <= observed.events);
        assert!(timings.first_output <= timings.last_output);
    }
}
