//! Responses with output that the gateway does not know: in unknown fields and events, or without the end
//! marker of the API. Unknown output must reach the client at once, and is no failure of the backend.

use crate::support::scripted_backend::{
    FINISH, ROLE, ScriptedBackend, Step, WORD, chunk, data, event_stream_head, framed, json,
    stream_of,
};
use crate::support::test_gateway::{
    CHAT, Running, Setup, body_text, read_until, start_before, status,
};
use http::Method;
use tokenweir_gateway::proxy::{ConfiguredRoute, ConfiguredRoutes};
use tokenweir_request::record::{Outcome, UninspectedReason};
use tokenweir_routing::resilience::CircuitBreakerSettings;
use tokio::io::AsyncReadExt;

const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const CONFIGURED: &str = "/v1/audio/speech";
const ASK: &str = r#"{"model":"tiny","stream":true,"messages":[],"input":"a"}"#;

/// Starts a gateway that ejects a backend after one failure. Its configuration adds the route [`CONFIGURED`].
async fn strict(fakes: &[&ScriptedBackend]) -> Running {
    let route = ConfiguredRoute::new(CONFIGURED, vec![Method::POST], None);
    let health = CircuitBreakerSettings {
        consecutive_failures: 1,
        panic_threshold: 0.0,
        ..CircuitBreakerSettings::default()
    };
    let routes = ConfiguredRoutes::new([route].into_iter());
    start_before(
        fakes,
        Setup {
            health,
            routes,
            ..Setup::default()
        },
    )
    .await
}

#[tokio::test]
async fn empty_errors_and_trailing_spaces_are_no_failure() {
    for error in ["null", "{}", "\"\"", "false"] {
        let with_error = |event: &str| event.replacen('{', &format!("{{\"error\":{error},"), 1);
        let events = [with_error(ROLE), with_error(WORD), with_error(FINISH)].map(|it| chunk(&it));
        let ends = ["data:\t[DONE]\n\n", "data:  [DONE] \n\n"].map(|end| framed(&[end]));
        for end in ends {
            let answer = [
                event_stream_head(),
                events.concat(),
                end,
                b"0\r\n\r\n".to_vec(),
            ]
            .concat();
            let fake = ScriptedBackend::answering(answer).await;
            let gateway = strict(&[&fake]).await;
            assert_eq!(status(&gateway.post(CHAT, ASK).await), 200);
            let record = gateway.record().await;
            assert_eq!(
                (record.outcome, record.observed.uninspected_reason),
                (Outcome::Ok, None)
            );
        }
    }
}

fn typed(kind: &str, rest: &str) -> String {
    format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{rest}}}\n\n")
}

/// Builds a chat event whose choice has this delta. `rest` follows the choices in the JSON object.
fn delta(delta: &str, rest: &str) -> String {
    let choice = format!("{{\"index\":0,\"delta\":{delta},\"finish_reason\":null}}");
    data(&format!(
        "{{\"id\":\"c\",\"model\":\"tiny\",\"choices\":[{choice}]{rest}}}"
    ))
}

fn message_start() -> String {
    typed(
        "message_start",
        r#","message":{"id":"m","content":[],"model":"tiny","stop_reason":null,"usage":{"input_tokens":3,"output_tokens":0}}"#,
    )
}

