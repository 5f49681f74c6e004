//! Tests of the usage filter with recorded and generated streams, in pieces of every size.

use super::usage_filter::MAX_HELD_BYTES;
use crate::observe::ResponseObserver;
use crate::record::{ObservedResponse, RequestOptions, Timings, UsageEventOutcome, UsageLayout};
use bytes::{Bytes, BytesMut};
use serde_json::{Deserializer, Value, json};
use std::path::Path;
use tokenweir_protocol::http1::BodyDecoder;
use tokenweir_protocol::openai::Api;

/// Recorded streams with usage in every event.
const RECORDED_STREAMS: [&str; 4] = [
    "python/chat-stream-continuous-usage",
    "python/interval-stream-continuous-usage",
    "python/spec-stream-continuous-usage",
    "rust/chat-stream-continuous-usage",
];

/// The body of a recording, without the framing of HTTP.
pub(super) fn read_recorded_body(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/wire/{name}.http"));
    let raw = std::fs::read_to_string(path).unwrap();
    let (_, chunks) = raw.split_once("\r\n\r\n").unwrap();
    let mut body = BytesMut::new();
    BodyDecoder::chunked()
        .decode(chunks.as_bytes(), &mut body)
        .unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

/// The options of a request to which the gateway added a request for the usage event or for continuous usage.
/// If the gateway did not request the usage event, the client did.
pub(super) fn options(usage_injected: bool, continuous_usage_injected: bool) -> RequestOptions {
    RequestOptions {
        stream: true,
        usage_requested: !usage_injected,
        usage_injected,
        continuous_usage_injected,
        ..RequestOptions::default()
    }
}

/// Returns `body`, a stream with usage in every event, as the client should receive it. Unlike the usage
/// filter, this function parses each event as JSON.
pub(super) fn expected_stream(body: &str) -> String {
    let fingerprint = body
        .split_once(r#","system_fingerprint":""#)
        .map(|(_, rest)| {
            format!(
                r#","system_fingerprint":"{}""#,
                rest.split_once('"').unwrap().0
            )
        });
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
            if event["choices"][0]["finish_reason"].is_string() {
                expected.push_str(fingerprint.as_deref().unwrap_or_default());
            }
            expected.push_str(&block[value + values.byte_offset()..]);
        }
    }
    expected
}

/// Filters a stream that arrives in these pieces. Returns the bytes for the client, and the
/// observations of the response.
pub(super) fn filter_stream<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (String, ObservedResponse) {
    filter_with(&options(true, true), None, pieces)
}

/// Filters the response to a request with these options, which arrives in these pieces. Returns the
/// bytes for the client, and the observations of the response. `fingerprint`: the
/// `system_fingerprint` that an earlier stream had.
pub(super) fn filter_with<'a>(
    options: &RequestOptions,
    fingerprint: Option<&'static str>,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (String, ObservedResponse) {
    let (frames, observed) = filter_frames(options, fingerprint, pieces);
    (String::from_utf8(frames.concat()).unwrap(), observed)
}

/// Filters a response that arrives in these pieces. Returns the bytes that are forwarded for each
/// piece and at the end of the stream, and the observations of the response.
fn filter_frames<'a>(
    options: &RequestOptions,
    fingerprint: Option<&'static str>,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Vec<u8>>, ObservedResponse) {
    let now = tokenweir_protocol::clock::now();
    let (mut observer, mut timings) = (ResponseObserver::new(Api::Chat), Timings::begin(now));
    observer.on_head("text/event-stream", false);
    observer.remove_injected_usage(options, fingerprint.map(Bytes::from));
    let mut frames = Vec::new();
    for piece in pieces {
        observer.on_data(piece, now, &mut timings);
        frames.push(observer.forward(Bytes::copy_from_slice(piece)).to_vec());
    }
    observer.on_end(now, &mut timings);
    frames.push(observer.flush().to_vec());
    (frames, *observer.into_observed())
}

