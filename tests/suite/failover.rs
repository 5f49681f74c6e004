//! Until an answer has output, a replica that fails is replaced by another and the client never
//! knows. After that, what breaks stays broken.

use crate::support::fake::{
    FINISH, Fake, ROLE, Step, WORD, chunk, framed, json, stream_head, stream_of,
};
use crate::support::gateway::{Running, Setup, body, post, start, start_with, status};
use crate::support::http2;
use http_body_util::BodyExt;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokenweir::backend::routes::{Named, Terms};
use tokenweir::proxy::access::Access;
use tokenweir::proxy::retry;
use tokenweir_core::observe::{self, OnTruncation, StreamRules};
use tokenweir_core::openai::control::{Permission, Permissions};
use tokenweir_core::record::{NotRetried, Outcome};
use tokenweir_core::resilience;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";
const ASK: &str = r#"{"model":"tiny","stream":true,"messages":[]}"#;
const ASK_WHOLE: &str = r#"{"model":"tiny","messages":[]}"#;
const GOOD: [&str; 4] = [ROLE, WORD, FINISH, "[DONE]"];
const ERROR: &str = r#"{"error":{"message":"boom","type":"InternalServerError","code":500}}"#;
const DEAD: &str = r#"{"error":{"message":"The server had an error while processing your request. Sorry about that!","type":"InternalServerError","code":500}}"#;
const UNKNOWN: &str = r#"{"error":{"message":"The model `tiny` does not exist.","type":"NotFoundError","param":"model","code":404}}"#;
const WHOLE: &str = r#"{"id":"c","object":"chat.completion","model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}"#;

/// Two replicas: whichever is asked first follows the script, and the other one is well.
async fn first_of_two(
    script: impl Fn() -> Vec<Step> + Send + Sync + 'static,
    good: Vec<u8>,
) -> [Fake; 2] {
    let (script, asked) = (Arc::new(script), Arc::new(AtomicUsize::new(0)));
    let replica = || {
        let (script, asked, good) = (script.clone(), asked.clone(), good.clone());
        Fake::start(move |_| match asked.fetch_add(1, Ordering::SeqCst) {
            0 => script(),
            _ => vec![Step::Send(good.clone())],
        })
    };
    [replica().await, replica().await]
}

