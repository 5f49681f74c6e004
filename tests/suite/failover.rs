//! Failover. If a backend fails before the first output, the gateway sends the request to another backend,
//! and the client does not notice. If a stream breaks after its first output, it stays broken.

use crate::metrics::value;
use crate::support::http2_client;
use crate::support::scripted_backend::{
    FINISH, ROLE, ScriptedBackend, Step, WORD, begin, begun_stream, chunk, data, event_stream_head,
    framed, json, paused, response, stream_of,
};
use crate::support::test_gateway::{
    ASK, ASK_STREAM, CHAT, Running, Setup, WHOLE, advance_time, body, body_json, body_text,
    gateway_answering, gateway_following, gateway_following_with, post, read_rest, read_until,
    read_until_times, start_before, status, with_lines,
};
use http_body_util::BodyExt;
use serde_json::Value;
use std::time::Duration;
use tokenweir_gateway::backend::routes::{ModelConfig, RoutePolicy};
use tokenweir_gateway::proxy::retry;
use tokenweir_request::observe::{self, OnTruncation, StreamRules};
use tokenweir_request::record::{FailoverDenialReason, Outcome};
use tokenweir_routing::resilience;

const GOOD: [&str; 4] = [ROLE, WORD, FINISH, "[DONE]"];
const ERROR: &str = r#"{"error":{"message":"boom","type":"InternalServerError","code":500}}"#;
const DEAD: &str = r#"{"error":{"message":"The server had an error while processing your request. Sorry about that!","type":"InternalServerError","code":500}}"#;
const UNKNOWN: &str = r#"{"error":{"message":"The model `tiny` does not exist.","type":"NotFoundError","param":"model","code":404}}"#;

/// Starts two backends. The backend that gets the first request follows the steps `first`. The other one
/// responds with `good`.
async fn first_of_two(first: impl Into<Vec<Step>>, good: Vec<u8>) -> [ScriptedBackend; 2] {
    ScriptedBackend::first_of_two(first, [Step::Send(good)]).await
}

async fn gateway_for(fakes: &[ScriptedBackend]) -> Running {
    start_before(fakes, Setup::default()).await
}

const COMMENT: &str = ": keep-alive\n\n";

