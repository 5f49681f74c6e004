//! A hundred thousand generated streams with known contents. They come from every front end and API, in every
//! framing, split at any byte, and ended by any party. Each stream must give exactly one record with the
//! expected values, and the client must receive exactly the bytes of the stream.
//!
//! A seed determines a stream. `Case::draw` writes the stream and notes the meaning of each event. It uses no
//! code of the observer. `expected_record` computes the expected record from the events that arrived.
//! `benches/accuracy` plays these streams in real time.

mod audio;
mod chunks;
mod client;
pub(crate) mod exchange_case;
pub(crate) mod expected_record;
pub(crate) mod expected_stream;
mod framing;
mod members;
mod plan;
mod stream_errors;
mod texts;
mod typed_events;
mod unknown_events;

use client::Seen;
use exchange_case::{Case, Close};
use expected_record::RecordFields;
use fastrand::Rng;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Instant;
use tokenweir_protocol::openai::Api;
use tokenweir_request::observe::{ExchangeRegistry, ObservationSettings};
use tokenweir_request::record::RequestRecord;

/// Maximum number of failed exchanges that are printed.
const MAX_SHOWN: usize = 3;

#[test]
fn chat_streams_give_record_and_bytes() {
    check(Api::Chat, 45_000);
}

#[test]
fn completion_streams_give_record_and_bytes() {
    check(Api::Completions, 25_000);
}

#[test]
fn responses_streams_give_record_and_bytes() {
    check(Api::Responses, 12_000);
}

#[test]
fn messages_streams_give_record_and_bytes() {
    check(Api::Messages, 12_000);
}

#[test]
fn transcription_streams_give_record_and_bytes() {
    check(Api::Audio, 8_000);
}

#[test]
fn unknown_streams_give_record_and_bytes() {
    check(Api::Other, 6_000);
}

/// Runs `count` exchanges, multiplied by the environment variable `GENERATED_STREAMS` if it is set. If
/// exchanges have faults, fails with their seeds and faults.
fn check(api: Api, count: u64) {
    let factor = std::env::var("GENERATED_STREAMS")
        .ok()
        .and_then(|factor| factor.parse().ok());
    let count = count * factor.unwrap_or(1);
    let live = ExchangeRegistry::new(ObservationSettings::default(), Instant::now());
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut wrong, mut shown) = (0, String::new());
    for seed in 0..count {
        let case = Case::draw(api, seed);
        let seen = client::run(&case, &live);
        let expected = RecordFields::expected(&case);
        for kind in case.stream.kinds.iter().copied().chain([expected.ending]) {
            *kinds.entry(kind).or_default() += 1;
        }
        let faults = faults(&case, &seen, &expected, live.open());
        if !faults.is_empty() {
            wrong += 1;
            if wrong <= MAX_SHOWN {
                let body = String::from_utf8_lossy(&case.stream.bytes[..case.arrived]);
                let body: String = body.chars().take(6_000).collect();
                let description = format!(
                    "{api:?} of seed {seed}, {:?} after {} bytes",
                    case.close, case.arrived
                );
                writeln!(shown, "{description}\n{}\n{body}\n", faults.join("\n")).unwrap();
            }
        }
    }
    // Statistics of the generated streams: `cargo test generated -- --nocapture`.
    eprintln!("{count} streams of {api:?}: {kinds:#?}");
    assert!(wrong == 0, "{wrong} of {count} streams:\n{shown}");
    let rarest = kinds.iter().min_by_key(|(_, count)| **count);
    assert!(
        rarest.is_some_and(|(_, times)| *times >= 10),
        "{rarest:?} is too rare to be tested"
    );
}