async fn gateway_of(fakes: &[Fake]) -> Running {
    start(&fakes.iter().map(|fake| fake.addr).collect::<Vec<_>>()).await
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn a_replica_that_fails_before_its_first_output_is_replaced_and_the_client_never_knows() {
    let cut = |events: &[&str]| {
        let begun = events.iter().flat_map(|event| chunk(event));
        stream_head().into_iter().chain(begun).collect::<Vec<u8>>()
    };
    let abort = FINISH.replace("stop", "abort");
    let paused = r#"{"error":{"message":"Generation is paused.","type":"ServiceUnavailableError","code":503}}"#;
    let cases = [
        ("connection_reset", Vec::new()),
        ("connection_reset", b"HTTP/1.1 200 OK\r\ncontent-ty".to_vec()),
        ("connection_reset", cut(&[])),
        ("connection_reset", cut(&[ROLE])),
        ("connection_reset", [cut(&[ROLE]), b"30\r\ndata: {\"id\"".to_vec()].concat()),
        ("bad_response", b"SSH-2.0-OpenSSH_9.6\r\n\r\n".to_vec()),
        ("busy", json("503 Service Unavailable", "{}")),
        ("server_error", json("500 Internal Server Error", ERROR)),
        ("server_error", json("502 Bad Gateway", "<html>")),
        ("engine_dead", json("500 Internal Server Error", DEAD)),
        ("unknown_model", json("404 Not Found", UNKNOWN)),
        ("inband_error", stream_of(&[ERROR, "[DONE]"])),
        ("inband_error", stream_of(&[ROLE, ERROR, "[DONE]"])),
        ("busy", stream_of(&[paused, "[DONE]"])),
        ("draining", stream_of(&[ROLE, &abort, "[DONE]"])),
        ("empty", stream_of(&[])),
        ("empty", stream_of(&[ROLE])),
    ];
    for (failure, said) in cases {
        let name = text(&said);
        let script = move || vec![Step::Send(said.clone()), Step::Close];
        let fakes = first_of_two(script, stream_of(&GOOD)).await;
        let gateway = gateway_of(&fakes).await;
        let answer = gateway.post(CHAT, ASK).await;
        assert_eq!(status(&answer), 200, "{name}");
        let good = GOOD.map(|event| format!("data: {event}\n\n")).concat();
        assert_eq!(body(&answer), (good.into_bytes(), true), "{name}");
        let record = gateway.record().await;
        assert_eq!(record.outcome, Outcome::Ok, "{name}");
        let failures: Vec<_> = record.attempts.iter().map(|one| one.failure).collect();
        assert_eq!(failures, [Some(failure), None], "{name}");
        assert_ne!(record.attempts[0].backend, record.attempts[1].backend, "{name}");
        assert_eq!(record.observed.output_events, 1, "what was thrown away is not counted: {name}");
        assert_eq!(record.not_retried, None);
    }
}

#[tokio::test]
async fn an_answer_that_is_no_stream_is_replaced_if_it_breaks_off_or_was_given_up() {
    let cut = json("200 OK", WHOLE);
    let cut = cut[..cut.len() - 1].to_vec();
    let given_up = WHOLE.replace(r#""content":"Hi""#, r#""content":"""#).replace("stop", "abort");
    for (failure, said) in [("connection_reset", cut), ("draining", json("200 OK", &given_up))] {
        let script = move || vec![Step::Send(said.clone()), Step::Close];
        let fakes = first_of_two(script, json("200 OK", WHOLE)).await;
        let gateway = gateway_of(&fakes).await;
        let answer = gateway.post(CHAT, ASK_WHOLE).await;
        assert_eq!((status(&answer), body(&answer)), (200, (WHOLE.into(), true)));
        let record = gateway.record().await;
        assert_eq!((record.outcome, record.attempts[0].failure), (Outcome::Ok, Some(failure)));
    }
}

#[tokio::test]
async fn after_the_first_output_a_broken_stream_stays_broken() {
    let begun = [stream_head(), chunk(ROLE), chunk(WORD)].concat();
    let script = move || vec![Step::Send(begun.clone()), Step::Close];
    let fakes = first_of_two(script, stream_of(&GOOD)).await;
    let gateway = gateway_of(&fakes).await;
    let (bytes, is_whole) = body(&gateway.post(CHAT, ASK).await);
    assert_eq!(text(&bytes), format!("data: {ROLE}\n\ndata: {WORD}\n\n"));
    assert!(!is_whole, "a cut, and no clean end");
    let record = gateway.record().await;
    assert_eq!((record.outcome, record.attempts.len()), (Outcome::Truncated, 1));
}

#[tokio::test]
async fn a_request_with_effects_beyond_its_answer_is_sent_once() {
    let bodies = [
        r#"{"model":"tiny","stream":true,"store":true,"messages":[]}"#,
        r#"{"model":"tiny","stream":true,"messages":[],"tools":[{"type":"mcp"}]}"#,
        r#"{"model":"tiny","stream":true,"messages":[],"kv_transfer_params":{}}"#,
    ];
    for ask in bodies {
        let script = || vec![Step::Send(json("500 Internal Server Error", ERROR))];
        let fakes = first_of_two(script, stream_of(&GOOD)).await;
        let allowed = Permissions::new(&[Permission::KvTransfer]);
        let access = Arc::new(Access::default().with_allowed(allowed));
        let addresses = fakes.each_ref().map(|fake| fake.addr);
        let gateway = start_with(&addresses, Setup { access, ..Setup::default() }).await;
        let answer = gateway.post(CHAT, ask).await;
        assert_eq!((status(&answer), body(&answer)), (500, (ERROR.into(), true)), "{ask}");
        assert_eq!(gateway.record().await.not_retried, Some(NotRetried::Effects), "{ask}");
    }
}

#[tokio::test]
async fn what_every_replica_would_answer_the_same_is_asked_once() {
    for code in
        ["400 Bad Request", "401 Unauthorized", "422 Unprocessable", "429 Too Many", "501 No"]
    {
        let script = move || vec![Step::Send(json(code, "{}"))];
        let fakes = first_of_two(script, stream_of(&GOOD)).await;
        let gateway = gateway_of(&fakes).await;
        let answer = gateway.post(CHAT, ASK).await;
        assert!(text(&answer).starts_with(&format!("HTTP/1.1 {}", &code[..3])), "{code}");
        assert_eq!(gateway.record().await.attempts.len(), 1, "{code}");
    }
    let refused = r#"{"error":{"message":"too long","type":"BadRequestError","code":400}}"#;
    let script = move || vec![Step::Send(stream_of(&[refused, "[DONE]"]))];
    let fakes = first_of_two(script, stream_of(&GOOD)).await;
    let gateway = gateway_of(&fakes).await;
    assert!(text(&gateway.post(CHAT, ASK).await).contains("too long"));
    assert_eq!(gateway.record().await.attempts.len(), 1);
}

#[tokio::test]
async fn if_all_replicas_are_busy_the_client_gets_what_the_last_one_said_and_when_to_retry() {
    let busy = r#"{"error":{"message":"The engine is currently busy","code":503}}"#;
    let fakes = [
        Fake::answering(json("503 Service Unavailable", busy)).await,
        Fake::answering(json("503 Service Unavailable", busy)).await,
    ];
    let gateway = gateway_of(&fakes).await;
    let answer = gateway.post(CHAT, ASK).await;
    assert_eq!((status(&answer), body(&answer)), (503, (busy.into(), true)));
    assert!(text(&answer).contains("retry-after: 1\r\n"));
    let record = gateway.record().await;
    assert_eq!((record.outcome, record.attempts.len()), (Outcome::UpstreamError, 2));
    assert_eq!(record.not_retried, Some(NotRetried::Nowhere));
}

#[tokio::test]
async fn a_request_that_two_replicas_died_of_is_not_sent_to_a_third() {
    let mut fakes = Vec::new();
    for _ in 0..3 {
        fakes.push(Fake::start(|_| vec![Step::Close]).await);
    }
    let gateway = gateway_of(&fakes).await;
    let answer = gateway.post(CHAT, ASK).await;
    assert_eq!(status(&answer), 502);
    assert!(text(&answer).contains("x-should-retry: false\r\n"));
    let error: Value = serde_json::from_slice(&body(&answer).0).unwrap();
    assert!(error["error"]["message"].as_str().unwrap().contains("failed while they had"));
    let record = gateway.record().await;
    assert_eq!((record.attempts.len(), record.not_retried), (2, Some(NotRetried::Poison)));
    let seen: usize = fakes.iter().map(|fake| fake.seen().len()).sum();
    assert_eq!(seen, 2);
}

#[tokio::test]
async fn an_answer_without_output_goes_on_when_it_has_been_held_for_long_enough() {
    let head = [stream_head(), chunk(ROLE)].concat();
    let rest = [chunk(WORD), chunk(FINISH), chunk("[DONE]"), b"0\r\n\r\n".to_vec()].concat();
    let fake =
        Fake::start(move |_| vec![Step::Send(head.clone()), Step::Wait, Step::Send(rest.clone())])
            .await;
    let max_hold = Duration::from_millis(20);
    let retry = retry::Settings { max_hold, ..retry::Settings::default() };
    let gateway = start_with(&[fake.addr], Setup { retry, ..Setup::default() }).await;
    let mut client = gateway.connect().await;
    client.write_all(post(CHAT, ASK).as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !text(&answer).contains("assistant") {
        assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0);
    }
    fake.go();
    while !text(&answer).ends_with("0\r\n\r\n") {
        assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0);
    }
    assert_eq!(gateway.record().await.outcome, Outcome::Ok);
}

#[tokio::test]
async fn a_first_output_that_does_not_come_in_time_is_a_504_and_the_replica_is_told() {
    for begun in [Vec::new(), [stream_head(), chunk(ROLE)].concat()] {
        let fake = Fake::start(move |_| vec![Step::Send(begun.clone()), Step::AwaitClose]).await;
        let setup = Setup { first_output: Some(Duration::from_millis(50)), ..Setup::default() };
        let gateway = start_with(&[fake.addr], setup).await;
        let answer = gateway.post(CHAT, ASK).await;
        assert_eq!(status(&answer), 504, "{}", text(&answer));
        fake.closed().await;
        let record = gateway.record().await;
        assert_eq!((record.outcome, record.ending()), (Outcome::Timeout, "timeout_first_output"));
    }
}

#[tokio::test]
async fn a_clients_own_timeout_ends_the_wait_and_does_the_replica_no_harm() {
    let fake = Fake::start(|_| vec![Step::AwaitClose]).await;
    let gateway = start(&[fake.addr]).await;
    for _ in 0..6 {
        let ask = post(CHAT, ASK).replacen("\r\n", "\r\nx-stainless-read-timeout: 0.02\r\n", 1);
        assert_eq!(status(&gateway.raw(ask).await), 504);
        fake.closed().await;
    }
    assert_eq!(gateway.pool.backends()[0].breaker.standing(), resilience::Standing::Closed);
}

#[tokio::test]
async fn a_replica_that_fails_again_and_again_gets_nothing_more() {
    let ill = Fake::answering(json("500 Internal Server Error", ERROR)).await;
    let well = [Fake::answering(stream_of(&GOOD)).await, Fake::answering(stream_of(&GOOD)).await];
    let gateway = start(&[ill.addr, well[0].addr, well[1].addr]).await;
    for _ in 0..60 {
        assert_eq!(status(&gateway.post(CHAT, ASK).await), 200);
    }
    assert_eq!(ill.seen().len(), 5, "five failures in a row");
}

#[tokio::test]
async fn what_clients_can_cause_never_ejects_a_replica() {
    for code in ["400 Bad Request", "404 Not Found", "413 Too Large", "422 No", "429 Too Many"] {
        let fakes =
            [Fake::answering(json(code, "{}")).await, Fake::answering(json(code, "{}")).await];
        let gateway = gateway_of(&fakes).await;
        for _ in 0..40 {
            gateway.post(CHAT, ASK).await;
        }
        for backend in gateway.pool.backends().iter() {
            assert_eq!(backend.breaker.standing(), resilience::Standing::Closed, "{code}");
        }
    }
}

#[tokio::test]
async fn if_most_replicas_are_ejected_all_of_them_are_asked() {
    let ill = Fake::answering(json("500 Internal Server Error", ERROR)).await;
    let gateway = start(&[ill.addr]).await;
    for _ in 0..20 {
        assert_eq!(
            status(&gateway.post(CHAT, ASK).await),
            500,
            "its own answer, and no 503 of ours"
        );
    }
    assert_eq!(gateway.pool.backends()[0].breaker.standing(), resilience::Standing::Open);
    assert_eq!(ill.seen().len(), 20);
}

#[tokio::test]
async fn with_a_threshold_of_zero_a_fleet_that_is_ejected_is_not_asked() {
    let ill = Fake::answering(json("500 Internal Server Error", ERROR)).await;
    let health = resilience::Settings { panic_threshold: 0.0, ..Setup::default().health };
    let gateway = start_with(&[ill.addr], Setup { health, ..Setup::default() }).await;
    for _ in 0..20 {
        gateway.post(CHAT, ASK).await;
    }
    assert_eq!(ill.seen().len(), 5);
    assert_eq!(status(&gateway.post(CHAT, ASK).await), 503);
}

fn rules(streams: StreamRules) -> Setup {
    let observation = observe::Settings { streams, ..observe::Settings::default() };
    Setup { observation, ..Setup::default() }
}

/// What a client of this shape gets of a stream that breaks off after these bytes.
async fn broken_off(path: &str, sent: &'static [&'static str]) -> (String, bool) {
    let begun = [stream_head(), framed(sent)].concat();
    let fake = Fake::start(move |_| vec![Step::Send(begun.clone()), Step::Close]).await;
    let on_truncation = OnTruncation::ErrorEvent;
    let setup = rules(StreamRules { on_truncation, ..StreamRules::default() });
    let gateway = start_with(&[fake.addr], setup).await;
    let (bytes, is_whole) = body(&gateway.post(path, ASK).await);
    assert_eq!(gateway.record().await.outcome, Outcome::Truncated);
    (text(&bytes), is_whole)
}

