//! Tests of the continuous usage filter with recorded and generated streams, at every split.

use super::continuous_usage_filter::MAX_HELD_BYTES;
use crate::observe::ResponseObserver;
use crate::openai::Api;
use crate::record::{ObservedResponse, Timings, UsageEventOutcome};
use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Deserializer, Value, json};
use std::path::Path;

/// Recorded streams with usage in every event.
const RECORDED_STREAMS: [&str; 4] = [
    "python/chat-stream-continuous-usage",
    "python/interval-stream-continuous-usage",
    "python/spec-stream-continuous-usage",
    "rust/chat-stream-continuous-usage",
];

/// The body of a recording, without the framing of HTTP.
fn read_recorded_body(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/wire/{name}.http"));
    let raw = std::fs::read_to_string(path).unwrap();
    let mut rest = raw.split_once("\r\n\r\n").unwrap().1;
    let mut body = String::new();
    loop {
        let (size, chunks) = rest.split_once("\r\n").unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return body;
        }
        body.push_str(&chunks[..size]);
        rest = &chunks[size + 2..];
    }
}

/// The stream that the client should receive. It is computed by another method, which parses each
/// event as JSON.
fn expected_stream(body: &str) -> String {
    let mut expected = String::new();
    for block in body.split_inclusive("\n\n") {
        let data = block.trim_end().strip_prefix("data: ").unwrap_or_default();
        let event: Value = serde_json::from_str(data).unwrap_or_default();
        if !event["usage"].is_object() {
            expected.push_str(block);
        } else if event["choices"] != json!([]) {
            let start = block.find(r#","usage":"#).unwrap();
            let value = start + r#","usage":"#.len();
            let mut values = Deserializer::from_str(&block[value..]).into_iter::<Value>();
            assert_eq!(values.next().unwrap().unwrap(), event["usage"]);
            expected.push_str(&block[..start]);
            expected.push_str(&block[value + values.byte_offset()..]);
        }
    }
    expected
}

/// The bytes that the client receives of a stream in these pieces, and the observations.
fn filter_stream<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (String, ObservedResponse) {
    let now = crate::clock::now();
    let (mut observer, mut timings) = (ResponseObserver::new(Api::Chat), Timings::begin(now));
    observer.on_head("text/event-stream", false);
    observer.remove_all_usage();
    let mut filtered = Vec::new();
    for piece in pieces {
        observer.on_data(piece, now, &mut timings);
        filtered.extend(observer.forward(Bytes::copy_from_slice(piece)));
    }
    filtered.extend(observer.flush());
    (String::from_utf8(filtered).unwrap(), observer.into_observed())
}

/// The observations of a body that arrives in one chunk. The usage of its events is then parsed
/// separately.
fn observed_in_one_chunk(body: &str) -> ObservedResponse {
    filter_stream([body.as_bytes()]).1
}

#[test]
fn usage_is_removed_from_recorded_streams_however_their_bytes_are_cut() {
    for name in RECORDED_STREAMS {
        let body = read_recorded_body(name);
        let expected = expected_stream(&body);
        assert!(!expected.contains("\"usage\"") && expected.len() < body.len() * 3 / 4);
        for ending in ["\n", "\r\n", "\r"] {
            let (body, expected) = (body.replace('\n', ending), expected.replace('\n', ending));
            for size in (1..24).chain([333, 1_000, body.len()]) {
                let (filtered, observed) = filter_stream(body.as_bytes().chunks(size));
                assert_eq!(filtered, expected, "{name} in pieces of {size}, {ending:?}");
                assert_eq!(observed, observed_in_one_chunk(&body), "{name} in pieces of {size}");
                assert_eq!(observed.usage_event, Some(UsageEventOutcome::Stripped));
                assert_eq!(observed.uncounted_events, 0);
                assert_eq!(u64::from(observed.chunk_tokens.count()), observed.output_events);
            }
        }
    }
}

#[test]
fn usage_is_removed_wherever_a_frame_ends() {
    let body = read_recorded_body(RECORDED_STREAMS[0]);
    let first: String = body.split_inclusive("\n\n").take(3).collect();
    let expected = expected_stream(&first);
    for ending in ["\n", "\r\n", "\r"] {
        let (first, expected) = (first.replace('\n', ending), expected.replace('\n', ending));
        for cut in 0..=first.len() {
            let (before, after) = first.as_bytes().split_at(cut);
            assert_eq!(filter_stream([before, after]).0, expected, "{ending:?} cut at {cut}");
        }
    }
}

const ONE_TOKEN_EVENT: &str =
    r#"{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"completion_tokens":1}}"#;

#[test]
fn an_event_of_an_unknown_layout_passes_as_it_came_and_is_reported() {
    for event in [
        // The member is the first, is written with spaces, or has its key escaped.
        r#"{"usage":{"completion_tokens":1},"choices":[{"index":0,"delta":{"content":"a"}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"a"}}], "usage": {"completion_tokens": 1}}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"a"}}],"us\u0061ge":{"completion_tokens":1}}"#,
    ] {
        let body =
            format!("data: {ONE_TOKEN_EVENT}\n\ndata: {event}\n\ndata: {ONE_TOKEN_EVENT}\n\n");
        let filtered_event = expected_stream(&format!("data: {ONE_TOKEN_EVENT}\n\n"));
        let (filtered, observed) = filter_stream([body.as_bytes()]);
        assert_eq!(filtered, format!("{filtered_event}data: {event}\n\n{filtered_event}"));
        assert_eq!(observed.usage_event, Some(UsageEventOutcome::NotRemoved), "{event}");
    }
}

#[test]
fn an_event_that_is_too_long_to_hold_passes_in_parts_and_is_reported() {
    let long_text = format!("\"{}\"", "x".repeat(MAX_HELD_BYTES + 2_000));
    let long = ONE_TOKEN_EVENT.replace("\"a\"", &long_text);
    let body = format!("data: {long}\n\ndata: {ONE_TOKEN_EVENT}\n\n");
    let (filtered, observed) = filter_stream(body.as_bytes().chunks(1 << 10));
    let expected = expected_stream(&format!("data: {ONE_TOKEN_EVENT}\n\n"));
    assert_eq!(filtered, format!("data: {long}\n\n{expected}"));
    assert_eq!(observed.usage_event, Some(UsageEventOutcome::NotRemoved));
}

#[test]
fn the_bytes_of_an_event_that_does_not_end_are_not_lost() {
    let body = format!("data: {ONE_TOKEN_EVENT}\n\ndata: {}", &ONE_TOKEN_EVENT[..70]);
    let complete = expected_stream(&format!("data: {ONE_TOKEN_EVENT}\n\n"));
    let expected = format!("{complete}data: {}", &ONE_TOKEN_EVENT[..70]);
    assert_eq!(filter_stream(body.as_bytes().chunks(9)).0, expected);
}

/// A generated block without the `usage` member, and the same block with it.
fn block() -> impl Strategy<Value = (String, String)> {
    let text = prop_oneof![
        Just("usage"),
        Just(r#"a,"usage":{"completion_tokens":9}"#),
        Just("}}\\\"{"),
        Just("\u{e9}\u{4e16}"),
        Just(""),
    ];
    let usage = prop_oneof![
        Just(r#","usage":{"prompt_tokens":1,"completion_tokens":2}"#),
        Just(r#","usage":{"x":{"y":{}},"z":"}{\"","completion_tokens":2}"#),
        Just(r#","usage":{}"#),
    ];
    let nested = prop_oneof![Just(""), Just(r#","usage":{"completion_tokens":7}"#)];
    let later_members = prop_oneof![Just(""), Just(r#","prompt_text":"}\n\"{","a":{"b":[1]}"#)];
    let event =
        (text, usage, nested, later_members).prop_map(|(text, usage, nested, later_members)| {
            let text = json!(text);
            let event_start = format!(
                r#"data: {{"choices":[{{"index":0,"delta":{{"content":{text}}}{nested}}}]"#
            );
            (
                format!("{event_start}{later_members}}}\n\n"),
                format!("{event_start}{usage}{later_members}}}\n\n"),
            )
        });
    let other = prop_oneof![
        Just(": keep-alive\n\n"),
        Just("\n"),
        Just("data: [DONE]\n\n"),
        Just("data: {\"choices\":[{\"index\":0,\"delta\":{}}],\"usage\":null}\n\n"),
        Just("data: {\n\n"),
    ];
    prop_oneof![4 => event, 1 => other.prop_map(|block| (block.to_owned(), block.to_owned()))]
}

proptest! {
    #[test]
    fn exactly_the_outermost_usage_is_removed_however_the_bytes_are_cut(
        blocks in proptest::collection::vec(block(), 0..6),
        has_usage_event in any::<bool>(),
        ending in prop_oneof![Just("\n"), Just("\r"), Just("\r\n")],
        cuts in proptest::collection::vec(0_usize..800, 0..8),
    ) {
        let (expected, mut sent): (Vec<String>, Vec<String>) = blocks.into_iter().unzip();
        if has_usage_event {
            sent.push("data: {\"choices\":[],\"usage\":{\"completion_tokens\":2}}\n\n".into());
        }
        let expected = expected.concat().replace('\n', ending);
        let sent = sent.concat().replace('\n', ending);
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(sent.len())).collect();
        cuts.extend([0, sent.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|pair| &sent.as_bytes()[pair[0]..pair[1]]);
        let (filtered, observed) = filter_stream(pieces);
        prop_assert_eq!(filtered, expected);
        prop_assert_eq!(observed, observed_in_one_chunk(&sent));
    }
}
