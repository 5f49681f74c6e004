//! Tests of the usage filter with members in any order and with any white space.

use super::tests::{
    ONE_TOKEN_EVENT, expected_stream, filter_stream, filter_with, options, read_recorded_body,
};
use crate::record::UsageEventOutcome;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

#[test]
fn uneditable_events_pass_and_are_reported() {
    let usage = r#""usage":{"completion_tokens":1}"#;
    let finish = r#""choices":[{"index":0,"delta":{},"finish_reason":"stop"}]"#;
    let cases = [
        // The data has several lines.
        format!("data: {{\ndata: {usage},\ndata: \"choices\":[{{\"index\":0}}]}}\n\n"),
        // The usage event has a member that the client would lose.
        format!("data: {{\"choices\":[],{usage},\"kv_transfer_params\":{{\"a\":1}}}}\n\n"),
        format!("data: {{\"choices\":[],\"audio\":\"x\",{usage}}}\n\n"),
        // The fingerprint cannot be inserted into this event with the finish reason.
        format!(
            "data: {{\ndata: {finish}}}\n\n\
             data: {{\"choices\":[],{usage},\"system_fingerprint\":\"a\"}}\n\n"
        ),
    ];
    for sent in cases {
        for size in [1, 7, sent.len()] {
            let (filtered, observed) = filter_stream(sent.as_bytes().chunks(size));
            assert_eq!(filtered, sent);
            assert_eq!(
                observed.usage_event,
                Some(UsageEventOutcome::NotRemoved),
                "{sent}"
            );
        }
    }
}

/// Each case: an event, and the event that the client should receive.
#[test]
fn usage_is_removed_at_any_position() {
    // A text that resembles the member, or a nested member, is not the usage of the event.
    let choices =
        r#""choices":[{"index":0,"delta":{"content":"\",\"usage\":{}}","usage":{"x":1}}}]"#;
    let usage = r#""usage":{"completion_tokens":1}"#;
    let cases = [
        (format!("{{{usage},{choices}}}"), format!("{{{choices}}}")),
        (
            format!("{{ {usage} , {choices} }}"),
            format!("{{ {choices} }}"),
        ),
        (format!("{{{choices}, {usage}}}"), format!("{{{choices}}}")),
        (
            format!("{{{choices},{usage},\"b\":[1]}}"),
            format!("{{{choices},\"b\":[1]}}"),
        ),
        (
            format!("{{{usage},{choices},{usage}}}"),
            format!("{{{choices}}}"),
        ),
        (
            format!("{{{usage},{usage},{choices},{usage},{usage}}}"),
            format!("{{{choices}}}"),
        ),
        (
            format!("{{{choices},\"us\\u0061ge\":{{\"completion_tokens\":1}}}}"),
            format!("{{{choices}}}"),
        ),
    ];
    for (sent, expected) in cases {
        let body =
            format!("data: {ONE_TOKEN_EVENT}\n\ndata: {sent}\n\ndata: {ONE_TOKEN_EVENT}\n\n");
        let event = expected_stream(&format!("data: {ONE_TOKEN_EVENT}\n\n"));
        for size in [1, 7, body.len()] {
            let (filtered, observed) = filter_stream(body.as_bytes().chunks(size));
            assert_eq!(filtered, format!("{event}data: {expected}\n\n{event}"));
            assert_eq!(
                observed.usage_event,
                Some(UsageEventOutcome::Missing),
                "{sent}"
            );
        }
    }
}

#[test]
fn repeated_usage_events_are_removed() {
    let content = r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#;
    let usage = r#""usage":{"prompt_tokens":9,"completion_tokens":3}"#;
    for event in [
        format!(r#"{{"id":"a","choices":[],{usage}}}"#),
        format!(r#"{{"id":"a","choices":null,{usage}}}"#),
        format!(r#"{{"id":"a","object":"chat.completion.chunk","model":"m",{usage}}}"#),
        format!("{{{usage}}}"),
    ] {
        for repeats in [1, 2] {
            let body = format!("data: {content}\n\n");
            let sent = format!(
                "{body}{}data: [DONE]\n\n",
                format!("data: {event}\n\n").repeat(repeats)
            );
            for size in [1, 7, sent.len()] {
                let pieces = sent.as_bytes().chunks(size);
                let (filtered, observed) = filter_with(&options(true, false), None, pieces);
                assert_eq!(filtered, format!("{body}data: [DONE]\n\n"), "{event}");
                assert_eq!(observed.usage_event, Some(UsageEventOutcome::Stripped));
                assert_eq!(observed.usage.output, Some(3));
            }
        }
    }
}

/// Each case: an event that the client may get with or without requesting usage.
#[test]
fn usage_beside_output_passes_and_is_reported() {
    let usage = r#""usage":{"completion_tokens":3}"#;
    for event in [
        format!(r#"{{"choices":[{{"index":0,"delta":{{}}}}],{usage}}}"#),
        format!(r#"{{"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}],{usage}}}"#),
        format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"a"}}}}],{usage}}}"#),
        format!(r#"{{"message":{{"content":"a"}},{usage}}}"#),
    ] {
        let sent = format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"b\"}}}}]}}\n\ndata: {event}\n\n"
        );
        let (filtered, observed) = filter_with(&options(true, false), None, [sent.as_bytes()]);
        assert_eq!(filtered, sent);
        assert_eq!(
            observed.usage_event,
            Some(UsageEventOutcome::NotRemoved),
            "{event}"
        );
    }
}