const CHAT_WORD: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"}}]}\n\n";
const MESSAGE: &str = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\
    \"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\n\n";

#[tokio::test]
async fn a_client_can_be_told_of_a_stream_that_breaks_off_and_no_end_is_made_up() {
    let (told, is_whole) = broken_off(CHAT, &[CHAT_WORD]).await;
    let event = told.strip_prefix(CHAT_WORD).unwrap().strip_prefix("data: ").unwrap();
    let event: Value = serde_json::from_str(event.trim_end()).unwrap();
    assert_eq!((&event["error"]["code"], is_whole), (&502.into(), false));
    let (told, is_whole) = broken_off(CHAT, &[CHAT_WORD, "data: {\"cho"]).await;
    assert_eq!((told, is_whole), (format!("{CHAT_WORD}data: {{\"cho"), false), "inside an event");
    let (told, _) = broken_off("/v1/messages", &[MESSAGE]).await;
    assert!(told.contains("event: error\ndata: {"), "{told}");
}

#[tokio::test]
async fn comments_keep_a_silent_stream_alive_between_events_and_count_for_nothing() {
    let begun = [stream_head(), chunk(ROLE), chunk(WORD)].concat();
    let rest = [chunk(FINISH), chunk("[DONE]"), b"0\r\n\r\n".to_vec()].concat();
    let script = move |_: &_| vec![Step::Send(begun.clone()), Step::Wait, Step::Send(rest.clone())];
    let fake = Fake::start(script).await;
    let keep_alive = Some(Duration::from_millis(20));
    let setup = rules(StreamRules { keep_alive, ..StreamRules::default() });
    let gateway = start_with(&[fake.addr], setup).await;
    let mut client = gateway.connect().await;
    client.write_all(post(CHAT, ASK).as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while text(&answer).matches(": keep-alive\n\n").count() < 3 {
        assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0);
    }
    fake.go();
    while !text(&answer).ends_with("0\r\n\r\n") {
        assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0);
    }
    let record = gateway.record().await;
    assert_eq!((record.outcome, record.observed.comments), (Outcome::Ok, 0));
}

