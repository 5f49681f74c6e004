//! A hundred thousand generated streams, each with a known meaning: of every front end and shape,
//! written and cut in every way, ended by everybody who can end them. Each must give exactly one
//! record, that says exactly what the stream meant, and the client must get exactly its bytes.
//!
//! A seed makes a stream: `Case::draw` writes it and knows, event by event, what it says; it uses
//! no code of the observer. `facts` adds up the events that came, and so tells the record.

mod audio;
mod case;
mod chunks;
mod client;
mod damage;
mod facts;
mod framing;
mod plan;
mod story;
mod texts;
mod typed;

use case::{Case, Close};
use client::Seen;
use facts::Facts;
use fastrand::Rng;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Instant;
use tokenweir_core::observe::{Live, Settings};
use tokenweir_core::openai::Api;
use tokenweir_core::record::RequestRecord;

/// Failures that are shown.
const MAX_SHOWN: usize = 3;

#[test]
fn every_generated_chat_stream_gives_its_record() {
    check(Api::Chat, 45_000);
}

#[test]
fn every_generated_completion_stream_gives_its_record() {
    check(Api::Completions, 25_000);
}

#[test]
fn every_generated_responses_stream_gives_its_record() {
    check(Api::Responses, 12_000);
}

#[test]
fn every_generated_messages_stream_gives_its_record() {
    check(Api::Messages, 12_000);
}

#[test]
fn every_generated_transcription_stream_gives_its_record() {
    check(Api::Audio, 8_000);
}

/// Lets this many exchanges take place, and fails with the seeds of those that went wrong.
fn check(api: Api, count: u64) {
    let live = Live::new(Settings::default(), Instant::now());
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut wrong, mut shown) = (0, String::new());
    for seed in 0..count {
        let case = Case::draw(api, seed);
        let seen = client::run(&case, &live);
        let expected = Facts::expected(&case);
        for kind in case.story.kinds.iter().copied().chain([expected.ending]) {
            *kinds.entry(kind).or_default() += 1;
        }
        let faults = faults(&case, &seen, &expected, live.open());
        if !faults.is_empty() {
            wrong += 1;
            if wrong <= MAX_SHOWN {
                let body = String::from_utf8_lossy(&case.story.bytes[..case.arrived]);
                let body: String = body.chars().take(6_000).collect();
                let stream = format!(
                    "{api:?} of seed {seed}, {:?} after {} bytes",
                    case.close, case.arrived
                );
                writeln!(shown, "{stream}\n{}\n{body}\n", faults.join("\n")).unwrap();
            }
        }
    }
    // For whoever asks what was generated: `cargo test generated -- --nocapture`.
    eprintln!("{count} streams of {api:?}: {kinds:#?}");
    assert!(wrong == 0, "{wrong} of {count} streams:\n{shown}");
    let rarest = kinds.iter().min_by_key(|(_, count)| **count);
    assert!(rarest.is_some_and(|(_, times)| *times >= 10), "{rarest:?} is too rare to be proved");
}

/// What is wrong with an exchange that took place.
fn faults(case: &Case, seen: &Seen, expected: &Facts, open: usize) -> Vec<String> {
    let mut faults = Vec::new();
    let [record] = &seen.records[..] else {
        return vec![format!("{} records", seen.records.len())];
    };
    let said = Facts::seen(record);
    if said != *expected {
        faults.push(format!("seen     {said:?}\nexpected {expected:?}"));
    }
    if let Some(fault) = wrong_bytes(case, seen, expected) {
        faults.push(fault);
    }
    for (is_right, what) in [
        (has_names(case, record), "the id or the model is wrong"),
        (open == 0, "an exchange is still open"),
        (record.bytes_out == seen.bytes.len() as u64, "the bytes are miscounted"),
        (seen.is_broken == (case.close == Close::Broken), "the client was told of another end"),
        (seen.first_outputs == usize::from(expected.output_events > 0), "first output told wrong"),
        (record.timings.ended.is_some(), "no end"),
    ] {
        if !is_right {
            faults.push(what.into());
        }
    }
    faults
}

/// The names are told once an event that carries them is whole, or already while it comes.
fn has_names(case: &Case, record: &RequestRecord) -> bool {
    let told = [&record.observed.response_id, &record.observed.response_model];
    let written = case.story.names.as_ref().map(|(id, model)| [id, model]);
    let mut whole = case.story.events.iter().filter(|event| event.complete_at <= case.arrived);
    let is_due = whole.any(|event| event.meaning.has_names);
    (0..2).all(|which| match (told[which], written) {
        (Some(told), Some(written)) => **told == **written[which],
        (told, _) => told.is_none() && !is_due,
    })
}

/// The client must get what came, but for a usage event that it did not ask for. If it leaves
/// while an event that may be that one is not whole, it lacks the beginning of that event.
fn wrong_bytes(case: &Case, seen: &Seen, expected: &Facts) -> Option<String> {
    let came = &case.story.bytes[..case.arrived];
    let taken = case.story.usage_event.clone().filter(|_| expected.usage_event == Some("stripped"));
    let taken = taken.map_or(0..0, |event| event.start..event.end.min(case.arrived));
    let due = [&came[..taken.start], &came[taken.end..]].concat();
    let last_event = case.story.events.iter().map(|event| event.complete_at);
    let whole = last_event.take_while(|end| *end <= case.arrived).last().unwrap_or(0);
    let may_lack = case.close == Close::Left && expected.usage_event == Some("missed");
    let least = if may_lack { whole } else { due.len() };
    let is_right = due.starts_with(&seen.bytes) && seen.bytes.len() >= least;
    (!is_right).then(|| {
        format!(
            "the client got {} bytes of {}, of which {taken:?} were to be taken",
            seen.bytes.len(),
            due.len()
        )
    })
}

/// Whether something of this chance, in percent, happens.
fn chance(random: &mut Rng, percent: u8) -> bool {
    random.u8(..100) < percent
}