#[test]
fn usage_is_removed_however_bytes_are_cut() {
    for name in RECORDED_STREAMS {
        let body = read_recorded_body(name);
        let expected = expected_stream(&body);
        assert!(!expected.contains("\"usage\"") && expected.len() < body.len() * 3 / 4);
        for ending in ["\n", "\r\n", "\r"] {
            let (body, expected) = (body.replace('\n', ending), expected.replace('\n', ending));
            // If events arrive in one chunk, the observer parses their usage separately.
            let (_, in_one_chunk) = filter_stream([body.as_bytes()]);
            for size in (1..24).chain([333, 1_000, body.len()]) {
                let (filtered, mut observed) = filter_stream(body.as_bytes().chunks(size));
                assert_eq!(filtered, expected, "{name} in pieces of {size}, {ending:?}");
                // The text sample counts only texts of events that arrive whole.
                observed.text_sample = in_one_chunk.text_sample;
                assert_eq!(observed, in_one_chunk, "{name} in pieces of {size}");
                assert_eq!(observed.usage_event, Some(UsageEventOutcome::Stripped));
                assert_eq!(observed.uncounted_events, 0);
                assert_eq!(
                    u64::from(observed.chunk_tokens.count()),
                    observed.output_events
                );
            }
        }
    }
}

pub(super) const ONE_TOKEN_EVENT: &str =
    r#"{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"completion_tokens":1}}"#;

#[test]
fn filtered_streams_equal_recordings_without_usage() {
    for front_end in ["python", "rust"] {
        let read = |name: &str| read_recorded_body(&format!("{front_end}/{name}"));
        // Without `include_usage`, the option `continuous_usage_stats` only changes how the server batches
        // tokens.
        let expected = read("chat-stream-continuous-only");
        let (filtered, _) = filter_stream([read("chat-stream-continuous-usage").as_bytes()]);
        let id = |stream: &str| stream.split('"').nth(3).unwrap().to_owned();
        let filtered = filtered.replace(&id(&filtered), &id(&expected));
        assert_eq!(filtered, expected, "{front_end}");
    }
}

#[test]
fn long_events_pass_and_are_reported() {
    let long_text = format!("\"{}\"", "x".repeat(MAX_HELD_BYTES + 2_000));
    let long = ONE_TOKEN_EVENT.replace("\"a\"", &long_text);
    let body = format!("data: {long}\n\ndata: {ONE_TOKEN_EVENT}\n\n");
    let (filtered, observed) = filter_stream(body.as_bytes().chunks(1 << 10));
    let expected = expected_stream(&format!("data: {ONE_TOKEN_EVENT}\n\n"));
    assert_eq!(filtered, format!("data: {long}\n\n{expected}"));
    assert_eq!(observed.usage_event, Some(UsageEventOutcome::NotRemoved));
}

#[test]
fn incomplete_last_events_are_forwarded() {
    let body = format!(
        "data: {ONE_TOKEN_EVENT}\n\ndata: {}",
        &ONE_TOKEN_EVENT[..70]
    );
    let complete = expected_stream(&format!("data: {ONE_TOKEN_EVENT}\n\n"));
    let expected = format!("{complete}data: {}", &ONE_TOKEN_EVENT[..70]);
    assert_eq!(filter_stream(body.as_bytes().chunks(9)).0, expected);
}

/// The events of a stream of one front end of vLLM, for requests with and without the usage event.
#[derive(Clone, Copy)]
struct FrontEnd {
    text: &'static str,
    finish: &'static str,
    /// The finish event if the request does not ask for usage.
    plain_finish: &'static str,
    usage_event: &'static str,
}