/// An event stream that declares its length, in pieces with a [`Step::Wait`] between them.
fn stream_with_length(events: &[&str], rest: &[&str]) -> [Vec<u8>; 2] {
    let text = |events: &[&str]| -> String {
        events.iter().flat_map(|event| ["data: ", event, "\n\n"]).collect()
    };
    let (begun, rest) = (text(events), text(rest));
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n",
        begun.len() + rest.len()
    );
    [format!("{head}{begun}").into_bytes(), rest.into_bytes()]
}

#[tokio::test]
async fn comments_do_not_break_a_stream_that_declares_its_length() {
    let [begun, rest] = stream_with_length(&[ROLE, WORD], &[FINISH, "[DONE]"]);
    let script = move |_: &_| vec![Step::Send(begun.clone()), Step::Wait, Step::Send(rest.clone())];
    let fake = Fake::start(script).await;
    let keep_alive = Some(Duration::from_millis(20));
    let setup = rules(StreamRules { keep_alive, ..StreamRules::default() });
    let gateway = start_with(&[fake.addr], setup).await;
    // HTTP/1.1.
    let mut client = gateway.connect().await;
    client.write_all(post(CHAT, ASK).as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !text(&answer).contains(": keep-alive\n\n") {
        assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0);
    }
    fake.go();
    client.read_to_end(&mut answer).await.unwrap();
    assert!(!text(&answer).to_ascii_lowercase().contains("content-length"), "{}", text(&answer));
    let (bytes, is_whole) = body(&answer);
    assert!(is_whole && bytes.ends_with(b"data: [DONE]\n\n"), "{}", text(&bytes));
    // HTTP/2.
    let mut sender = http2::handshake(gateway.connect().await).await;
    let mut answer = http2::post(&mut sender, CHAT, ASK).await;
    assert!(!answer.headers().contains_key("content-length"));
    let mut bytes = Vec::new();
    while !text(&bytes).contains(": keep-alive\n\n") {
        let frame = answer.frame().await.unwrap().unwrap();
        bytes.extend_from_slice(&frame.into_data().unwrap());
    }
    fake.go();
    bytes.extend_from_slice(&http2::whole(answer).await.1);
    assert!(bytes.ends_with(b"data: [DONE]\n\n"), "{}", text(&bytes));
}