fn response(kind: &str, status: &str) -> String {
    typed(
        kind,
        &format!(r#","response":{{"id":"r","status":"{status}","output":[]}}"#),
    )
}

/// Returns the test cases: the path, events that the gateway knows to have no output, and an event with
/// output that the gateway does not know.
fn unknown_outputs() -> Vec<(&'static str, String, String)> {
    let role = || data(ROLE);
    let begun = || response("response.created", "in_progress");
    let mut cases = Vec::new();
    for unknown in [
        r#"{"audio":{"id":"a","data":"UklG"}}"#,
        r#"{"content":[{"type":"image","image":"UklG"}]}"#,
        r#"{"content":[{"type":"text","text":"UklG"}]}"#,
        r#"{"content":{"parts":["UklG"]}}"#,
        r#"{"images":["UklG"]}"#,
        r#"{"thought":"UklG"}"#,
        r#"{"role":"assistant","speech":"UklG"}"#,
        r#"{"tool_calls":{"name":"UklG"}}"#,
        r#"{"tool_calls":["UklG"]}"#,
        r#""UklG""#,
        r#"["UklG"]"#,
    ] {
        cases.push((CHAT, role(), delta(unknown, "")));
    }
    for unknown in [
        r#"{"choices":[],"audio":{"data":"UklG"}}"#,
        r#"{"choices":[{"index":0,"delta":{},"audio":"UklG"}]}"#,
        r#"{"choices":["UklG"]}"#,
        r#"{"choices":"UklG"}"#,
        r#"{"type":"audio.chunk","data":"UklG"}"#,
        r#"["UklG"]"#,
    ] {
        cases.push((CHAT, role(), data(unknown)));
        cases.push((COMPLETIONS, String::new(), data(unknown)));
    }
    cases.push((
        CHAT,
        role(),
        format!("event: audio\n{}", data(r#"{"b64":"UklG"}"#)),
    ));
    cases.push((
        COMPLETIONS,
        String::new(),
        data(r#"{"choices":[{"index":0,"text":["UklG"]}]}"#),
    ));
    for (kind, rest) in [
        ("response.audio.delta", r#","delta":"UklG""#),
        (
            "response.image_generation_call.partial_image",
            r#","partial_image_b64":"UklG""#,
        ),
        ("response.web_search_call.searching", r#","item_id":"UklG""#),
        ("response.output_text.done", r#","text":"UklG""#),
        (
            "response.output_item.added",
            r#","item":{"type":"x","data":"UklG"}"#,
        ),
        ("omni.frame", r#","frame":"UklG""#),
    ] {
        cases.push((RESPONSES, begun(), typed(kind, rest)));
    }
    for (kind, rest) in [
        (
            "content_block_delta",
            r#","delta":{"type":"signature_delta","signature":"UklG"}"#,
        ),
        (
            "content_block_delta",
            r#","delta":{"type":"citations_delta","citation":{"a":"UklG"}}"#,
        ),
        (
            "content_block_delta",
            r#","delta":{"type":"audio_delta","audio":"UklG"}"#,
        ),
        (
            "content_block_start",
            r#","content_block":{"type":"web_search_tool_result","content":["UklG"]}"#,
        ),
        ("server_event", r#","payload":"UklG""#),
    ] {
        cases.push((MESSAGES, message_start(), typed(kind, rest)));
    }
    // The standard of server-sent events does not define the field name in this line.
    cases.push((CHAT, role(), "{\"text\":\"UklG\"}\n".into()));
    for unknown in [
        "UklG",
        r#"{"a":"UklG"}"#,
        r#"["UklG"]"#,
        r#"{"choices":[],"a":"UklG"}"#,
    ] {
        cases.push((CONFIGURED, String::new(), data(unknown)));
    }
    cases
}

#[tokio::test]
async fn unknown_output_reaches_the_client_at_once() {
    let cases = unknown_outputs();
    // The field `number` of a request selects the response of the backend.
    let sent: Vec<_> = cases
        .iter()
        .map(|(_, empty, unknown)| format!("{empty}{unknown}"))
        .collect();
    let fake = ScriptedBackend::start(move |seen| {
        let ask: serde_json::Value = serde_json::from_slice(&seen.body).unwrap();
        let events = &sent[usize::try_from(ask["number"].as_u64().unwrap()).unwrap()];
        vec![
            Step::Send([event_stream_head(), framed(&[events])].concat()),
            Step::Wait,
            Step::Send(b"0\r\n\r\n".to_vec()),
        ]
    })
    .await;
    let gateway = strict(&[&fake]).await;
    for (number, (path, empty, unknown)) in cases.iter().enumerate() {
        let ask = ASK.replacen('{', &format!("{{\"number\":{number},"), 1);
        let mut client = gateway.begin(path, &ask).await;
        // The backend ends the stream only when the client has received the event.
        let mut answer = read_until(&mut client, "UklG").await;
        fake.go();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(body_text(&answer), format!("{empty}{unknown}"));
        let record = gateway.record().await;
        let observed = &record.observed;
        assert!(record.timings.first_output.is_some(), "{unknown}");
        assert_eq!(
            observed.output_events,
            u64::from(unknown.contains("data")),
            "{unknown}"
        );
        if *path == CONFIGURED {
            assert_eq!(
                (record.outcome, observed.uninspected_reason),
                (Outcome::Ok, None)
            );
        }
    }
}

#[tokio::test]
async fn unknown_output_counts_as_uninspected() {
    let audio = r#"{"choices":[{"index":0,"delta":{"audio":{"data":"UklG"}}}]}"#;
    let sent = stream_of(&[ROLE, WORD, audio, audio, FINISH, "[DONE]"]);
    let fake = ScriptedBackend::answering(sent).await;
    let gateway = strict(&[&fake]).await;
    assert_eq!(status(&gateway.post(CHAT, ASK).await), 200);
    let record = gateway.record().await;
    let observed = &record.observed;
    assert_eq!((record.outcome, observed.output_events), (Outcome::Ok, 3));
    assert_eq!(
        observed.uninspected_reason,
        Some(UninspectedReason::UnknownOutput)
    );
    let counted = "tokenweir_uninspected_responses_total{reason=\"unknown_output\"}";
    gateway.assert_value(counted, 1.0).await;
}

/// The gateway holds back events that have no output. If the backend fails after them, another one serves the
/// request, and the client does not notice.
#[tokio::test]
async fn known_empty_events_are_held_back() {
    let error = r#"{"error":{"message":"boom","type":"InternalServerError","code":500}}"#;
    let empty_block = typed(
        "content_block_start",
        r#","index":0,"content_block":{"type":"text","text":""}"#,
    );
    let cases = [
        (CHAT, data(ROLE)),
        // In the next cases, the event with the role has unknown fields, or fields without a value.
        (
            CHAT,
            data(&ROLE.replacen('{', r#"{"x_server":{"node":7},"stage":"prefill","#, 1)),
        ),
        (
            CHAT,
            data(&ROLE.replace(
                "\"content\":\"\"",
                r#""content":null,"x":null,"y":[],"z":{}"#,
            )),
        ),
        (
            CHAT,
            [
                data(ROLE),
                data("{}"),
                "event: ping\ndata: {}\n\n".into(),
                "data:\n\n".into(),
            ]
            .concat(),
        ),
        (
            COMPLETIONS,
            data(r#"{"id":"c","choices":[],"usage":null,"x":""}"#),
        ),
        (
            RESPONSES,
            response("response.created", "in_progress")
                + &response("response.in_progress", "in_progress"),
        ),
        (
            RESPONSES,
            typed(
                "response.output_item.added",
                r#","item":{"id":"a","type":"message","role":"assistant","status":"in_progress","content":[]}"#,
            ),
        ),
        (
            MESSAGES,
            message_start() + &typed("ping", "") + &empty_block,
        ),
    ];
    for (path, empty) in cases {
        let failed = [event_stream_head(), framed(&[&empty, &data(error)])].concat();
        let good = format!("{empty}{}", data("[DONE]"));
        let whole = [event_stream_head(), framed(&[&good]), b"0\r\n\r\n".to_vec()].concat();
        let (failed, whole) = ([Step::Send(failed)], [Step::Send(whole)]);
        let fakes = ScriptedBackend::first_of_two(failed, whole).await;
        let gateway = strict(&fakes.each_ref()).await;
        let answer = gateway.post(path, ASK).await;
        assert_eq!(body_text(&answer), good, "{path}");
        assert_eq!(gateway.record().await.attempts.len(), 2, "{path}");
    }
}

fn chunked(content_type: &str, text: &str) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let text = if text.is_empty() {
        Vec::new()
    } else {
        framed(&[text])
    };
    [head.into_bytes(), text, b"0\r\n\r\n".to_vec()].concat()
}

/// Whatever such a response contains, the gateway sends the request only once, and the backend stays in
/// service.
#[tokio::test]
async fn unknown_content_with_an_end_is_no_failure() {
    let events = |events: &[&str]| -> String { events.iter().map(|event| data(event)).collect() };
    let null_finish = events(&[ROLE, WORD, "[DONE]"]);
    let without_blank_line = format!("{}data: [DONE]", events(&[ROLE, WORD, FINISH]));
    let message = message_start()
        + &typed(
            "content_block_delta",
            r#","delta":{"type":"text_delta","text":"a"}"#,
        )
        + &typed(
            "message_delta",
            r#","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}"#,
        );
    let speech =
        typed("speech.audio.delta", r#","audio":"UklG""#) + &typed("speech.audio.done", "");
    let stream = "text/event-stream";
    let close_delimited =
        format!("HTTP/1.0 200 OK\r\ncontent-type: {stream}\r\n\r\n{without_blank_line}");
    let cases = [
        (CHAT, chunked(stream, &null_finish), Outcome::Ok),
        (
            CHAT,
            chunked(stream, &events(&[ROLE, WORD, FINISH])),
            Outcome::Ok,
        ),
        (CHAT, chunked(stream, &without_blank_line), Outcome::Ok),
        (CHAT, close_delimited.into_bytes(), Outcome::Ok),
        (CHAT, chunked(stream, &speech), Outcome::Ok),
        // The stream has neither the end marker nor a finish reason. A part may be missing, but no connection
        // broke.
        (
            CHAT,
            chunked(stream, &events(&[ROLE, WORD])),
            Outcome::Truncated,
        ),
        (MESSAGES, chunked(stream, &message), Outcome::Ok),
        (CONFIGURED, chunked(stream, &speech), Outcome::Ok),
        (CONFIGURED, chunked(stream, ""), Outcome::Ok),
        (CONFIGURED, json("200 OK", ""), Outcome::Ok),
        (CONFIGURED, json("200 OK", "{\"a\":"), Outcome::Ok),
        ("/score", json("200 OK", "0.5"), Outcome::Ok),
        ("/score", json("200 OK", "[1,2]"), Outcome::Ok),
        ("/score", json("200 OK", "\u{feff}{\"a\":1}"), Outcome::Ok),
        ("/score", json("200 OK", "{\"score\":NaN}"), Outcome::Ok),
        (
            CHAT,
            json("200 OK", "\u{feff}{\"choices\":[]}"),
            Outcome::Ok,
        ),
    ];
    for (path, raw, outcome) in cases {
        let steps = [Step::Send(raw.clone()), Step::Close];
        let fakes = ScriptedBackend::first_of_two(steps.clone(), steps).await;
        let gateway = strict(&fakes.each_ref()).await;
        for _ in 0..4 {
            assert_eq!(status(&gateway.post(path, ASK).await), 200);
            let record = gateway.record().await;
            let text = String::from_utf8_lossy(&raw);
            assert_eq!(
                (record.outcome, record.attempts.len()),
                (outcome, 1),
                "{path} {text}"
            );
        }
    }
}

/// A broken connection is a failure of the backend, unless the stream was complete before.
#[tokio::test]
async fn a_broken_connection_is_a_failure_unless_complete() {
    let whole = stream_of(&[ROLE, WORD, FINISH, "[DONE]"]);
    let unterminated = whole[..whole.len() - b"0\r\n\r\n".len()].to_vec();
    let cut = [event_stream_head(), framed(&[&data(ROLE), &data(WORD)])].concat();
    for (raw, is_struck) in [(unterminated, false), (cut, true)] {
        let fake = ScriptedBackend::following([Step::Send(raw), Step::Close]).await;
        let gateway = strict(&[&fake]).await;
        gateway.post(CHAT, ASK).await;
        assert_eq!(gateway.record().await.ending(), "truncated_cut");
        let expected = if is_struck { 503 } else { 200 };
        assert_eq!(status(&gateway.post(CHAT, ASK).await), expected);
    }
}
