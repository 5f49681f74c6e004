//! Usage injection: the gateway requests usage for a stream, records it, and removes the usage
//! event for a client that did not request it. All other bytes pass unchanged.

use crate::support::record_facts;
use crate::support::recording::{self, Recording};
use crate::support::scripted_backend::{
    FINISH, LLAMA_CPP, ROLE, ScriptedBackend, Seen, Step, USAGE, VLLM, WORD, event_stream_head,
    framed, json, stream_of,
};
use crate::support::test_gateway::{CHAT, Running, Setup, body, post, start, start_with, status};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use std::time::Duration;
use tokenweir_core::record::{Outcome, RequestRecord, UsageEventOutcome, UsageSource};
use tokenweir_core::routing::{Policy, PolicyKind};

const PLAIN: &str = r#"{"model":"tiny","stream":true,"messages":[]}"#;
const EDITED: &str =
    r#"{"stream_options":{"include_usage":true},"model":"tiny","stream":true,"messages":[]}"#;
const ANSWER: [&str; 5] = [ROLE, WORD, FINISH, USAGE, "[DONE]"];

async fn injecting(fake: &ScriptedBackend) -> Running {
    start_with(&[fake.addr], Setup { injects_usage: true, ..Setup::default() }).await
}

/// The events as a body with these line endings.
fn lines(events: &[&str], ending: &str) -> String {
    let block = |event: &&str| format!("data: {event}{ending}{ending}");
    events.iter().map(block).collect()
}

fn without_usage() -> String {
    lines(&[ROLE, WORD, FINISH, "[DONE]"], "\n")
}

fn text(answer: &[u8]) -> (String, bool) {
    let (bytes, is_whole) = body(answer);
    (String::from_utf8(bytes).unwrap(), is_whole)
}

fn has_length(seen: &Seen, length: usize) -> bool {
    seen.head.to_ascii_lowercase().contains(&format!("\r\ncontent-length: {length}\r\n"))
}

fn tokens(record: &RequestRecord) -> (UsageSource, Option<u64>, Option<u64>) {
    let observed = &record.observed;
    (observed.usage_source, observed.usage.input, observed.usage.output)
}

const COUNTED: (UsageSource, Option<u64>, Option<u64>) = (UsageSource::Exact, Some(9), Some(3));

#[tokio::test]
async fn usage_is_requested_from_the_backend_and_hidden_from_the_client() {
    let fake = ScriptedBackend::answering(stream_of(&ANSWER)).await;
    let gateway = injecting(&fake).await;
    let answer = text(&gateway.post(CHAT, PLAIN).await);
    assert_eq!(answer, (without_usage(), true));
    let seen = &fake.seen()[0];
    assert_eq!(String::from_utf8_lossy(&seen.body), EDITED);
    assert!(has_length(seen, EDITED.len()), "{}", seen.head);
    let record = gateway.record().await;
    assert_eq!((tokens(&record), record.outcome), (COUNTED, Outcome::Ok));
    assert_eq!(record.bytes_in, PLAIN.len() as u64, "the bytes from the client");
    assert_eq!(record.bytes_out, without_usage().len() as u64, "the bytes to the client");
    let page = gateway.admin("/metrics").await;
    assert!(page.contains("tokenweir_usage_events_total{result=\"stripped\"} 1\n"), "{page}");
}

#[tokio::test]
async fn the_usage_event_is_removed_for_any_split_of_the_bytes() {
    // The request selects the split and the line endings of its response.
    let fake = ScriptedBackend::start(|seen| {
        let ask: Value = serde_json::from_slice(&seen.body).unwrap();
        let answer = lines(&ANSWER[1..], ask["ending"].as_str().unwrap());
        let cuts = ask["cuts"].as_array().unwrap().iter();
        let mut cuts: Vec<usize> = cuts.map(|cut| cut.as_u64().unwrap() as usize).collect();
        cuts.push(answer.len());
        let mut start = 0;
        let piece = |end| answer[std::mem::replace(&mut start, end)..end].to_owned();
        let pieces: Vec<String> = cuts.into_iter().map(piece).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        vec![Step::Send([event_stream_head(), framed(&pieces), b"0\r\n\r\n".to_vec()].concat())]
    })
    .await;
    let gateway = injecting(&fake).await;
    for ending in ["\n", "\r\n", "\r"] {
        let length = lines(&ANSWER[1..], ending).len();
        let every_byte: Vec<usize> = (0..length).collect();
        let one_cut = (0..length).map(|cut| vec![cut]);
        for cuts in one_cut.chain([every_byte]) {
            let ask = serde_json::json!({
                "model": "tiny", "stream": true, "cuts": cuts, "ending": ending,
            });
            let (answer, is_whole) = text(&gateway.post(CHAT, &ask.to_string()).await);
            let expected = lines(&[WORD, FINISH, "[DONE]"], ending);
            assert_eq!(answer, expected, "{ending:?} cut at {cuts:?}");
            assert!(is_whole);
            let record = gateway.record().await;
            assert_eq!(record.observed.usage_event, Some(UsageEventOutcome::Stripped), "{cuts:?}");
        }
    }
}