#[tokio::test]
async fn the_error_event_of_a_stream_that_declared_its_length_reaches_the_client() {
    let [begun, _] = stream_with_length(&[ROLE, WORD], &[FINISH, "[DONE]"]);
    let fake = Fake::start(move |_| vec![Step::Send(begun.clone()), Step::Close]).await;
    let on_truncation = OnTruncation::ErrorEvent;
    let setup = rules(StreamRules { on_truncation, ..StreamRules::default() });
    let gateway = start_with(&[fake.addr], setup).await;
    let (bytes, is_whole) = body(&gateway.post(CHAT, ASK).await);
    assert!(text(&bytes).contains("\"error\":{") && !is_whole, "{}", text(&bytes));
}

#[tokio::test]
async fn a_stream_to_which_nothing_is_added_keeps_its_length() {
    let [begun, rest] = stream_with_length(&[ROLE, WORD], &[FINISH, "[DONE]"]);
    let fake = Fake::answering([begun, rest].concat()).await;
    let gateway = start(&[fake.addr]).await;
    let answer = text(&gateway.post(CHAT, ASK).await).to_ascii_lowercase();
    assert!(answer.contains("content-length: "), "{answer}");
}

const COMMENT: &str = ": keep-alive\n\n";

/// Reads an answer until it contains `wanted`.
async fn read_until(client: &mut TcpStream, answer: &mut Vec<u8>, wanted: &str) {
    while !text(answer).contains(wanted) {
        assert_ne!(client.read_buf(answer).await.unwrap(), 0, "{}", text(answer));
    }
}

