//! Requests that a backend answers with an error status. The answers of other backends show whether the
//! request or the backend is the cause.

use crate::capabilities::round_robin;
use crate::support::scripted_backend::{ScriptedBackend, Step, json};
use crate::support::test_gateway::{
    ASK, CHAT, Running, Setup, WHOLE, advance_time, body, body_text, start_before, status,
};
use std::time::Duration;
use tokenweir_gateway::proxy::retry;
use tokenweir_request::record::Outcome;
use tokenweir_routing::resilience::BreakerState;

const MESSAGES: &str = "/v1/messages";
const UNKNOWN: &str = r#"{"error":{"message":"The model `tiny` does not exist.","code":404}}"#;

async fn healthy() -> ScriptedBackend {
    ScriptedBackend::answering(json("200 OK", WHOLE)).await
}

/// Starts a backend that answers each request with this status and body.
async fn refusing(status_line: &'static str, content: &'static str) -> ScriptedBackend {
    ScriptedBackend::answering(json(status_line, content)).await
}

/// Starts a gateway that sends requests to the backends in turn, whatever it has learned about them.
async fn gateway_for(fakes: &[&ScriptedBackend]) -> Running {
    start_before(fakes, round_robin()).await
}

/// Sends requests until the backend `fake` has received one. Returns the responses of all these requests.
async fn ask_until_received(gateway: &Running, path: &str, fake: &ScriptedBackend) -> Vec<Vec<u8>> {
    let (before, mut answers) = (fake.seen().len(), Vec::new());
    while fake.seen().len() == before {
        assert!(answers.len() < 100, "the backend gets no request");
        answers.push(gateway.post(path, ASK).await);
    }
    answers
}

fn breaker_states(gateway: &Running) -> Vec<BreakerState> {
    gateway
        .pool
        .backends()
        .iter()
        .map(|backend| backend.health.breaker.state())
        .collect()
}

