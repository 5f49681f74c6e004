//! Request smuggling: raw bytes that different servers have parsed in different ways. The gateway rejects
//! each of these requests before it reaches a backend, or forwards exactly one unambiguous request. The next
//! client on the same connections gets its own response.

pub(crate) mod requests;

use crate::support::scripted_backend::{ScriptedBackend, Step, json};
use crate::support::strict::{Answered, answers, check_forwarded_request};
use crate::support::test_gateway::{CHAT, Running, gateway_scripted, post, start};
use requests::{Case, Verdict};
use std::time::Duration;

/// Time within which the gateway must close the connection of each test case.
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts a backend that responds with the body of each request.
pub(crate) async fn echo() -> ScriptedBackend {
    ScriptedBackend::start(|received| {
        vec![Step::Send(json(
            "200 OK",
            &String::from_utf8_lossy(&received.body),
        ))]
    })
    .await
}

/// Starts the backend of [`echo`], and a gateway in front of it.
pub(crate) async fn echo_gateway() -> (ScriptedBackend, Running) {
    let fake = echo().await;
    let gateway = start(&[fake.addr]).await;
    (fake, gateway)
}

/// Builds a valid request with this name in its body, and the response that it must get.
pub(crate) fn victim(name: &str) -> (String, Answered) {
    let body = format!(r#"{{"model":"tiny","user":"{name}"}}"#);
    (post(CHAT, &body), Answered { status: 200, body })
}

/// Like [`Running::raw`], but fails if the gateway does not close the connection in time.
async fn converse(gateway: &Running, bytes: &[u8]) -> Vec<u8> {
    let answer = tokio::time::timeout(WAIT_TIMEOUT, gateway.raw(bytes)).await;
    assert!(
        answer.is_ok(),
        "it hangs: {:?}",
        String::from_utf8_lossy(bytes)
    );
    answer.unwrap()
}

/// Sends two requests on one connection, that of the test case and a valid one, and then a valid request on a
/// new connection. Checks what the backend and the clients receive.
async fn judge(gateway: &Running, fake: &ScriptedBackend, case: &Case) {
    let name = case.name;
    fake.take_received();
    let (after, expected) = victim("after");
    let answer = converse(gateway, &[&case.bytes[..], after.as_bytes()].concat()).await;
    let answers = answers(&answer).expect(name);
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    let mut received = fake.take_received();
    for received in &received {
        assert_eq!(check_forwarded_request(received), Ok(()), "{name}");
        // No part of a request may determine the host to which the gateway sends it.
        assert!(
            received
                .head
                .contains(&format!("\r\nhost: {}\r\n", fake.addr)),
            "{name}"
        );
    }
    let victims = answers.iter().filter(|answer| **answer == expected).count();
    assert_eq!(
        received.len(),
        case.verdict.requests() + victims,
        "{name}: {statuses:?}"
    );
    match case.verdict {
        Verdict::Refused(status) => {
            // The connection may stay open if it is clear where the next request begins.
            assert_eq!(statuses[0], status, "{name}: {answers:?}");
            assert_eq!(answers.len(), 1 + victims, "{name}: {statuses:?}");
            let error: serde_json::Value = serde_json::from_str(&answers[0].body).unwrap();
            assert_eq!(error["error"]["code"], status, "{name}");
        }
        Verdict::Served => {
            assert_eq!((statuses, victims), (vec![200, 200], 1), "{name}");
            received.pop();
        }
        Verdict::ServedLast => assert_eq!((statuses, victims), (vec![200], 0), "{name}"),
        Verdict::ServedThenRefused => {
            assert_eq!((statuses, victims), (vec![200, 400], 0), "{name}");
        }
    }
    if let Some(received) = received.first().filter(|_| case.verdict.requests() > 0) {
        assert_eq!(
            String::from_utf8_lossy(&received.body),
            requests::BODY,
            "{name}"
        );
        assert!(
            received.head.starts_with(&format!("POST {CHAT}")),
            "{name}: {}",
            received.head
        );
        let leaked = case
            .gone
            .iter()
            .find(|gone| received.head.to_lowercase().contains(*gone));
        assert_eq!(leaked, None, "{name}: {}", received.head);
    }
    let (other, expected) = victim("other");
    let answer = converse(gateway, other.as_bytes()).await;
    assert_eq!(
        self::answers(&answer),
        Ok(vec![expected]),
        "{name}: another client"
    );
}

#[tokio::test]
async fn ambiguous_requests_are_rejected_or_count_as_one() {
    let (fake, gateway) = echo_gateway().await;
    let cases = requests::all();
    for case in &cases {
        judge(&gateway, &fake, case).await;
    }
    assert!(gateway.pool.is_ready(), "no backend was marked down");
    // There are a few connections, because the gateway does not reuse one that was idle for a while.
    let connections = fake.connections();
    assert!(
        connections < 10,
        "{connections} backend connections instead of a few"
    );
    let refused = cases
        .iter()
        .filter(|case| matches!(case.verdict, Verdict::Refused(_)))
        .count();
    println!("{} requests, {refused} of them rejected", cases.len());
}

/// Each test case follows a valid request on the same connection.
#[tokio::test]
async fn a_pipelined_request_is_checked_equally() {
    let (fake, gateway) = echo_gateway().await;
    let (first, expected) = victim("first");
    let first = first.replace("connection: close\r\n", "");
    for case in requests::all() {
        let Verdict::Refused(status @ (400 | 405)) = case.verdict else {
            continue;
        };
        fake.take_received();
        let (after, _) = victim("after");
        let all = [first.as_bytes(), &case.bytes, after.as_bytes()].concat();
        let answer = converse(&gateway, &all).await;
        let name = case.name;
        let answers = answers(&answer).expect(name);
        assert_eq!(
            (&answers[0], answers[1].status),
            (&expected, status),
            "{name}"
        );
        // The connection stays open only if it is clear where the rejected request ends. Then the request
        // after it is served.
        assert_eq!(
            fake.take_received().len(),
            answers.len() - 1,
            "{name}: {answers:?}"
        );
    }
}

#[tokio::test]
async fn an_unrequested_response_reaches_no_client() {
    let (_fake, gateway) = gateway_scripted(|received| {
        let own = json("200 OK", &String::from_utf8_lossy(&received.body));
        vec![Step::Send(
            [own, json("200 OK", r#"{"user":"poison"}"#)].concat(),
        )]
    })
    .await;
    for number in 0..50 {
        let (request, expected) = victim(&format!("victim-{number}"));
        let answer = converse(&gateway, request.as_bytes()).await;
        assert_eq!(answers(&answer), Ok(vec![expected]));
    }
}
