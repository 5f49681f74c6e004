//! How requests end and who closed first, in the words of the record.

use crate::support::fake::{FINISH, Fake, ROLE, Step, WORD, chunk, json, stream_head, stream_of};
use crate::support::gateway::{Running, Setup, body, post, start, start_with};
use std::time::Duration;
use tokenweir::server::Drained;
use tokenweir_core::record::{EndedBy, Outcome, RequestRecord};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";
const ASK: &str = r#"{"model":"tiny","stream":true,"messages":[]}"#;

fn told(record: &RequestRecord) -> (Outcome, &'static str, EndedBy) {
    (record.outcome, record.ending(), record.end.by())
}

async fn send(gateway: &Running) -> TcpStream {
    let mut client = gateway.connect().await;
    client.write_all(post(CHAT, ASK).as_bytes()).await.unwrap();
    client
}

async fn read_until(client: &mut TcpStream, wanted: &str) {
    let mut answer = Vec::new();
    while !String::from_utf8_lossy(&answer).contains(wanted) {
        assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0, "ended before {wanted}");
    }
}

#[tokio::test]
async fn whatever_the_replica_closes_is_ended_by_it() {
    let begun = [stream_head(), chunk(ROLE), chunk(WORD)].concat();
    let error = r#"{"error":{"message":"boom","type":"InternalServerError","code":500}}"#;
    let no_finish = [ROLE, WORD, "[DONE]"];
    let cases = [
        (stream_of(&[ROLE, WORD, FINISH, "[DONE]"]), Outcome::Ok, "ok"),
        (json("200 OK", r#"{"id":"c","choices":[]}"#), Outcome::Ok, "ok"),
        (json("400 Bad Request", "{}"), Outcome::ClientError, "client_error"),
        (json("503 Service Unavailable", "{}"), Outcome::UpstreamError, "upstream_status"),
        (stream_of(&[ROLE, error, "[DONE]"]), Outcome::StreamError, "inband_error"),
        (
            stream_of(&[ROLE, &FINISH.replace("stop", "abort"), "[DONE]"]),
            Outcome::Aborted,
            "upstream_abort",
        ),
        (stream_of(&[ROLE, WORD]), Outcome::Truncated, "truncated_clean"),
        (stream_of(&[ROLE, WORD, FINISH]), Outcome::Truncated, "truncated_clean"),
        (stream_of(&no_finish), Outcome::Truncated, "truncated_clean"),
        (begun, Outcome::Truncated, "truncated_cut"),
    ];
    for (answer, outcome, ending) in cases {
        let name = String::from_utf8_lossy(&answer).into_owned();
        let fake = Fake::start(move |_| vec![Step::Send(answer.clone()), Step::Close]).await;
        let gateway = start(&[fake.addr]).await;
        gateway.post(CHAT, ASK).await;
        let record = gateway.record().await;
        assert_eq!(told(&record), (outcome, ending, EndedBy::Backend), "{name}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_ended_the_request_and_did_not_cancel_what_was_whole() {
    let whole = [ROLE, WORD, FINISH, "[DONE]"].iter().flat_map(|event| chunk(event));
    let whole: Vec<u8> = stream_head().into_iter().chain(whole).collect();
    let no_finish = [stream_head(), chunk(WORD), chunk("[DONE]")].concat();
    let cases = [
        (whole, "[DONE]", Outcome::Ok, "ok_client_left_after_end"),
        (no_finish, "[DONE]", Outcome::Cancelled, "client_cancelled"),
        ([stream_head(), chunk(WORD)].concat(), "Hi", Outcome::Cancelled, "client_cancelled"),
    ];
    for (begun, read, outcome, ending) in cases {
        let fake = Fake::start(move |_| vec![Step::Send(begun.clone()), Step::AwaitClose]).await;
        let gateway = start(&[fake.addr]).await;
        let mut client = send(&gateway).await;
        read_until(&mut client, read).await;
        drop(client);
        fake.closed().await;
        assert_eq!(told(&gateway.record().await), (outcome, ending, EndedBy::Client));
    }
}

#[tokio::test]
async fn what_the_gateway_refuses_or_gives_up_is_ended_by_it() {
    let fake = Fake::start(|_| vec![Step::AwaitClose]).await;
    let setup = Setup { header_timeout: Duration::from_millis(50), ..Setup::default() };
    let gateway = start_with(&[fake.addr], setup).await;
    gateway.post(CHAT, ASK).await;
    let timeout = (Outcome::Timeout, "timeout_headers", EndedBy::Gateway);
    assert_eq!(told(&gateway.record().await), timeout);
    gateway.post(CHAT, "not json").await;
    let refused = (Outcome::ClientError, "client_error", EndedBy::Gateway);
    assert_eq!(told(&gateway.record().await), refused);
    fake.set_healthy(false);
    while gateway.pool.is_ready() {
        tokio::task::yield_now().await;
    }
    gateway.post(CHAT, ASK).await;
    let rejected = (Outcome::Rejected, "gateway_reject", EndedBy::Gateway);
    assert_eq!(told(&gateway.record().await), rejected);
}

#[tokio::test]
async fn what_the_drain_deadline_cuts_was_ended_by_the_gateway() {
    // One has begun to stream, one waits for its head.
    for begun in [[stream_head(), chunk(ROLE), chunk(WORD)].concat(), Vec::new()] {
        let is_streaming = !begun.is_empty();
        let fake = Fake::start(move |_| vec![Step::Send(begun.clone()), Step::AwaitClose]).await;
        let setup = Setup { drain: Duration::from_millis(50), ..Setup::default() };
        let mut gateway = start_with(&[fake.addr], setup).await;
        let mut client = send(&gateway).await;
        if is_streaming {
            read_until(&mut client, "Hi").await;
        }
        while fake.seen().is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(gateway.stop().await, Drained::Cut);
        fake.closed().await;
        let record = gateway.record().await;
        let shutdown = (Outcome::Shutdown, "gateway_shutdown", EndedBy::Gateway);
        assert_eq!(told(&record), shutdown);
        assert_eq!(record.error_type(), Some("shutdown"));
        gateway.assert_no_more_records().await;
    }
}

#[tokio::test]
async fn a_stream_that_was_whole_at_the_drain_deadline_is_a_success() {
    let whole = [ROLE, WORD, FINISH, "[DONE]"].iter().flat_map(|event| chunk(event));
    let whole: Vec<u8> = stream_head().into_iter().chain(whole).collect();
    let fake = Fake::start(move |_| vec![Step::Send(whole.clone()), Step::AwaitClose]).await;
    let setup = Setup { drain: Duration::from_millis(50), ..Setup::default() };
    let mut gateway = start_with(&[fake.addr], setup).await;
    let mut client = send(&gateway).await;
    read_until(&mut client, "[DONE]").await;
    assert_eq!(gateway.stop().await, Drained::Cut);
    let mut rest = Vec::new();
    let _ = client.read_to_end(&mut rest).await;
    assert!(!rest.ends_with(b"0\r\n\r\n"), "the end that did not come is not made up");
    let record = gateway.record().await;
    assert_eq!(told(&record), (Outcome::Ok, "ok", EndedBy::Gateway));
}

#[tokio::test]
async fn what_came_before_a_cut_reaches_the_client_although_both_came_at_once() {
    let begun = [stream_head(), chunk(ROLE), chunk(WORD)].concat();
    let fake = Fake::start(move |_| vec![Step::Send(begun.clone()), Step::Close]).await;
    let gateway = start(&[fake.addr]).await;
    let (bytes, is_whole) = body(&gateway.post(CHAT, ASK).await);
    let text = String::from_utf8(bytes).unwrap();
    assert_eq!((text, is_whole), (format!("data: {ROLE}\n\ndata: {WORD}\n\n"), false));
}

#[tokio::test]
async fn a_body_that_is_cut_is_never_whole_for_its_client() {
    let answer =
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{}";
    let fake = Fake::start(move |_| vec![Step::Send(answer.to_vec()), Step::Close]).await;
    let gateway = start(&[fake.addr]).await;
    assert!(!body(&gateway.post(CHAT, ASK).await).1);
    let cut = (Outcome::Truncated, "truncated_cut", EndedBy::Backend);
    assert_eq!(told(&gateway.record().await), cut);
}