#[test]
fn unfinished_usage_events_are_removed() {
    let finish = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    let usage = r#"{"choices":[],"usage":{"completion_tokens":1}}"#;
    let body = format!("data: {finish}\n\ndata: {usage}");
    let (filtered, observed) = filter_with(&options(true, false), None, [body.as_bytes()]);
    assert_eq!(filtered, format!("data: {finish}\n\n"));
    assert_eq!(observed.usage.output, Some(1));
}

/// The bodies of all recorded streams of chat completions and completions.
fn recorded_chunk_streams() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/wire");
    let mut streams = Vec::new();
    for front_end in std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
    {
        for entry in std::fs::read_dir(&front_end).into_iter().flatten() {
            let path = entry.unwrap().path();
            let Ok(text) = std::fs::read_to_string(&path) else {
                continue;
            };
            let is_stream = text.contains("content-type: text/event-stream");
            if path
                .extension()
                .is_some_and(|extension| extension == "http")
                && is_stream
                && text.contains("\r\n0\r\n\r\n")
                && text.contains("\"choices\":[{")
            {
                let name = path.strip_prefix(front_end.parent().unwrap()).unwrap();
                streams.push(read_recorded_body(
                    name.with_extension("").to_str().unwrap(),
                ));
            }
        }
    }
    streams
}

/// Writes a JSON object with its members in random order and with random white space. Returns the
/// text with all members, and the text without the members for which `is_removed` holds. In the
/// second text, `after_choices` follows the member `choices`.
fn write_object(
    random: &mut fastrand::Rng,
    mut members: Vec<(&str, &str)>,
    is_removed: impl Fn(&str) -> bool,
    after_choices: &str,
) -> (String, String) {
    let spaces = [("", ""), (" ", ""), ("", " "), ("  ", "\t")];
    random.shuffle(&mut members);
    let (mut sent, mut expected) = ("{".to_owned(), "{".to_owned());
    let mut has_kept = false;
    for (number, (name, value)) in members.into_iter().enumerate() {
        let (before, after) = spaces[random.usize(..spaces.len())];
        let comma = format!("{before},{after}");
        let member = format!("\"{name}\"{before}:{after}{value}");
        if number > 0 {
            sent.push_str(&comma);
        }
        sent.push_str(&member);
        if !is_removed(name) {
            if has_kept {
                expected.push_str(&comma);
            }
            expected.push_str(&member);
            has_kept = true;
            if name == "choices" {
                expected.push_str(after_choices);
            }
        }
    }
    (sent + "}", expected + "}")
}

/// Filters every recorded stream after shuffling its members. In some streams each event has usage. The usage
/// event has a fingerprint. The test builds the expected stream member by member.
#[test]
fn usage_is_removed_from_any_member_order() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut count = 0;
    for body in recorded_chunk_streams() {
        let has_counts = random.bool();
        let finishes = body.matches("\"finish_reason\":\"").count();
        let is_known = finishes != 1 || random.bool();
        let fingerprint = "\"vllm-9\"";
        let (mut sent, mut expected) = (String::new(), String::new());
        for block in body.split_inclusive("\n\n") {
            let data = block.trim_end().strip_prefix("data: ").unwrap_or_default();
            let event: Value = serde_json::from_str(data).unwrap_or_default();
            if !event["choices"].is_array() {
                if data == "[DONE]" {
                    let usage = r#"{"prompt_tokens":3,"completion_tokens":4,"x":{"y":"}{"}}"#;
                    let known = ("system_fingerprint", fingerprint);
                    let members = vec![("choices", "[]"), ("usage", usage), ("id", "1"), known];
                    let (event, _) = write_object(&mut random, members, |_| false, "");
                    sent.extend(["data: ", &event, "\n\n"]);
                }
                sent.push_str(block);
                expected.push_str(block);
                continue;
            }
            if event["choices"] == json!([]) {
                continue;
            }
            let mut members: BTreeMap<&str, &RawValue> = serde_json::from_str(data).unwrap();
            members.retain(|name, _| !["usage", "system_fingerprint"].contains(name));
            let mut members: Vec<_> = members
                .iter()
                .map(|(name, value)| (*name, value.get()))
                .collect();
            members.push(("unknown", r#"[{"usage":{"a":"],}"}}]"#));
            if has_counts {
                let usage = r#"{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4}"#;
                members.push(("usage", usage));
            }
            let choices = event["choices"].as_array().unwrap();
            let has_finish = choices
                .iter()
                .any(|choice| choice["finish_reason"].is_string());
            let inserted = if has_finish {
                format!(",\"system_fingerprint\":{fingerprint}")
            } else {
                String::new()
            };
            let (event, kept) =
                write_object(&mut random, members, |name| name == "usage", &inserted);
            sent.extend(["data: ", &event, "\n\n"]);
            expected.extend(["data: ", &kept, "\n\n"]);
        }
        if !sent.contains("[DONE]") {
            continue;
        }
        count += 1;
        for size in [random.usize(1..40), 700, sent.len()] {
            let known = is_known.then_some(fingerprint);
            let options = options(true, has_counts);
            let (filtered, observed) = filter_with(&options, known, sent.as_bytes().chunks(size));
            let events = filtered.split("\n\n").zip(expected.split("\n\n"));
            for (event, expected) in events {
                assert_eq!(event, expected, "pieces of {size}, of {sent:.200}");
            }
            assert_eq!(filtered.len(), expected.len());
            assert_eq!(observed.usage_event, Some(UsageEventOutcome::Stripped));
        }
    }
    assert!(count > 40, "{count}");
}