/// The step of a backend that begins a stream with a comment.
fn commented() -> Step {
    Step::Send([event_stream_head(), framed(&[COMMENT])].concat())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn failures_before_output_are_not_noticed() {
    let abort = FINISH.replace("stop", "abort");
    let paused = r#"{"error":{"message":"Generation is paused.","type":"ServiceUnavailableError","code":503}}"#;
    let streams = [
        ("connection_reset", Vec::new()),
        (
            "connection_reset",
            b"HTTP/1.1 200 OK\r\ncontent-ty".to_vec(),
        ),
        ("connection_reset", event_stream_head()),
        ("connection_reset", begun_stream(&[ROLE])),
        (
            "connection_reset",
            [begun_stream(&[ROLE]), b"30\r\ndata: {\"id\"".to_vec()].concat(),
        ),
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
        ("empty", stream_of(&[""; 0])),
        ("empty", stream_of(&[ROLE])),
    ];
    let whole = json("200 OK", WHOLE);
    let given_up = WHOLE
        .replace(r#""content":"Hi""#, r#""content":"""#)
        .replace("stop", "abort");
    let plain = [
        ("connection_reset", whole[..whole.len() - 1].to_vec()),
        ("draining", json("200 OK", &given_up)),
    ];
    let streams = streams.map(|case| (ASK_STREAM, case, stream_of(&GOOD)));
    let plain = plain.map(|case| (ASK, case, whole.clone()));
    for (ask, (failure, response), good) in streams.into_iter().chain(plain) {
        let name = text(&response);
        let expected = body(&good);
        let fakes = first_of_two([Step::Send(response), Step::Close], good).await;
        let gateway = gateway_for(&fakes).await;
        let answer = gateway.post(CHAT, ask).await;
        assert_eq!((status(&answer), body(&answer)), (200, expected), "{name}");
        let record = gateway.record().await;
        assert_eq!(record.outcome, Outcome::Ok, "{name}");
        let failures: Vec<_> = record.attempts.iter().map(|one| one.failure).collect();
        assert_eq!(failures, [Some(failure), None], "{name}");
        assert_ne!(
            record.attempts[0].backend, record.attempts[1].backend,
            "{name}"
        );
        let has_one_output = ask == ASK || record.observed.output_events == 1;
        assert!(has_one_output, "discarded output is not counted: {name}");
        assert_eq!(record.not_retried, None);
    }
}

#[tokio::test]
async fn a_clients_mistake_is_not_retried() {
    let refused = r#"{"error":{"message":"too long","type":"BadRequestError","code":400}}"#;
    let fakes = first_of_two(
        [Step::Send(stream_of(&[refused, "[DONE]"]))],
        stream_of(&GOOD),
    )
    .await;
    let gateway = gateway_for(&fakes).await;
    assert!(text(&gateway.post(CHAT, ASK_STREAM).await).contains("too long"));
    assert_eq!(gateway.record().await.attempts.len(), 1);
}

#[tokio::test]
async fn if_all_are_busy_clients_get_the_error() {
    let busy = r#"{"error":{"message":"The engine is currently busy","code":503}}"#;
    let backend = || ScriptedBackend::answering(json("503 Service Unavailable", busy));
    let fakes = [backend().await, backend().await];
    let gateway = gateway_for(&fakes).await;
    let answer = gateway.post(CHAT, ASK_STREAM).await;
    assert_eq!((status(&answer), body(&answer)), (503, (busy.into(), true)));
    assert!(text(&answer).contains("retry-after: 1\r\n"));
    let record = gateway.record().await;
    assert_eq!(
        (record.outcome, record.attempts.len()),
        (Outcome::UpstreamError, 2)
    );
    assert_eq!(
        record.not_retried,
        Some(FailoverDenialReason::NoOtherBackend)
    );
}

#[tokio::test]
async fn after_two_crashes_there_is_no_third_attempt() {
    let mut fakes = Vec::new();
    for _ in 0..3 {
        fakes.push(ScriptedBackend::start(|_| vec![Step::Close]).await);
    }
    let gateway = gateway_for(&fakes).await;
    let answer = gateway.post(CHAT, ASK_STREAM).await;
    assert_eq!(status(&answer), 502);
    assert!(text(&answer).contains("x-should-retry: false\r\n"));
    let error = body_json(&answer);
    assert!(
        error["error"]["message"]
            .as_str()
            .unwrap()
            .contains("crashed while they processed")
    );
    let record = gateway.record().await;
    assert_eq!(
        (record.attempts.len(), record.not_retried),
        (2, Some(FailoverDenialReason::PoisonRequest))
    );
    let seen: usize = fakes.iter().map(|fake| fake.seen().len()).sum();
    assert_eq!(seen, 2);
}

#[tokio::test]
async fn the_first_output_buffer_has_a_timeout() {
    let first_output_buffer_timeout = Duration::from_millis(20);
    let retry = retry::RetrySettings {
        first_output_buffer_timeout,
        ..retry::RetrySettings::default()
    };
    let setup = Setup {
        retry,
        ..Setup::default()
    };
    let steps = paused(&[ROLE], &[WORD, FINISH, "[DONE]"]);
    let (fake, gateway) = gateway_following_with(setup, steps).await;
    gateway
        .post_and_release(CHAT, ASK_STREAM, "assistant", || fake.go())
        .await;
    assert_eq!(gateway.record().await.outcome, Outcome::Ok);
}

#[tokio::test]
async fn the_first_output_timeout_gives_504() {
    for begun in [Step::Send(Vec::new()), begin(&[ROLE])] {
        let setup = Setup {
            first_output: Some(Duration::from_millis(50)),
            ..Setup::default()
        };
        let (fake, gateway) = gateway_following_with(setup, [begun, Step::AwaitClose]).await;
        let answer = gateway.post(CHAT, ASK_STREAM).await;
        assert_eq!(status(&answer), 504, "{}", text(&answer));
        fake.closed().await;
        let record = gateway.record().await;
        assert_eq!(
            (record.outcome, record.ending()),
            (Outcome::Timeout, "timeout_first_output")
        );
    }
}

#[tokio::test]
async fn a_slightly_late_response_reaches_its_client() {
    let ask = with_lines(&post(CHAT, ASK_STREAM), "x-stainless-read-timeout: 10");
    for (seconds, expected) in [(14, Outcome::Ok), (16, Outcome::Cancelled)] {
        let steps = [Step::Wait, Step::Send(stream_of(&GOOD)), Step::AwaitClose];
        let (fake, gateway) = gateway_following(steps).await;
        let client = gateway.send(&ask).await;
        fake.until_received(1).await;
        advance_time(Duration::from_secs(seconds)).await;
        if expected == Outcome::Ok {
            fake.go();
        }
        let answer = read_rest(client).await;
        let code = if expected == Outcome::Ok { 200 } else { 504 };
        assert_eq!(status(&answer), code, "{}", text(&answer));
        assert_eq!(gateway.record().await.outcome, expected);
        let breaker = gateway.pool.backends()[0].health.breaker.state();
        assert_eq!(breaker, resilience::BreakerState::Closed);
    }
}

#[tokio::test]
async fn comments_make_read_timeouts_irrelevant() {
    let ask = with_lines(&post(CHAT, ASK_STREAM), "x-stainless-read-timeout: 1");
    let dies = vec![commented(), Step::Wait, Step::Close];
    for steps in [dies, vec![Step::Wait, Step::Send(stream_of(&GOOD))]] {
        let fakes = first_of_two(steps, stream_of(&GOOD)).await;
        let gateway = start_before(&fakes, with_keep_alive()).await;
        let mut client = gateway.send(&ask).await;
        read_until(&mut client, COMMENT).await;
        advance_time(Duration::from_secs(8)).await;
        fakes.iter().for_each(ScriptedBackend::go);
        read_until(&mut client, "0\r\n\r\n").await;
        assert_eq!(gateway.record().await.outcome, Outcome::Ok);
    }
}

/// Builds the settings of a gateway that sends a comment after each 20 ms of silence.
fn with_keep_alive() -> Setup {
    rules(StreamRules {
        keep_alive: Some(Duration::from_millis(20)),
        ..StreamRules::default()
    })
}

/// Builds the settings of a gateway that ends a truncated stream with an error event.
fn with_error_event() -> Setup {
    rules(StreamRules {
        on_truncation: OnTruncation::ErrorEvent,
        ..StreamRules::default()
    })
}

fn rules(streams: StreamRules) -> Setup {
    let observation = observe::ObservationSettings {
        streams,
        ..observe::ObservationSettings::default()
    };
    Setup {
        observation,
        ..Setup::default()
    }
}

/// Returns the body that a client of `path` receives if the stream breaks off after the events `sent`, and
/// whether the body is complete in terms of HTTP.
async fn broken_off(path: &str, sent: &'static [&'static str]) -> (String, bool) {
    let begun = Step::Send([event_stream_head(), framed(sent)].concat());
    let (_fake, gateway) = gateway_following_with(with_error_event(), [begun, Step::Close]).await;
    let (bytes, is_whole) = body(&gateway.post(path, ASK_STREAM).await);
    assert_eq!(gateway.record().await.outcome, Outcome::Truncated);
    (text(&bytes), is_whole)
}

const CHAT_WORD: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"}}]}\n\n";
const MESSAGE: &str = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\
    \"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\n\n";

#[tokio::test]
async fn an_error_event_marks_a_truncated_stream() {
    let (received, is_whole) = broken_off(CHAT, &[CHAT_WORD]).await;
    let event = received
        .strip_prefix(CHAT_WORD)
        .unwrap()
        .strip_prefix("data: ")
        .unwrap();
    let event: Value = serde_json::from_str(event.trim_end()).unwrap();
    assert_eq!((&event["error"]["code"], is_whole), (&502.into(), false));
    let (received, is_whole) = broken_off(CHAT, &[CHAT_WORD, "data: {\"cho"]).await;
    assert_eq!(
        (received, is_whole),
        (format!("{CHAT_WORD}data: {{\"cho"), false),
        "no error event inside another event"
    );
    let (received, _) = broken_off("/v1/messages", &[MESSAGE]).await;
    assert!(received.contains("event: error\ndata: {"), "{received}");
}

/// In the first case the backend sends a comment before its first output. In the others the gateway sends
/// comments, before the first output or after it.
#[tokio::test]
async fn comments_are_forwarded_and_count_as_no_output() {
    let cases: [(&[&str], Setup, usize, u64); 3] = [
        (&[COMMENT], Setup::default(), 1, 1),
        (&[], with_keep_alive(), 1, 0),
        (&[&data(ROLE), &data(WORD)], with_keep_alive(), 3, 0),
    ];
    for (sent, setup, count, observed) in cases {
        let begun = [event_stream_head(), framed(sent)].concat();
        let rest = [GOOD.map(chunk).concat(), b"0\r\n\r\n".to_vec()].concat();
        let steps = [Step::Send(begun), Step::Wait, Step::Send(rest)];
        let (fake, gateway) = gateway_following_with(setup, steps).await;
        let mut client = gateway.begin(CHAT, ASK_STREAM).await;
        read_until_times(&mut client, COMMENT, count).await;
        fake.go();
        read_until(&mut client, "0\r\n\r\n").await;
        let record = gateway.record().await;
        assert_eq!(
            (record.outcome, record.observed.comments),
            (Outcome::Ok, observed)
        );
    }
}

/// Returns a response with a `content-length` and an event stream, in two pieces. A script can have a
/// [`Step::Wait`] between them.
fn stream_with_length() -> [Vec<u8>; 2] {
    let (begun, rest) = (
        [ROLE, WORD].map(data).concat(),
        [FINISH, "[DONE]"].map(data).concat(),
    );
    let head = "content-type: text/event-stream\r\n";
    let mut begun = response("200 OK", head, begun + &rest);
    let rest = begun.split_off(begun.len() - rest.len());
    [begun, rest]
}

#[tokio::test]
async fn own_comments_respect_a_content_length() {
    let [begun, rest] = stream_with_length();
    let steps = [Step::Send(begun), Step::Wait, Step::Send(rest)];
    let (fake, gateway) = gateway_following_with(with_keep_alive(), steps).await;
    // The client uses HTTP/1.1.
    let answer = gateway
        .post_and_release(CHAT, ASK_STREAM, COMMENT, || fake.go())
        .await;
    assert!(
        !text(&answer)
            .to_ascii_lowercase()
            .contains("content-length"),
        "{}",
        text(&answer)
    );
    let (bytes, is_whole) = body(&answer);
    assert!(
        is_whole && bytes.ends_with(b"data: [DONE]\n\n"),
        "{}",
        text(&bytes)
    );
    // The client uses HTTP/2.
    let mut sender = http2_client::handshake(gateway.connect().await).await;
    let mut answer = http2_client::post(&mut sender, CHAT, ASK_STREAM).await;
    assert!(!answer.headers().contains_key("content-length"));
    let mut bytes = Vec::new();
    while !text(&bytes).contains(": keep-alive\n\n") {
        let frame = answer.frame().await.unwrap().unwrap();
        bytes.extend_from_slice(&frame.into_data().unwrap());
    }
    fake.go();
    bytes.extend_from_slice(&http2_client::whole(answer).await.1);
    assert!(bytes.ends_with(b"data: [DONE]\n\n"), "{}", text(&bytes));
}

#[tokio::test]
async fn error_events_respect_a_content_length() {
    let [begun, _] = stream_with_length();
    let steps = [Step::Send(begun), Step::Close];
    let (_fake, gateway) = gateway_following_with(with_error_event(), steps).await;
    let (bytes, is_whole) = body(&gateway.post(CHAT, ASK_STREAM).await);
    assert!(
        text(&bytes).contains("\"error\":{") && !is_whole,
        "{}",
        text(&bytes)
    );
}

#[tokio::test]
async fn unchanged_streams_keep_their_content_length() {
    let [begun, rest] = stream_with_length();
    let (_fake, gateway) = gateway_answering([begun, rest].concat()).await;
    let answer = text(&gateway.post(CHAT, ASK_STREAM).await).to_ascii_lowercase();
    assert!(answer.contains("content-length: "), "{answer}");
}

#[tokio::test]
async fn early_comments_do_not_prevent_failover() {
    let good = body_text(&stream_of(&GOOD));
    for failure in [Vec::new(), [chunk(ROLE), chunk(ERROR)].concat()] {
        let steps = [commented(), Step::Wait, Step::Send(failure), Step::Close];
        let fakes = first_of_two(steps, stream_of(&GOOD)).await;
        let gateway = gateway_for(&fakes).await;
        let release = || fakes.iter().for_each(ScriptedBackend::go);
        let answer = gateway
            .post_and_release(CHAT, ASK_STREAM, COMMENT, release)
            .await;
        let (bytes, is_whole) = body(&answer);
        assert_eq!((text(&bytes), is_whole), (format!("{COMMENT}{good}"), true));
        let record = gateway.record().await;
        assert_eq!((record.outcome, record.attempts.len()), (Outcome::Ok, 2));
    }
    // The gateway holds the first event of the backend back, while its own comments reach the client.
    let steps = [begin(&[ROLE]), Step::Wait, Step::Send(chunk(ERROR))];
    let fakes = first_of_two(steps, stream_of(&GOOD)).await;
    let gateway = start_before(&fakes, with_keep_alive()).await;
    let mut client = gateway.begin(CHAT, ASK_STREAM).await;
    let mut answer = read_until(&mut client, COMMENT).await;
    assert!(!text(&answer).contains("role"), "{}", text(&answer));
    fakes.iter().for_each(ScriptedBackend::go);
    answer.extend(read_until(&mut client, "0\r\n\r\n").await);
    let received = body_text(&answer).replace(COMMENT, "");
    assert_eq!(received, good);
    assert_eq!(gateway.record().await.attempts.len(), 2);
}

/// Returns the steps of a response that begins with `kept`, such as white space, which keeps the connection
/// open and is no output. Then the steps wait and close the connection.
fn kept_open(media_type: &str, kept: &str) -> [Step; 3] {
    let begun = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {media_type}\r\ntransfer-encoding: chunked\r\n\r\n\
         {:x}\r\n{kept}\r\n",
        kept.len()
    );
    [Step::Send(begun.into_bytes()), Step::Wait, Step::Close]
}