#[tokio::test]
async fn one_backends_error_status_is_its_failure() {
    for (line, content, failure) in [
        ("302 Found", "{}", "unexpected_status"),
        ("400 Bad Request", "{}", "unexpected_status"),
        ("401 Unauthorized", "{}", "unauthorized"),
        ("402 Payment Required", "{}", "unexpected_status"),
        ("403 Forbidden", "<html>", "unauthorized"),
        ("404 Not Found", UNKNOWN, "unknown_model"),
        ("404 Not Found", r#"{"detail":"Not Found"}"#, "missing_path"),
        ("405 Method Not Allowed", "", "missing_path"),
        ("407 Proxy Authentication Required", "", "unauthorized"),
        ("408 Request Timeout", "", "unexpected_status"),
        ("409 Conflict", "", "unexpected_status"),
        ("410 Gone", "", "unexpected_status"),
        ("413 Content Too Large", "", "unexpected_status"),
        ("415 Unsupported Media Type", "", "unexpected_status"),
        ("422 Unprocessable", "{}", "unexpected_status"),
        ("426 Upgrade Required", "", "unexpected_status"),
        ("429 Too Many Requests", "{}", "rate_limited"),
        ("451 Unavailable For Legal Reasons", "", "unexpected_status"),
        ("499 Odd", "", "unexpected_status"),
        ("501 Not Implemented", "{}", "missing_path"),
        ("503 Service Unavailable", "{}", "busy"),
        ("505 Version Not Supported", "{}", "server_error"),
        ("529 Overloaded", "{}", "busy"),
    ] {
        let (ill, well) = (refusing(line, content).await, healthy().await);
        let gateway = gateway_for(&[&ill, &well]).await;
        for answer in ask_until_received(&gateway, CHAT, &ill).await {
            assert_eq!(
                (status(&answer), body(&answer).0),
                (200, WHOLE.into()),
                "{line}"
            );
        }
        let records = gateway.take_records().await;
        let record = records
            .iter()
            .find(|record| record.attempts.len() == 2)
            .unwrap();
        let failures: Vec<_> = record
            .attempts
            .iter()
            .map(|attempt| attempt.failure)
            .collect();
        assert_eq!(failures, [Some(failure), None], "{line}");
        assert_eq!(
            (record.outcome, record.not_retried),
            (Outcome::Ok, None),
            "{line}"
        );
    }
}

#[tokio::test]
async fn a_common_refusal_ejects_no_backend() {
    for line in [
        "400 Bad Request",
        "401 Unauthorized",
        "404 Not Found",
        "422 No",
        "429 Too Many",
    ] {
        let fakes = [
            refusing(line, "first").await,
            refusing(line, "second").await,
        ];
        let gateway = gateway_for(&[&fakes[0], &fakes[1]]).await;
        let answer = gateway.post(CHAT, ASK).await;
        let record = gateway.record().await;
        let is_first = record.attempts[1].backend == gateway.pool.backends()[0].identity.id;
        let expected = if is_first { "first" } else { "second" };
        assert_eq!(body_text(&answer), expected, "{line}");
        assert_eq!(record.outcome, Outcome::ClientError, "{line}");
        assert!(
            record
                .attempts
                .iter()
                .all(|attempt| attempt.failure.is_none()),
            "{line}"
        );
        assert_eq!(
            record.attempts[1].started,
            record.timings.sent.unwrap(),
            "{line}"
        );
        assert_eq!(
            breaker_states(&gateway),
            [BreakerState::Closed; 2],
            "{line}"
        );
    }
}

#[tokio::test]
async fn invalid_requests_rarely_go_twice() {
    let fakes = [
        refusing("400 Bad Request", "{}").await,
        refusing("400 Bad Request", "{}").await,
    ];
    let gateway = gateway_for(&[&fakes[0], &fakes[1]]).await;
    for _ in 0..400 {
        assert_eq!(status(&gateway.post(CHAT, ASK).await), 400);
    }
    let sent: usize = fakes.iter().map(|fake| fake.seen().len()).sum();
    assert!((401..500).contains(&sent), "{sent}");
    assert_eq!(breaker_states(&gateway), [BreakerState::Closed; 2]);
}

#[tokio::test]
async fn a_400_beats_failures_and_401() {
    let dying = || ScriptedBackend::start(|_| vec![Step::Close]);
    for (other, is_dying) in [(dying().await, true), (refusing("401 No", "").await, false)] {
        let bad = refusing("400 Bad Request", "{}").await;
        let gateway = gateway_for(&[&bad, &other]).await;
        let answers = ask_until_received(&gateway, CHAT, &bad).await;
        assert_eq!(
            answers.last().map(|answer| status(answer)),
            Some(400),
            "{is_dying}"
        );
    }
}

#[tokio::test]
async fn a_backend_that_refuses_every_request_is_ejected() {
    for line in [
        "401 Unauthorized",
        "400 Bad Request",
        "500 Internal Server Error",
    ] {
        let (ill, well) = (
            refusing(line, "{}").await,
            [healthy().await, healthy().await],
        );
        let gateway = gateway_for(&[&ill, &well[0], &well[1]]).await;
        for _ in 0..60 {
            assert_eq!(status(&gateway.post(CHAT, ASK).await), 200, "{line}");
        }
        assert_eq!(ill.seen().len(), 5, "{line}: five consecutive failures");
    }
}

/// A backend that refuses a single request, such as a prompt that is too long for it, and serves others has
/// no fault.
#[tokio::test]
async fn other_answers_prevent_ejection_for_refusals() {
    let picky = ScriptedBackend::start(|seen| {
        let is_long = seen.body.ends_with(b"\"long\"]}");
        let answer = if is_long {
            json("400 Bad", "{}")
        } else {
            json("200 OK", WHOLE)
        };
        vec![Step::Send(answer)]
    })
    .await;
    let well = healthy().await;
    let gateway = gateway_for(&[&picky, &well]).await;
    ask_until_received(&gateway, CHAT, &picky).await;
    for _ in 0..40 {
        let answer = gateway
            .post(CHAT, r#"{"model":"tiny","messages":["long"]}"#)
            .await;
        assert_eq!(status(&answer), 200);
    }
    assert_eq!(breaker_states(&gateway), [BreakerState::Closed; 2]);
}

#[tokio::test]
async fn retry_after_pauses_a_backend() {
    let limited = "HTTP/1.1 429 Too Many\r\nretry-after: 20\r\ncontent-length: 0\r\n\r\n";
    let (ill, well) = (
        ScriptedBackend::answering(limited).await,
        [healthy().await, healthy().await],
    );
    let gateway = gateway_for(&[&ill, &well[0], &well[1]]).await;
    ask_until_received(&gateway, CHAT, &ill).await;
    advance_time(Duration::from_secs(10)).await;
    for _ in 0..20 {
        assert_eq!(status(&gateway.post(CHAT, ASK).await), 200);
    }
    assert_eq!(
        ill.seen().len(),
        1,
        "a rate-limited backend gets no request for 20 s"
    );
    advance_time(Duration::from_secs(11)).await;
    ask_until_received(&gateway, CHAT, &ill).await;
}

#[tokio::test]
async fn backends_without_the_path_are_avoided() {
    for (line, content) in [
        (
            "501 Not Implemented",
            r#"{"error":{"message":"not implemented"}}"#,
        ),
        ("404 Not Found", r#"{"detail":"Not Found"}"#),
        (
            "404 Not Found",
            r#"{"error":{"message":"no handler for /v1/messages"}}"#,
        ),
        ("405 Method Not Allowed", ""),
    ] {
        let refusal = json(line, content);
        let partial = ScriptedBackend::start(move |seen| {
            let lacks = seen.head.starts_with("POST /v1/messages ");
            vec![Step::Send(if lacks {
                refusal.clone()
            } else {
                json("200 OK", WHOLE)
            })]
        })
        .await;
        let well = healthy().await;
        let gateway = gateway_for(&[&partial, &well]).await;
        ask_until_received(&gateway, MESSAGES, &partial).await;
        for _ in 0..20 {
            assert_eq!(status(&gateway.post(MESSAGES, ASK).await), 200, "{line}");
        }
        assert_eq!(partial.seen().len(), 1, "{line}");
        ask_until_received(&gateway, CHAT, &partial).await;
        let minute = gateway.admin("/streams").await;
        assert!(minute.contains("\"failed_attempts\":0") || !minute.contains("failed_attempts"));
    }
}

#[tokio::test]
async fn a_404_of_an_item_marks_no_path() {
    let missing = r#"{"error":{"message":"file `f` not found","code":404}}"#;
    let partial = refusing("404 Not Found", missing).await;
    let well = healthy().await;
    let gateway = gateway_for(&[&partial, &well]).await;
    for _ in 0..2 {
        ask_until_received(&gateway, CHAT, &partial).await;
    }
}

#[tokio::test]
async fn side_effects_are_retried_only_if_unexecuted() {
    const STORE: &str = r#"{"model":"tiny","store":true,"messages":[]}"#;
    for (line, is_retried) in [
        ("401 Unauthorized", true),
        ("429 Too Many", true),
        ("404 Not Found", true),
        ("400 Bad Request", false),
        ("409 Conflict", false),
    ] {
        let (refused, served) = (json(line, "{}"), json("200 OK", WHOLE));
        let fakes =
            ScriptedBackend::first_of_two([Step::Send(refused)], [Step::Send(served)]).await;
        let gateway = gateway_for(&[&fakes[0], &fakes[1]]).await;
        let answer = gateway.post(CHAT, STORE).await;
        assert_eq!(status(&answer) == 200, is_retried, "{line}");
    }
}

#[tokio::test]
async fn a_refused_backend_key_is_the_backends_failure() {
    let fakes = [
        refusing("401 No", "{}").await,
        refusing("401 No", "{}").await,
    ];
    let setup = Setup {
        backend_key: Some("of the gateway"),
        ..Setup::default()
    };
    let gateway = start_before(&fakes, setup).await;
    assert_eq!(status(&gateway.post(CHAT, ASK).await), 401);
    let record = gateway.record().await;
    let failures: Vec<_> = record
        .attempts
        .iter()
        .map(|attempt| attempt.failure)
        .collect();
    assert_eq!(failures, [Some("unauthorized"); 2]);
}

#[tokio::test]
async fn without_retries_the_client_gets_the_refusal() {
    let fakes = [
        refusing("401 No", "{}").await,
        refusing("401 No", "{}").await,
    ];
    let setup = Setup {
        retry: retry::RetrySettings {
            attempts: 0,
            ..retry::RetrySettings::default()
        },
        ..Setup::default()
    };
    let gateway = start_before(&fakes, setup).await;
    assert_eq!(status(&gateway.post(CHAT, ASK).await), 401);
    assert_eq!(gateway.record().await.attempts.len(), 1);
}
