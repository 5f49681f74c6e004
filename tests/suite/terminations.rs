//! How the gateway records the end of requests: the way in which they ended, and which party ended them
//! first.

use crate::support::scripted_backend::{
    FINISH, ROLE, Step, WORD, begin, begun_stream, data, framed, json, stream_of,
};
use crate::support::test_gateway::{
    ASK_STREAM, CHAT, Setup, body, gateway_following, gateway_following_with, read_until, status,
};
use std::time::Duration;
use tokenweir_gateway::server::DrainOutcome;
use tokenweir_request::record::{Outcome, RequestRecord, TerminationInitiator};
use tokio::io::AsyncReadExt;

const ERROR: &str = r#"{"error":{"message":"boom","type":"InternalServerError","code":500}}"#;

fn termination_of(record: &RequestRecord) -> (Outcome, &'static str, TerminationInitiator) {
    (record.outcome, record.ending(), record.end.initiator())
}

#[tokio::test]
async fn the_backends_end_is_recorded_as_its_own() {
    let shorter =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{}";
    let cases = [
        (
            stream_of(&[ROLE, WORD, FINISH, "[DONE]"]),
            Outcome::Ok,
            "ok",
        ),
        (
            json("200 OK", r#"{"id":"c","choices":[]}"#),
            Outcome::Truncated,
            "truncated_clean",
        ),
        (
            stream_of(&[ROLE, "[DONE]"]),
            Outcome::Truncated,
            "truncated_clean",
        ),
        (json("200 OK", ERROR), Outcome::StreamError, "inband_error"),
        (
            json("400 Bad Request", "{}"),
            Outcome::ClientError,
            "client_error",
        ),
        (
            json("503 Service Unavailable", "{}"),
            Outcome::UpstreamError,
            "upstream_status",
        ),
        (
            stream_of(&[ROLE, ERROR, "[DONE]"]),
            Outcome::StreamError,
            "inband_error",
        ),
        (
            stream_of(&[ROLE, &FINISH.replace("stop", "abort"), "[DONE]"]),
            Outcome::Aborted,
            "upstream_abort",
        ),
        (
            stream_of(&[ROLE, WORD]),
            Outcome::Truncated,
            "truncated_clean",
        ),
        (stream_of(&[ROLE, WORD, FINISH]), Outcome::Ok, "ok"),
        (stream_of(&[ROLE, WORD, "[DONE]"]), Outcome::Ok, "ok"),
        (
            begun_stream(&[ROLE, WORD]),
            Outcome::Truncated,
            "truncated_cut",
        ),
        (shorter.into(), Outcome::Truncated, "truncated_cut"),
    ];
    for (answer, outcome, ending) in cases {
        let name = String::from_utf8_lossy(&answer).into_owned();
        let sent = body(&answer).0;
        let (_fake, gateway) = gateway_following([Step::Send(answer), Step::Close]).await;
        let (received, is_whole) = body(&gateway.post(CHAT, ASK_STREAM).await);
        assert_eq!(
            received, sent,
            "bytes that arrive with the close are missing: {name}"
        );
        assert_eq!(is_whole, ending != "truncated_cut", "{name}");
        let record = gateway.record().await;
        assert_eq!(
            termination_of(&record),
            (outcome, ending, TerminationInitiator::Backend),
            "{name}"
        );
    }
}

#[tokio::test]
async fn an_end_inside_an_event_is_no_end() {
    let last = |event: &str, is_whole: bool, ending: &'static str| {
        let chunks = [
            begun_stream(&[ROLE, WORD]),
            framed(&[event]),
            b"0\r\n\r\n".to_vec(),
        ];
        (chunks.concat(), is_whole, ending)
    };
    let until_close = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n".to_vec();
    let text = format!("{}{}data: {{\"id", data(ROLE), data(WORD));
    let cases = [
        last("data: {\"id", false, "truncated_clean"),
        last("event: err", false, "truncated_clean"),
        last("data: [DONE]", true, "ok"),
        last(": comment", false, "truncated_clean"),
        (
            [until_close, text.into_bytes()].concat(),
            false,
            "truncated_clean",
        ),
    ];
    for (answer, is_whole, ending) in cases {
        let name = String::from_utf8_lossy(&answer).into_owned();
        let (_fake, gateway) = gateway_following([Step::Send(answer.clone()), Step::Close]).await;
        let received = body(&gateway.post(CHAT, ASK_STREAM).await);
        assert_eq!(received, (body(&answer).0, is_whole), "{name}");
        assert_eq!(gateway.record().await.ending(), ending, "{name}");
    }
}