#[tokio::test]
async fn keep_alive_bytes_do_not_prevent_failover() {
    let stream = "\n\r\n \n\nevent: ping\ndata: {}\n\ndata:\n\n";
    let cases = [
        (
            "application/json",
            "\n \t",
            ASK,
            json("200 OK", WHOLE),
            WHOLE,
        ),
        (
            "text/event-stream",
            stream,
            ASK_STREAM,
            stream_of(&GOOD),
            "data: [DONE]\n\n",
        ),
    ];
    for (media_type, kept, request, good, end) in cases {
        let fakes = first_of_two(kept_open(media_type, kept), good).await;
        let gateway = gateway_for(&fakes).await;
        let release = || fakes.iter().for_each(ScriptedBackend::go);
        let answer = gateway.post_and_release(CHAT, request, kept, release).await;
        let head = text(&answer).to_ascii_lowercase();
        assert!(
            head.contains(&format!("content-type: {media_type}")),
            "{head}"
        );
        let (bytes, is_whole) = body(&answer);
        let received = text(&bytes);
        assert!(
            is_whole && received.starts_with(kept) && received.ends_with(end),
            "{received}"
        );
        let record = gateway.record().await;
        assert_eq!((record.outcome, record.attempts.len()), (Outcome::Ok, 2));
        assert_eq!(
            record.observed.output_events,
            u64::from(media_type != "application/json")
        );
    }
}