/// Lists the differences between an exchange and what is expected. `open` is the number of exchanges that the
/// registry still contains.
fn faults(case: &Case, seen: &Seen, expected: &RecordFields, open: usize) -> Vec<String> {
    let mut faults = Vec::new();
    let [record] = &seen.records[..] else {
        return vec![format!("{} records", seen.records.len())];
    };
    let actual = RecordFields::from_record(record);
    if actual != *expected {
        faults.push(format!("actual   {actual:?}\nexpected {expected:?}"));
    }
    if let Some(fault) = wrong_bytes(case, seen, expected) {
        faults.push(fault);
    }
    for (is_right, fault) in [
        (has_names(case, record), "wrong id or model"),
        (open == 0, "an exchange is still open"),
        (
            record.bytes_out == seen.bytes.len() as u64,
            "wrong number of bytes",
        ),
        (
            seen.is_broken == (case.close == Close::Broken),
            "wrong end for the client",
        ),
        (
            is_first_output_reported_at_once(case, seen),
            "the first output was reported late",
        ),
        (record.timings.ended.is_some(), "no end"),
    ] {
        if !is_right {
            faults.push(fault.into());
        }
    }
    faults
}

/// Whether the gateway reported the first output while it read the frame that completes the first event with
/// output. Until this report, the gateway holds the response back.
fn is_first_output_reported_at_once(case: &Case, seen: &Seen) -> bool {
    let mut outputs = case
        .stream
        .events
        .iter()
        .filter(|event| event.meaning.output.is_some());
    let first = outputs
        .next()
        .map(|event| event.complete_at)
        .filter(|at| *at <= case.arrived);
    match (first, &seen.first_outputs[..]) {
        (Some(first), [frame]) => frame.contains(&(first - 1)),
        (first, reports) => first.is_none_or(|_| !case.is_stream()) && reports.is_empty(),
    }
}

/// Whether the record has the id and model of the stream. It must have them when the first event that
/// contains them is complete, and may have them earlier.
fn has_names(case: &Case, record: &RequestRecord) -> bool {
    let observed = [
        &record.observed.response_id,
        &record.observed.response_model,
    ];
    let written = case.stream.names.as_ref().map(|(id, model)| [id, model]);
    let mut whole = case
        .stream
        .events
        .iter()
        .filter(|event| event.complete_at <= case.arrived);
    let is_due = whole.any(|event| event.meaning.has_names);
    (0..2).all(|index| match (observed[index], written) {
        (Some(observed), Some(written)) => **observed == **written[index],
        (observed, _) => observed.is_none() && !is_due,
    })
}

/// Returns what is wrong with the bytes that the client received. `None`: they are right. The client must
/// receive all bytes that arrived, except an injected usage event. If the client disconnects during an event
/// that could be a usage event, it may lack the beginning of that event. It may also lack an event with a
/// finish reason before that event, which waits for the fingerprint.
fn wrong_bytes(case: &Case, seen: &Seen, expected: &RecordFields) -> Option<String> {
    let arrived = &case.stream.bytes[..case.arrived];
    let removed = case
        .stream
        .usage_event
        .clone()
        .filter(|_| expected.usage_event == Some("stripped"));
    let removed = removed.map_or(0..0, |event| event.start..event.end.min(case.arrived));
    let due = [&arrived[..removed.start], &arrived[removed.end..]].concat();
    let is_ended = case.close == Close::Whole;
    let whole = case.stream.events.iter();
    let whole = whole.take_while(|event| event.has_arrived(case.arrived, is_ended));
    let mut whole = whole.collect::<Vec<_>>();
    whole.pop_if(|event| event.meaning.finish.is_some());
    let whole = whole.last().map_or(0, |event| event.complete_at);
    let may_lack =
        case.close == Close::Left && matches!(expected.usage_event, Some("missing" | "stripped"));
    let least = if may_lack {
        whole.saturating_sub(removed.len())
    } else {
        due.len()
    };
    let is_right = due.starts_with(&seen.bytes) && seen.bytes.len() >= least;
    (!is_right).then(|| {
        format!(
            "the client got {} bytes of {}; {removed:?} were to be removed",
            seen.bytes.len(),
            due.len()
        )
    })
}

/// Returns true with this probability in percent.
fn chance(random: &mut Rng, percent: u8) -> bool {
    random.u8(..100) < percent
}
