//! Usage injection: if a client did not request usage for its stream, the gateway requests it from the
//! backend, records it, and removes the usage event from the response. All other bytes pass unchanged.

use crate::support::scripted_backend::{
    FINISH, LLAMA_CPP, ROLE, ScriptedBackend, Seen, Step, USAGE, VLLM, WHOLE_STREAM, WORD, data,
    json, response, stream_of,
};
use crate::support::test_gateway::{
    ASK_STREAM, CHAT, Running, Setup, body, gateway_answering_with, post, start_with, status,
};
use crate::support::{http2_client, record_facts};
use std::time::Duration;
use tokenweir_request::record::{Outcome, RequestRecord, UsageSource};
use tokenweir_routing::{Policy, PolicyKind};

const EDITED: &str =
    r#"{"stream_options":{"include_usage":true},"model":"tiny","stream":true,"messages":[]}"#;

/// Starts a backend that answers with these bytes, and a gateway that requests usage from it.
async fn injecting(bytes: impl Into<Vec<u8>>) -> (ScriptedBackend, Running) {
    gateway_answering_with(
        Setup {
            injects_usage: true,
            ..Setup::default()
        },
        bytes,
    )
    .await
}

/// Builds the body of an event stream that consists of these events.
fn lines(events: &[&str]) -> String {
    events.iter().map(|event| data(event)).collect()
}

fn without_usage() -> String {
    lines(&[ROLE, WORD, FINISH, "[DONE]"])
}

fn text(answer: &[u8]) -> (String, bool) {
    let (bytes, is_whole) = body(answer);
    (String::from_utf8(bytes).unwrap(), is_whole)
}

fn has_length(seen: &Seen, length: usize) -> bool {
    seen.head
        .to_ascii_lowercase()
        .contains(&format!("\r\ncontent-length: {length}\r\n"))
}

fn tokens(record: &RequestRecord) -> (UsageSource, Option<u64>, Option<u64>) {
    let observed = &record.observed;
    (
        observed.usage_source,
        observed.usage.input,
        observed.usage.output,
    )
}

const COUNTED: (UsageSource, Option<u64>, Option<u64>) = (UsageSource::Exact, Some(9), Some(3));

#[tokio::test]
async fn usage_is_requested_and_hidden() {
    let (fake, gateway) = injecting(stream_of(&WHOLE_STREAM)).await;
    let answer = text(&gateway.post(CHAT, ASK_STREAM).await);
    assert_eq!(answer, (without_usage(), true));
    let seen = &fake.seen()[0];
    assert_eq!(String::from_utf8_lossy(&seen.body), EDITED);
    assert!(has_length(seen, EDITED.len()), "{}", seen.head);
    let record = gateway.record().await;
    assert_eq!((tokens(&record), record.outcome), (COUNTED, Outcome::Ok));
    assert_eq!(
        record.bytes_in,
        ASK_STREAM.len() as u64,
        "the bytes from the client"
    );
    assert_eq!(
        record.bytes_out,
        without_usage().len() as u64,
        "the bytes to the client"
    );
    gateway
        .assert_value("tokenweir_usage_events_total{result=\"stripped\"}", 1.0)
        .await;
}