#[tokio::test]
async fn a_client_that_requests_usage_gets_every_byte_and_its_request_is_unchanged() {
    for options in [r#"{"include_usage":true}"#, r#"{ "include_usage" : true, "x":{}}"#] {
        let fake = ScriptedBackend::answering(stream_of(&ANSWER)).await;
        let gateway = injecting(&fake).await;
        let ask = format!(r#"{{"model":"tiny","stream":true,"stream_options":{options}}}"#);
        assert_eq!(text(&gateway.post(CHAT, &ask).await), (lines(&ANSWER, "\n"), true));
        assert_eq!(fake.seen()[0].body, ask.as_bytes());
        let record = gateway.record().await;
        assert_eq!((tokens(&record), record.observed.usage_event), (COUNTED, None));
    }
}

#[tokio::test]
async fn usage_is_recorded_for_a_client_that_declines_it() {
    for (declined, edited) in [
        (r#"{"include_usage":false}"#, r#"{"include_usage":true}"#),
        (r#"{"include_usage":null}"#, r#"{"include_usage":true}"#),
        ("{}", r#"{"include_usage":true}"#),
        ("null", r#"{"include_usage":true}"#),
        (
            r#"{"include_usage":false,"continuous_usage_stats":false}"#,
            r#"{"include_usage":true,"continuous_usage_stats":false}"#,
        ),
    ] {
        let fake = ScriptedBackend::answering(stream_of(&ANSWER)).await;
        let gateway = injecting(&fake).await;
        let ask =
            |options| format!(r#"{{"model":"tiny","stream":true,"stream_options":{options}}}"#);
        let answer = text(&gateway.post(CHAT, &ask(declined)).await);
        assert_eq!(answer, (without_usage(), true), "{declined}");
        assert_eq!(String::from_utf8_lossy(&fake.seen()[0].body), ask(edited));
        assert_eq!(tokens(&gateway.record().await), COUNTED);
    }
}

#[tokio::test]
async fn a_request_that_must_not_be_edited_and_its_response_pass_unchanged() {
    let continuous =
        r#"{"model":"tiny","stream":true,"stream_options":{"continuous_usage_stats":true}}"#;
    let signed = |name: &str| {
        post(CHAT, PLAIN).replace("connection: close", &format!("connection: close\r\n{name}: a"))
    };
    let cases = [
        post(CHAT, continuous),
        post(CHAT, r#"{"model":"tiny","stream":true,"stream_options":{"include_usage":"yes"}}"#),
        post(CHAT, r#"{"model":"tiny","stream":false}"#),
        post("/v1/responses", PLAIN),
        post("/v1/messages", PLAIN),
        record_facts::request("/v1/audio/transcriptions"),
        signed("content-digest"),
        signed("Digest"),
        signed("x-amz-content-sha256"),
    ];
    let fake = ScriptedBackend::answering(stream_of(&ANSWER)).await;
    let gateway = injecting(&fake).await;
    for request in cases {
        let answer = text(&gateway.raw(&request).await);
        assert_eq!(answer, (lines(&ANSWER, "\n"), true), "{request}");
        let seen = fake.seen().pop().unwrap();
        let sent = request.split_once("\r\n\r\n").unwrap().1;
        assert_eq!(String::from_utf8_lossy(&seen.body), sent, "{request}");
        assert_eq!(gateway.record().await.observed.usage_event, None, "{request}");
    }
}

#[tokio::test]
async fn with_an_unknown_server_or_without_injection_the_request_is_unchanged() {
    for (kind, injects_usage) in [(LLAMA_CPP, true), (VLLM, false)] {
        let fake =
            ScriptedBackend::start_kind(kind, |_| vec![Step::Send(stream_of(&ANSWER))]).await;
        let gateway = start_with(&[fake.addr], Setup { injects_usage, ..Setup::default() }).await;
        assert_eq!(text(&gateway.post(CHAT, PLAIN).await), (lines(&ANSWER, "\n"), true));
        assert_eq!(fake.seen()[0].body, PLAIN.as_bytes());
        let record = gateway.record().await;
        assert!(!record.options.usage_injected);
        assert_eq!((tokens(&record), record.observed.usage_event), (COUNTED, None));
    }
}

#[tokio::test]
async fn usage_that_the_server_always_sends_passes_unchanged() {
    let with_usage = |event: &str, output: u64| {
        let usage = format!(r#","usage":{{"prompt_tokens":9,"completion_tokens":{output}}}}}"#);
        format!("{}{usage}", event.strip_suffix('}').unwrap())
    };
    let (role, word) = (with_usage(ROLE, 0), with_usage(WORD, 1));
    let finish = with_usage(FINISH, 3);
    // With output before it and without any: the model can stop at once.
    let answers =
        [vec![&*role, &word, &finish, USAGE, "[DONE]"], vec![&*role, &finish, USAGE, "[DONE]"]];
    for events in answers {
        let fake = ScriptedBackend::answering(stream_of(&events)).await;
        let gateway = injecting(&fake).await;
        assert_eq!(text(&gateway.post(CHAT, PLAIN).await), (lines(&events, "\n"), true));
        let record = gateway.record().await;
        assert_eq!(tokens(&record), COUNTED);
        assert_eq!(record.observed.usage_event, Some(UsageEventOutcome::AlwaysSent));
    }
}

#[tokio::test]
async fn a_stream_truncated_within_the_usage_event_loses_no_byte() {
    let begun = lines(&[ROLE, WORD, FINISH], "\n");
    let event = format!("data: {USAGE}");
    for cut in [1, 6, 30, event.len()] {
        for (rest, is_clean) in [("0\r\n\r\n", true), ("", false)] {
            let sent = format!("{begun}{}", &event[..cut]);
            let answer =
                [event_stream_head(), framed(&[&begun, &event[..cut]]), rest.into()].concat();
            let fake =
                ScriptedBackend::start(move |_| vec![Step::Send(answer.clone()), Step::Close])
                    .await;
            let gateway = injecting(&fake).await;
            // The regular end of the body completes the last event.
            let is_removed = is_clean && cut == event.len();
            let expected = if is_removed { begun.clone() } else { sent };
            let length = expected.len();
            assert_eq!(
                text(&gateway.post(CHAT, PLAIN).await),
                (expected, is_clean),
                "cut at {cut}"
            );
            let record = gateway.record().await;
            assert_eq!(record.outcome == Outcome::Ok, is_clean, "the choice has ended");
            let is_missing = record.observed.usage_event == Some(UsageEventOutcome::Missing);
            assert_eq!(is_missing, !is_removed);
            assert_eq!(record.bytes_out as usize, length);
        }
    }
}

#[tokio::test]
async fn an_error_response_to_an_edited_request_passes_unchanged() {
    let error = r#"{"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}"#;
    let fake = ScriptedBackend::answering(json("400 Bad Request", error)).await;
    let gateway = injecting(&fake).await;
    let answer = gateway.post(CHAT, PLAIN).await;
    assert_eq!((status(&answer), text(&answer)), (400, (error.to_owned(), true)));
    let head = String::from_utf8_lossy(&answer).to_ascii_lowercase();
    assert!(head.contains(&format!("content-length: {}\r\n", error.len())));
    let record = gateway.record().await;
    assert_eq!((record.outcome, record.observed.usage_event), (Outcome::ClientError, None));
}

#[tokio::test]
async fn an_error_event_instead_of_the_usage_event_passes() {
    let error = r#"{"error":{"message":"boom","type":"InternalServerError","code":500}}"#;
    let events = [ROLE, WORD, error, "[DONE]"];
    let fake = ScriptedBackend::answering(stream_of(&events)).await;
    let gateway = injecting(&fake).await;
    assert_eq!(text(&gateway.post(CHAT, PLAIN).await), (lines(&events, "\n"), true));
    let record = gateway.record().await;
    assert_eq!(record.outcome, Outcome::StreamError);
    assert_eq!(record.observed.usage_event, Some(UsageEventOutcome::Missing));
}

#[tokio::test]
async fn a_stream_with_a_content_length_becomes_shorter_and_stays_complete() {
    let all = lines(&ANSWER, "\n");
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n{all}",
        all.len()
    );
    let fake = ScriptedBackend::answering(answer).await;
    let gateway = injecting(&fake).await;
    assert_eq!(text(&gateway.post(CHAT, PLAIN).await), (without_usage(), true));
    assert_eq!(gateway.record().await.outcome, Outcome::Ok);
}

#[tokio::test]
async fn an_http2_client_gets_a_complete_stream_without_the_usage_event() {
    for events in [&ANSWER[..], &[ROLE, WORD, FINISH, "[DONE]", USAGE]] {
        let fake = ScriptedBackend::answering(stream_of(events)).await;
        let gateway = injecting(&fake).await;
        let client: Client<_, Full<Bytes>> =
            Client::builder(TokioExecutor::new()).http2_only(true).build_http();
        let request = Request::post(format!("http://{}{CHAT}", gateway.addr))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(PLAIN)))
            .unwrap();
        let answer = client.request(request).await.unwrap().into_body().collect().await.unwrap();
        assert_eq!(answer.to_bytes(), without_usage());
        assert_eq!(tokens(&gateway.record().await), COUNTED);
    }
}

#[tokio::test]
async fn after_a_failover_a_server_of_another_type_gets_the_unedited_request() {
    for (first, second, expected) in [(VLLM, LLAMA_CPP, PLAIN), (LLAMA_CPP, VLLM, EDITED)] {
        let gone = ScriptedBackend::start_kind(first, |_| vec![Step::Close]).await;
        let alive =
            ScriptedBackend::start_kind(second, |_| vec![Step::Send(stream_of(&ANSWER))]).await;
        let setup = Setup {
            injects_usage: true,
            policy: Policy { kind: PolicyKind::RoundRobin, ..Policy::default() },
            // There is no further scrape, so the gateway does not notice that the backend is down.
            scrape_interval: Duration::from_hours(1),
            ..Setup::default()
        };
        let gateway = start_with(&[gone.addr, alive.addr], setup).await;
        drop(gone);
        let mut retried_requests = 0;
        for _ in 0..2 {
            let (answer, is_whole) = text(&gateway.post(CHAT, PLAIN).await);
            let is_edited = expected == EDITED;
            let events = if is_edited { without_usage() } else { lines(&ANSWER, "\n") };
            assert_eq!((answer, is_whole), (events, true));
            let record = gateway.record().await;
            assert_eq!(record.options.usage_injected, is_edited);
            retried_requests += usize::from(record.attempts[0].address.1 != alive.addr.port());
        }
        assert_eq!(retried_requests, 1, "the stopped backend was tried once");
        for seen in alive.seen() {
            assert_eq!(String::from_utf8_lossy(&seen.body), expected);
            assert!(has_length(&seen, expected.len()));
        }
    }
}

/// The event blocks of a recorded stream, each with its blank line.
fn blocks(body: &str) -> Vec<&str> {
    body.split_inclusive("\n\n").collect()
}

fn data(block: &str) -> Option<Value> {
    serde_json::from_str(block.trim_end().strip_prefix("data: ")?).ok()
}

fn has_usage(block: &str) -> bool {
    data(block).is_some_and(|data| data["usage"].is_object())
}

fn has_choices(block: &str) -> bool {
    data(block).is_some_and(|data| data["choices"].as_array().is_some_and(|all| !all.is_empty()))
}

/// The expected response to a client that did not request usage, for a recorded stream with usage.
fn expected_response(body: &str) -> (String, UsageEventOutcome) {
    let blocks = blocks(body);
    if blocks.iter().any(|block| has_usage(block) && has_choices(block)) {
        return (body.to_owned(), UsageEventOutcome::AlwaysSent);
    }
    let at = blocks.iter().position(|block| has_usage(block)).expect("a usage event");
    let (before, after) = (&blocks[..at], &blocks[at + 1..]);
    assert!(!after.iter().any(|block| has_usage(block)), "one usage event in {body}");
    // The front end writes its fingerprint into the event with the finish reason instead.
    let fingerprint = data(blocks[at]).and_then(|data| data.get("system_fingerprint").cloned());
    let plain = before.concat();
    // vLLM 0.33 writes a further member behind it.
    let end = if plain.ends_with(",\"kv_transfer_params\":null}\n\n") {
        ",\"kv_transfer_params\":null}\n\n"
    } else {
        "}\n\n"
    };
    let expected = match (fingerprint, plain.strip_suffix(end)) {
        (Some(fingerprint), Some(finish)) if has_finish(before[at - 1]) => {
            format!("{finish},\"system_fingerprint\":{fingerprint}{end}{}", after.concat())
        }
        _ => [before, after].concat().concat(),
    };
    (expected, UsageEventOutcome::Stripped)
}

fn has_finish(block: &str) -> bool {
    data(block).is_some_and(|data| data["choices"][0]["finish_reason"].is_string())
}

fn is_stream_with_usage(recording: &Recording) -> bool {
    let has_options = matches!(&*recording.path, CHAT | "/v1/completions");
    let body = String::from_utf8(recording.body()).unwrap_or_default();
    let is_stream = recording.expected["stream"] == true;
    has_options && is_stream && blocks(&body).iter().any(|block| has_usage(block))
}

async fn replaying(recording: &Recording) -> ScriptedBackend {
    let head = recording.head.replace("connection: close\r\n", "");
    let raw = [head.as_bytes(), &recording.framed].concat();
    ScriptedBackend::start(move |_| vec![Step::Send(raw.clone()), Step::Close]).await
}

#[tokio::test]
async fn usage_is_removed_from_every_recorded_stream_for_a_client_that_did_not_request_it() {
    let (mut response_with_injected_usage, mut forced) = (0, 0);
    for recording in recording::all().iter().filter(|recording| is_stream_with_usage(recording)) {
        let fake = replaying(recording).await;
        let gateway = injecting(&fake).await;
        let (answer, is_whole) = text(&gateway.post(&recording.path, PLAIN).await);
        let name = &recording.name;
        let body = String::from_utf8(recording.body()).unwrap();
        let (expected, event) = expected_response(&body);
        assert_eq!(answer, expected, "{name}");
        assert_eq!(is_whole, recording.expected["complete_http"] == true, "{name}");
        let record = gateway.record().await;
        let observed = &record.observed;
        assert_eq!(observed.usage_event, Some(event), "{name}");
        assert_eq!(observed.usage_source, UsageSource::Exact, "{name}");
        let usage = &recording.expected["usage"];
        assert_eq!(observed.usage.input, usage["input"].as_u64(), "{name}");
        assert_eq!(observed.usage.output, usage["output"].as_u64(), "{name}");
        response_with_injected_usage += usize::from(event == UsageEventOutcome::Stripped);
        forced += usize::from(event == UsageEventOutcome::AlwaysSent);
    }
    assert!(response_with_injected_usage >= 63 && forced >= 7, "all recordings with usage");
}

/// vLLM's Python front end sends its fingerprint in the last event, which is the usage event if
/// there is one. A client that did not request usage gets the fingerprint in the event before.
#[tokio::test]
async fn the_fingerprint_of_the_python_front_end_is_where_it_is_without_a_usage_event() {
    let all = recording::all();
    let named = |name: &str| all.iter().find(|recording| recording.name == name).unwrap();
    let raw = |name: &str| [named(name).head.as_bytes(), &named(name).framed].concat();
    for version in ["python", "python-0.33"] {
        let plain = raw(&format!("{version}/chat-stream"));
        let stream_with_usage = raw(&format!("{version}/chat-stream-usage"));
        let fake = ScriptedBackend::start(move |seen| {
            let is_usage_requested = String::from_utf8_lossy(&seen.body).contains("include_usage");
            vec![
                Step::Send(if is_usage_requested {
                    stream_with_usage.clone()
                } else {
                    plain.clone()
                }),
                Step::Close,
            ]
        })
        .await;
        let with_fingerprint = |answer: &[u8]| {
            let text = text(answer).0;
            let events = blocks(&text).into_iter().filter_map(data);
            let members = events.filter(|event| event.get("system_fingerprint").is_some());
            members
                .map(|event| (event["choices"].clone(), event["system_fingerprint"].clone()))
                .collect()
        };
        let passive = start(&[fake.addr]).await;
        let direct: Vec<(Value, Value)> = with_fingerprint(&passive.post(CHAT, PLAIN).await);
        assert_eq!(direct.len(), 1);
        let gateway = injecting(&fake).await;
        // The first stream of a server shows its fingerprint.
        for _ in 0..2 {
            assert_eq!(with_fingerprint(&gateway.post(CHAT, PLAIN).await), direct);
        }
        let requested = with_fingerprint(&gateway.post(CHAT, EDITED).await);
        assert_eq!(requested, [(Value::Array(Vec::new()), direct[0].1.clone())]);
    }
}