const PYTHON: FrontEnd = FrontEnd {
    text: r#"{"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null,"token_ids":null}]}"#,
    finish: r#"{"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"b"},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null}]}"#,
    plain_finish: r#"{"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"b"},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null}],"system_fingerprint":"vllm-1-\\\"x"}"#,
    usage_event: r#"{"id":"c","model":"m","choices":[],"usage":{"prompt_tokens":9,"total_tokens":11,"completion_tokens":2},"system_fingerprint":"vllm-1-\\\"x"}"#,
};

const RUST: FrontEnd = FrontEnd {
    text: r#"{"id":"c","choices":[{"index":0,"delta":{"content":"a"}}]}"#,
    finish: r#"{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
    plain_finish: r#"{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
    usage_event: r#"{"id":"c","choices":[],"usage":{"prompt_tokens":9,"total_tokens":11,"completion_tokens":2}}"#,
};

/// Returns these events as the text of a stream. With `tokens`, each event except the usage event
/// has usage with this number of output tokens.
fn stream_of(events: &[&str], tokens: Option<u64>) -> String {
    let write = |event: &&str| {
        let Some(tokens) = tokens.filter(|_| !event.contains(r#""choices":[]"#)) else {
            return format!("data: {event}\n\n");
        };
        let event = event.strip_suffix('}').unwrap_or(event);
        format!(
            "data: {event},\"usage\":{{\"prompt_tokens\":9,\"total_tokens\":{},\
             \"completion_tokens\":{tokens}}}}}\n\n",
            9 + tokens
        )
    };
    events.iter().map(write).collect::<String>() + "data: [DONE]\n\n"
}

#[test]
fn filtered_streams_equal_direct_ones() {
    for front_end in [PYTHON, RUST] {
        let FrontEnd {
            text,
            finish,
            plain_finish,
            usage_event,
        } = front_end;
        let plain = stream_of(&[text, text, plain_finish], None);
        let at_end = [text, text, finish, usage_event];
        // Each case: what the gateway requested, the stream of the backend, and the stream for the client.
        let cases = [
            (
                options(true, false),
                stream_of(&at_end, None),
                plain.clone(),
            ),
            (
                options(true, true),
                stream_of(&at_end, Some(2)),
                plain.clone(),
            ),
            (
                options(false, true),
                stream_of(&at_end, Some(2)),
                stream_of(&at_end, None),
            ),
        ];
        let fingerprints = [
            None,
            (usage_event == PYTHON.usage_event).then_some("\"vllm-1-\\\\\\\"x\""),
        ];
        for (options, sent, expected) in cases {
            for fingerprint in fingerprints {
                for ending in ["\n", "\r\n", "\r"] {
                    let (sent, expected) =
                        (sent.replace('\n', ending), expected.replace('\n', ending));
                    for size in (1..40).chain([200, sent.len()]) {
                        let (filtered, observed) =
                            filter_with(&options, fingerprint, sent.as_bytes().chunks(size));
                        assert_eq!(filtered, expected, "pieces of {size}, {ending:?}");
                        let layout =
                            (!options.continuous_usage_injected).then_some(UsageLayout::AtEnd);
                        assert_eq!(observed.usage_layout, layout);
                        assert_eq!(observed.usage.output, Some(2));
                    }
                }
            }
        }
    }
}

#[test]
fn only_incomplete_events_are_held_back() {
    let at_end = options(true, false);
    let usage_event = format!("data: {}\n\n", RUST.usage_event);
    let pieces: [&[u8]; 5] = [
        b"data: 1\n\ndata: 2",
        b"\n",
        b"\ndata: 3\n\n",
        usage_event.as_bytes(),
        b"data: [DO",
    ];
    let expected: [&[u8]; 6] = [
        b"data: 1\n\n",
        b"",
        b"data: 2\n\ndata: 3\n\n",
        b"",
        b"",
        b"data: [DO",
    ];
    assert_eq!(filter_frames(&at_end, None, pieces).0, expected);
    let long = vec![b'x'; MAX_HELD_BYTES];
    let pieces: [&[u8]; 4] = [b"data: ", &long, b"y", b"y\n\ndata: 2"];
    let (frames, _) = filter_frames(&at_end, None, pieces);
    assert_eq!(frames[1].len(), MAX_HELD_BYTES + 6);
    assert_eq!((&frames[2][..], &frames[3][..]), (&b"y"[..], &b"y\n\n"[..]));
}

#[test]
fn finish_events_wait_for_the_next_event_only() {
    let FrontEnd {
        text,
        finish,
        usage_event,
        ..
    } = PYTHON;
    let at_end = options(true, false);
    // A second choice continues after the end of the first one.
    let sent = stream_of(&[text, finish, text, finish, usage_event], None);
    let (filtered, observed) = filter_with(&at_end, None, [sent.as_bytes()]);
    let plain = PYTHON.plain_finish;
    assert_eq!(filtered, stream_of(&[text, finish, text, plain], None));
    let member = "\"vllm-1-\\\\\\\"x\"";
    assert_eq!(observed.fingerprint.as_deref(), Some(member.as_bytes()));
    // The fingerprint is known in later streams of the server.
    let (filtered, _) = filter_with(&at_end, Some(member), [sent.as_bytes()]);
    assert_eq!(filtered, stream_of(&[text, plain, text, plain], None));
    let (filtered, observed) = filter_with(&at_end, Some(""), [sent.as_bytes()]);
    assert_eq!(filtered, stream_of(&[text, finish, text, plain], None));
    assert_eq!(
        observed.fingerprint.as_deref(),
        Some(member.as_bytes()),
        "another server"
    );
    // A comment must wait while an event before it waits for the fingerprint.
    let commented = sent.replace(usage_event, &format!("{usage_event}\n\n: b"));
    let commented = commented.replace(
        "data: {\"id\":\"c\",\"model\":\"m\",\"choices\":[],",
        ": a\n\ndata: {\"id\":\"c\",\"model\":\"m\",\"choices\":[],",
    );
    let (filtered, _) = filter_with(&at_end, None, commented.as_bytes().chunks(5));
    let expected = stream_of(&[text, finish, text, plain], None);
    assert_eq!(
        filtered,
        expected.replace("data: [DONE]", ": a\n\n: b\n\ndata: [DONE]")
    );
    // Without a usage event, the fingerprint stays unknown but no byte is lost.
    for events in [&[text, finish][..], &[finish]] {
        for end in ["", ": keep-alive\n\n", "data: [DO"] {
            let cut = stream_of(events, None).replace("data: [DONE]\n\n", end);
            for size in [1, 7, cut.len()] {
                let (filtered, observed) = filter_with(&at_end, None, cut.as_bytes().chunks(size));
                assert_eq!((filtered, observed.fingerprint), (cut.clone(), None));
            }
        }
    }
}

#[test]
fn usage_in_every_event_is_not_removed() {
    let FrontEnd {
        text,
        finish,
        usage_event,
        ..
    } = PYTHON;
    let null = text.replace("}]}", "}],\"usage\":null}");
    let events = [text, finish, usage_event];
    let cases = [
        (stream_of(&events, Some(1)), UsageLayout::EveryEvent),
        // A model can stop without any text.
        (
            stream_of(&[RUST.finish, RUST.usage_event], Some(1)),
            UsageLayout::EveryEvent,
        ),
        (
            stream_of(&[&null, finish, usage_event], None),
            UsageLayout::Nulls,
        ),
        (stream_of(&events, None), UsageLayout::AtEnd),
    ];
    for (sent, layout) in cases {
        for options in [options(true, false), options(false, false)] {
            let (filtered, observed) = filter_with(&options, Some(""), [sent.as_bytes()]);
            assert_eq!(observed.usage_layout, Some(layout));
            let is_removed = options.usage_injected && layout != UsageLayout::EveryEvent;
            assert_eq!(filtered.contains("\"choices\":[]"), !is_removed);
        }
    }
}