#[tokio::test]
async fn requested_usage_passes_unchanged() {
    for options in [
        r#"{"include_usage":true}"#,
        r#"{ "include_usage" : true, "x":{}}"#,
    ] {
        let (fake, gateway) = injecting(stream_of(&WHOLE_STREAM)).await;
        let ask = format!(r#"{{"model":"tiny","stream":true,"stream_options":{options}}}"#);
        assert_eq!(
            text(&gateway.post(CHAT, &ask).await),
            (lines(&WHOLE_STREAM), true)
        );
        assert_eq!(fake.seen()[0].body, ask.as_bytes());
        let record = gateway.record().await;
        assert_eq!(
            (tokens(&record), record.observed.usage_event),
            (COUNTED, None)
        );
    }
}

#[tokio::test]
async fn unedited_requests_pass_unchanged() {
    let continuous =
        r#"{"model":"tiny","stream":true,"stream_options":{"continuous_usage_stats":true}}"#;
    let signed = |name: &str| {
        post(CHAT, ASK_STREAM).replace(
            "connection: close",
            &format!("connection: close\r\n{name}: a"),
        )
    };
    let cases = [
        post(CHAT, continuous),
        post(
            CHAT,
            r#"{"model":"tiny","stream":true,"stream_options":{"include_usage":"yes"}}"#,
        ),
        post(CHAT, r#"{"model":"tiny","stream":false}"#),
        post("/v1/responses", ASK_STREAM),
        post("/v1/messages", ASK_STREAM),
        record_facts::request("/v1/audio/transcriptions"),
        signed("content-digest"),
        signed("Digest"),
        signed("x-amz-content-sha256"),
    ];
    let (fake, gateway) = injecting(stream_of(&WHOLE_STREAM)).await;
    for request in cases {
        let answer = text(&gateway.raw(&request).await);
        assert_eq!(answer, (lines(&WHOLE_STREAM), true), "{request}");
        let seen = fake.seen().pop().unwrap();
        let sent = request.split_once("\r\n\r\n").unwrap().1;
        assert_eq!(String::from_utf8_lossy(&seen.body), sent, "{request}");
        assert_eq!(
            gateway.record().await.observed.usage_event,
            None,
            "{request}"
        );
    }
}

#[tokio::test]
async fn unknown_servers_get_unchanged_requests() {
    for (kind, injects_usage) in [(LLAMA_CPP, true), (VLLM, false)] {
        let fake =
            ScriptedBackend::start_kind(kind, |_| vec![Step::Send(stream_of(&WHOLE_STREAM))]).await;
        let gateway = start_with(
            &[fake.addr],
            Setup {
                injects_usage,
                ..Setup::default()
            },
        )
        .await;
        assert_eq!(
            text(&gateway.post(CHAT, ASK_STREAM).await),
            (lines(&WHOLE_STREAM), true)
        );
        assert_eq!(fake.seen()[0].body, ASK_STREAM.as_bytes());
        let record = gateway.record().await;
        assert!(!record.options.usage_injected);
        assert_eq!(
            (tokens(&record), record.observed.usage_event),
            (COUNTED, None)
        );
    }
}

#[tokio::test]
async fn unreadable_streams_end_the_requests_for_usage() {
    let labels = [
        "x-no-type: 1",
        "content-type: text/plain",
        "content-type: application/json",
    ];
    let encoded = "content-type: text/event-stream\r\ncontent-encoding: br";
    for label in [&labels[..], &[encoded]].concat() {
        let events = lines(&WHOLE_STREAM);
        let answer = response("200 OK", &format!("{label}\r\n"), &events);
        let (fake, gateway) = injecting(answer).await;
        for sent in [EDITED, ASK_STREAM] {
            assert_eq!(
                text(&gateway.post(CHAT, ASK_STREAM).await),
                (events.clone(), true),
                "{label}"
            );
            let seen = fake.seen().pop().expect("a request");
            assert_eq!(String::from_utf8_lossy(&seen.body), sent, "{label}");
            gateway.record().await;
        }
    }
}

#[tokio::test]
async fn an_error_response_passes_unchanged() {
    let error = r#"{"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}"#;
    let (_fake, gateway) = injecting(json("400 Bad Request", error)).await;
    let answer = gateway.post(CHAT, ASK_STREAM).await;
    assert_eq!(
        (status(&answer), text(&answer)),
        (400, (error.to_owned(), true))
    );
    let head = String::from_utf8_lossy(&answer).to_ascii_lowercase();
    assert!(head.contains(&format!("content-length: {}\r\n", error.len())));
    let record = gateway.record().await;
    assert_eq!(
        (record.outcome, record.observed.usage_event),
        (Outcome::ClientError, None)
    );
}

#[tokio::test]
async fn a_content_length_stays_complete() {
    let all = lines(&WHOLE_STREAM);
    let answer = response("200 OK", "content-type: text/event-stream\r\n", all);
    let (_fake, gateway) = injecting(answer).await;
    assert_eq!(
        text(&gateway.post(CHAT, ASK_STREAM).await),
        (without_usage(), true)
    );
    assert_eq!(gateway.record().await.outcome, Outcome::Ok);
}

#[tokio::test]
async fn an_http2_stream_stays_complete() {
    for events in [&WHOLE_STREAM[..], &[ROLE, WORD, FINISH, "[DONE]", USAGE]] {
        let (_fake, gateway) = injecting(stream_of(events)).await;
        let mut sender = http2_client::handshake(gateway.connect().await).await;
        let answer = http2_client::post(&mut sender, CHAT, ASK_STREAM).await;
        assert_eq!(
            http2_client::whole(answer).await.1,
            without_usage().as_bytes()
        );
        assert_eq!(tokens(&gateway.record().await), COUNTED);
    }
}

#[tokio::test]
async fn a_failover_sends_the_unedited_request() {
    for (first, second, expected) in [(VLLM, LLAMA_CPP, ASK_STREAM), (LLAMA_CPP, VLLM, EDITED)] {
        let gone = ScriptedBackend::start_kind(first, |_| vec![Step::Close]).await;
        let alive =
            ScriptedBackend::start_kind(second, |_| vec![Step::Send(stream_of(&WHOLE_STREAM))])
                .await;
        let setup = Setup {
            injects_usage: true,
            policy: Policy {
                kind: PolicyKind::RoundRobin,
                ..Policy::default()
            },
            // The next scrape is an hour away, so that the gateway does not notice that the backend is down.
            scrape_interval: Duration::from_hours(1),
            ..Setup::default()
        };
        let gateway = start_with(&[gone.addr, alive.addr], setup).await;
        drop(gone);
        let mut retried_requests = 0;
        for _ in 0..2 {
            let (answer, is_whole) = text(&gateway.post(CHAT, ASK_STREAM).await);
            let is_edited = expected == EDITED;
            let events = if is_edited {
                without_usage()
            } else {
                lines(&WHOLE_STREAM)
            };
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