#[tokio::test]
async fn the_comments_of_a_backend_reach_the_client_before_the_first_output() {
    let begun = [stream_head(), framed(&[COMMENT])].concat();
    let rest = [chunk(ROLE), chunk(WORD), chunk(FINISH), chunk("[DONE]"), b"0\r\n\r\n".to_vec()];
    let rest = rest.concat();
    let script = move |_: &_| vec![Step::Send(begun.clone()), Step::Wait, Step::Send(rest.clone())];
    let fake = Fake::start(script).await;
    let gateway = start(&[fake.addr]).await;
    let mut client = gateway.connect().await;
    client.write_all(post(CHAT, ASK).as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    read_until(&mut client, &mut answer, COMMENT).await;
    fake.go();
    read_until(&mut client, &mut answer, "0\r\n\r\n").await;
    let record = gateway.record().await;
    assert_eq!((record.outcome, record.observed.comments), (Outcome::Ok, 1));
}

#[tokio::test]
async fn the_gateways_own_comments_reach_the_client_before_the_first_output() {
    let rest = [chunk(ROLE), chunk(WORD), chunk(FINISH), chunk("[DONE]"), b"0\r\n\r\n".to_vec()];
    let rest = rest.concat();
    let script = move |_: &_| vec![Step::Send(stream_head()), Step::Wait, Step::Send(rest.clone())];
    let fake = Fake::start(script).await;
    let keep_alive = Some(Duration::from_millis(20));
    let setup = rules(StreamRules { keep_alive, ..StreamRules::default() });
    let gateway = start_with(&[fake.addr], setup).await;
    let mut client = gateway.connect().await;
    client.write_all(post(CHAT, ASK).as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    read_until(&mut client, &mut answer, COMMENT).await;
    fake.go();
    read_until(&mut client, &mut answer, "0\r\n\r\n").await;
    assert_eq!(gateway.record().await.outcome, Outcome::Ok);
}

#[tokio::test]
async fn after_a_comment_has_gone_to_the_client_no_other_backend_gets_the_request() {
    let begun = [stream_head(), framed(&[COMMENT])].concat();
    let script = move || vec![Step::Send(begun.clone()), Step::Close];
    let fakes = first_of_two(script, stream_of(&GOOD)).await;
    let gateway = gateway_of(&fakes).await;
    let (bytes, is_whole) = body(&gateway.post(CHAT, ASK).await);
    assert_eq!((text(&bytes).as_str(), is_whole), (COMMENT, false));
    let record = gateway.record().await;
    assert_eq!((record.outcome, record.attempts.len()), (Outcome::Truncated, 1));
}

#[tokio::test]
async fn a_model_of_the_configuration_can_have_terms_of_its_own() {
    let fake = Fake::start(|_| vec![Step::Send(stream_head()), Step::AwaitClose]).await;
    let first_output = Some(Duration::from_millis(30));
    let strict = Named {
        name: "strict".into(),
        served_as: Some("tiny".into()),
        terms: Terms { first_output, ..Terms::default() },
        ..Named::default()
    };
    let setup = Setup { models: vec![strict], ..Setup::default() };
    let gateway = start_with(&[fake.addr], setup).await;
    assert_eq!(status(&gateway.post(CHAT, &ASK.replace("tiny", "strict")).await), 504);
    fake.closed().await;
    let mut other = gateway.connect().await;
    other.write_all(post(CHAT, ASK).as_bytes()).await.unwrap();
    while fake.seen().len() < 2 {
        tokio::task::yield_now().await;
    }
    drop(other);
    fake.closed().await;
    gateway.record().await;
    assert_eq!(gateway.record().await.outcome, Outcome::Cancelled, "it was waited for");
}