#[tokio::test]
async fn a_disconnect_cancels_no_complete_response() {
    let after_end = "ok_client_disconnected_after_end";
    let cases = [
        (
            &[ROLE, WORD, FINISH, "[DONE]"][..],
            "[DONE]",
            Outcome::Ok,
            after_end,
        ),
        (&[WORD, "[DONE]"], "[DONE]", Outcome::Ok, after_end),
        (&[WORD], "Hi", Outcome::Cancelled, "client_cancelled"),
        (&[WORD, ERROR], "boom", Outcome::StreamError, "inband_error"),
    ];
    for (begun, read, outcome, ending) in cases {
        let (fake, gateway) = gateway_following([begin(begun), Step::AwaitClose]).await;
        let mut client = gateway.begin(CHAT, ASK_STREAM).await;
        read_until(&mut client, read).await;
        drop(client);
        fake.closed().await;
        assert_eq!(
            termination_of(&gateway.record().await),
            (outcome, ending, TerminationInitiator::Client)
        );
    }
}

#[tokio::test]
async fn rejections_and_timeouts_are_attributed_to_the_gateway() {
    let setup = Setup {
        header_timeout: Duration::from_millis(50),
        ..Setup::default()
    };
    let (fake, gateway) = gateway_following_with(setup, [Step::AwaitClose]).await;
    let answer = gateway.post(CHAT, ASK_STREAM).await;
    assert_eq!(status(&answer), 504);
    assert!(String::from_utf8_lossy(&answer).contains("\"type\":\"GatewayTimeoutError\""));
    fake.closed().await;
    let timeout = (
        Outcome::Timeout,
        "timeout_headers",
        TerminationInitiator::Gateway,
    );
    assert_eq!(termination_of(&gateway.record().await), timeout);
    gateway.post(CHAT, "not json").await;
    let refused = (
        Outcome::ClientError,
        "client_error",
        TerminationInitiator::Gateway,
    );
    assert_eq!(termination_of(&gateway.record().await), refused);
    fake.set_healthy(false);
    wait_until!(!gateway.pool.is_ready());
    gateway.post(CHAT, ASK_STREAM).await;
    let rejected = (
        Outcome::Rejected,
        "gateway_reject",
        TerminationInitiator::Gateway,
    );
    assert_eq!(termination_of(&gateway.record().await), rejected);
}

#[tokio::test]
async fn aborts_at_the_drain_timeout_are_the_gateways() {
    // In the first case, the stream has begun. In the second, the request still waits for its response
    // headers.
    for is_streaming in [true, false] {
        let begun = if is_streaming {
            begin(&[ROLE, WORD])
        } else {
            Step::Send(Vec::new())
        };
        let setup = Setup {
            drain: Duration::from_millis(50),
            ..Setup::default()
        };
        let (fake, mut gateway) = gateway_following_with(setup, [begun, Step::AwaitClose]).await;
        let mut client = gateway.begin(CHAT, ASK_STREAM).await;
        if is_streaming {
            read_until(&mut client, "Hi").await;
        }
        fake.until_received(1).await;
        assert_eq!(gateway.stop().await, DrainOutcome::DeadlineExceeded);
        fake.closed().await;
        let record = gateway.record().await;
        let shutdown = (
            Outcome::Shutdown,
            "gateway_shutdown",
            TerminationInitiator::Gateway,
        );
        assert_eq!(termination_of(&record), shutdown);
        assert_eq!(record.error_type(), Some("shutdown"));
        gateway.assert_no_more_records().await;
    }
}

#[tokio::test]
async fn a_stream_complete_at_the_timeout_succeeds() {
    let steps = [begin(&[ROLE, WORD, FINISH, "[DONE]"]), Step::AwaitClose];
    let setup = Setup {
        drain: Duration::from_millis(50),
        ..Setup::default()
    };
    let (_fake, mut gateway) = gateway_following_with(setup, steps).await;
    let mut client = gateway.begin(CHAT, ASK_STREAM).await;
    read_until(&mut client, "[DONE]").await;
    assert_eq!(gateway.stop().await, DrainOutcome::DeadlineExceeded);
    let mut rest = Vec::new();
    let _ = client.read_to_end(&mut rest).await;
    assert!(
        !rest.ends_with(b"0\r\n\r\n"),
        "no invented end of the stream"
    );
    let record = gateway.record().await;
    assert_eq!(
        termination_of(&record),
        (Outcome::Ok, "ok", TerminationInitiator::Gateway)
    );
}

#[tokio::test]
async fn a_close_or_reset_truncates_the_stream() {
    for end in [Step::Close, Step::Reset] {
        let (fake, gateway) = gateway_following([begin(&[ROLE, WORD]), Step::Wait, end]).await;
        let mut client = gateway.begin(CHAT, ASK_STREAM).await;
        let mut answer = read_until(&mut client, "Hi").await;
        fake.go();
        // The gateway may reset the connection of the client, so reading can end with an error.
        let _ = client.read_to_end(&mut answer).await;
        let sent = [ROLE, WORD].map(data).concat().into_bytes();
        assert_eq!(body(&answer), (sent, false));
        let record = gateway.record().await;
        assert_eq!(
            (record.outcome, record.observed.output_events),
            (Outcome::Truncated, 1)
        );
        assert_eq!(record.error_type(), Some("incomplete_stream"));
    }
}
