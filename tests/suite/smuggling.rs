//! Requests that servers have read in different ways, as raw bytes. Each is refused before a replica
//! hears of it, or becomes exactly one request that can be read in one way only; and whoever comes
//! next, on the same connections, gets his own answer.

pub(crate) mod requests;

use crate::support::fake::{Fake, Step, json};
use crate::support::gateway::{Running, post, start};
use crate::support::strict::{Answered, answers, unsound};
use requests::{Case, Verdict};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) const CHAT: &str = "/v1/chat/completions";
/// No case takes as long.
const PATIENCE: Duration = Duration::from_secs(10);

/// A replica that answers with the body of the request.
pub(crate) async fn echo() -> Fake {
    Fake::start(|seen| vec![Step::Send(json("200 OK", &String::from_utf8_lossy(&seen.body)))]).await
}

/// An honest request, known by its name.
pub(crate) fn victim(name: &str) -> (String, Answered) {
    let body = format!(r#"{{"model":"tiny","user":"{name}"}}"#);
    (post(CHAT, &body), Answered { status: 200, body })
}

/// Writes bytes on a connection of their own, and reads until it closes.
async fn converse(gateway: &Running, bytes: &[u8]) -> Vec<u8> {
    let mut stream = gateway.connect().await;
    // One that has been refused may close before all of it is written, and end in a reset.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let reading = stream.read_to_end(&mut answer);
    let is_closed = tokio::time::timeout(PATIENCE, reading).await.is_ok();
    assert!(is_closed, "it hangs: {:?}", String::from_utf8_lossy(bytes));
    answer
}

/// Sends it with a victim behind it, and another one on a connection of his own.
async fn judge(gateway: &Running, fake: &Fake, case: &Case) {
    let name = case.name;
    fake.take_seen();
    let (after, expected) = victim("after");
    let answer = converse(gateway, &[&case.bytes[..], after.as_bytes()].concat()).await;
    let answers = answers(&answer).expect(name);
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    let mut seen = fake.take_seen();
    for seen in &seen {
        assert_eq!(unsound(seen), Ok(()), "{name}");
        // Nobody but the configuration says where a request goes.
        assert!(seen.head.contains(&format!("\r\nhost: {}\r\n", fake.addr)), "{name}");
    }
    let victims = answers.iter().filter(|answer| **answer == expected).count();
    assert_eq!(seen.len(), case.verdict.requests() + victims, "{name}: {statuses:?}");
    match case.verdict {
        Verdict::Refused(status) => {
            // The connection may go on where it is clear where the next request begins.
            assert_eq!(statuses[0], status, "{name}: {answers:?}");
            assert_eq!(answers.len(), 1 + victims, "{name}: {statuses:?}");
            let error: serde_json::Value = serde_json::from_str(&answers[0].body).unwrap();
            assert_eq!(error["error"]["code"], status, "{name}");
        }
        Verdict::Served => {
            assert_eq!((statuses, victims), (vec![200, 200], 1), "{name}");
            seen.pop();
        }
        Verdict::ServedLast => assert_eq!((statuses, victims), (vec![200], 0), "{name}"),
        Verdict::ServedThenRefused => {
            assert_eq!((statuses, victims), (vec![200, 400], 0), "{name}");
        }
    }
    if let Some(seen) = seen.first().filter(|_| case.verdict.requests() > 0) {
        assert_eq!(String::from_utf8_lossy(&seen.body), requests::BODY, "{name}");
        assert!(seen.head.starts_with(&format!("POST {CHAT}")), "{name}: {}", seen.head);
        let leaked = case.gone.iter().find(|gone| seen.head.to_lowercase().contains(*gone));
        assert_eq!(leaked, None, "{name}: {}", seen.head);
    }
    let (other, expected) = victim("other");
    let answer = converse(gateway, other.as_bytes()).await;
    assert_eq!(self::answers(&answer), Ok(vec![expected]), "{name}: another client");
}

#[tokio::test]
async fn a_request_is_refused_or_becomes_exactly_one_and_the_next_gets_its_own_answer() {
    let fake = echo().await;
    let gateway = start(&[fake.addr]).await;
    let cases = requests::all();
    for case in &cases {
        judge(&gateway, &fake, case).await;
    }
    assert!(gateway.pool.is_ready(), "and no replica was blamed");
    // One that was not used for a while is not used again.
    let connections = fake.connections();
    assert!(connections < 10, "all came over few connections to the replica, not {connections}");
    let refused = cases.iter().filter(|case| matches!(case.verdict, Verdict::Refused(_))).count();
    println!("{} requests, {refused} of them refused", cases.len());
}

/// The second request must be read as carefully as the first, wherever it begins.
#[tokio::test]
async fn a_request_behind_another_one_is_read_as_carefully() {
    let fake = echo().await;
    let gateway = start(&[fake.addr]).await;
    let (first, expected) = victim("first");
    let first = first.replace("connection: close\r\n", "");
    for case in requests::all() {
        let Verdict::Refused(status @ (400 | 405)) = case.verdict else { continue };
        fake.take_seen();
        let (after, _) = victim("after");
        let all = [first.as_bytes(), &case.bytes, after.as_bytes()].concat();
        let answer = converse(&gateway, &all).await;
        let name = case.name;
        let answers = answers(&answer).expect(name);
        assert_eq!((&answers[0], answers[1].status), (&expected, status), "{name}");
        // Where it is clear where the refused one ends, the connection goes on.
        assert_eq!(fake.take_seen().len(), answers.len() - 1, "{name}: {answers:?}");
    }
}

#[tokio::test]
async fn an_answer_that_nobody_asked_for_reaches_nobody() {
    let fake = Fake::start(|seen| {
        let own = json("200 OK", &String::from_utf8_lossy(&seen.body));
        vec![Step::Send([own, json("200 OK", r#"{"user":"poison"}"#)].concat())]
    })
    .await;
    let gateway = start(&[fake.addr]).await;
    for number in 0..50 {
        let (request, expected) = victim(&format!("victim-{number}"));
        let answer = converse(&gateway, request.as_bytes()).await;
        assert_eq!(answers(&answer), Ok(vec![expected]));
    }
}