#[tokio::test]
async fn begun_json_is_cut_without_an_answer() {
    let (fake, gateway) = gateway_following(kept_open("application/json", "\n")).await;
    let begun = "1\r\n\n\r\n";
    let answer = gateway
        .post_and_release(CHAT, ASK, begun, || fake.go())
        .await;
    assert_eq!(
        body(&answer),
        (b"\n".to_vec(), false),
        "no error looks like an answer"
    );
}

/// When the backend fails, the client already has the status 200. So the gateway must report the failure in
/// the stream.
#[tokio::test]
async fn late_failures_are_error_events() {
    let cases = [
        (CHAT, "data: {\"error\":{"),
        ("/v1/completions", "data: {\"error\":{"),
        ("/v1/messages", "event: error\ndata: {"),
        ("/v1/responses", "event: error\ndata: {"),
    ];
    for (path, begin) in cases {
        let (fake, gateway) = gateway_following([commented(), Step::Wait, Step::Close]).await;
        let ask = r#"{"model":"tiny","stream":true,"messages":[],"input":"a"}"#;
        let answer = gateway
            .post_and_release(path, ask, COMMENT, || fake.go())
            .await;
        let received = body_text(&answer);
        let event = received.strip_prefix(COMMENT).unwrap();
        assert!(
            event.starts_with(begin) && event.ends_with("}\n\n"),
            "{path} {received}"
        );
        assert_eq!(
            (status(&answer), gateway.record().await.status),
            (200, Some(502))
        );
    }
    let (fake, gateway) = gateway_following([commented(), Step::Wait, Step::Close]).await;
    // The same test over HTTP/2.
    let mut sender = http2_client::handshake(gateway.connect().await).await;
    let answer = http2_client::post(&mut sender, CHAT, ASK_STREAM).await;
    assert_eq!(answer.headers()["x-accel-buffering"], "no");
    assert!(answer.headers().contains_key("x-request-id"));
    fake.go();
    let bytes = http2_client::whole(answer).await.1;
    assert!(text(&bytes).contains("\"code\":502"), "{}", text(&bytes));
}

#[tokio::test]
async fn a_model_has_its_own_first_output_timeout() {
    let first_output = Some(Duration::from_millis(30));
    let strict = ModelConfig {
        name: "strict".into(),
        served_as: Some("tiny".into()),
        policy: RoutePolicy {
            first_output,
            ..RoutePolicy::default()
        },
        ..ModelConfig::default()
    };
    let setup = Setup {
        models: vec![strict],
        ..Setup::default()
    };
    let (fake, gateway) =
        gateway_following_with(setup, [Step::Send(event_stream_head()), Step::AwaitClose]).await;
    assert_eq!(
        status(
            &gateway
                .post(CHAT, &ASK_STREAM.replace("tiny", "strict"))
                .await
        ),
        504
    );
    fake.closed().await;
    let other = gateway.begin(CHAT, ASK_STREAM).await;
    fake.until_received(2).await;
    drop(other);
    fake.closed().await;
    gateway.record().await;
    assert_eq!(
        gateway.record().await.outcome,
        Outcome::Cancelled,
        "the request waits for its output"
    );
}

#[tokio::test]
async fn failed_attempts_are_no_gateway_overhead() {
    let fakes = first_of_two([Step::Wait, Step::Close], stream_of(&GOOD)).await;
    let gateway = gateway_for(&fakes).await;
    let hold_first_attempt = async {
        wait_until!(fakes.iter().any(|fake| !fake.seen().is_empty()));
        advance_time(Duration::from_secs(1)).await;
        fakes.iter().for_each(ScriptedBackend::go);
    };
    let (answer, ()) = tokio::join!(gateway.post(CHAT, ASK_STREAM), hold_first_attempt);
    assert_eq!(status(&answer), 200);
    let record = gateway.record().await;
    assert_eq!(record.attempts.len(), 2);
    assert!(record.failed_attempts() >= Some(Duration::from_secs(1)));
    assert!(
        record.overhead() < Some(Duration::from_millis(500)),
        "{:?}",
        record.overhead()
    );
    let page = gateway.admin("/metrics").await;
    assert!(value(&page, "tokenweir_gateway_overhead_seconds_sum") < 0.5);
}
