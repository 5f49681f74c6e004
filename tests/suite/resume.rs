//! Resumption: a client that lost its connection repeats its request, and gets the response to its first
//! request. The engine computes this response once, and the tenant pays once.

use crate::access::{KEY, OTHER_KEY, access, access_for_all, access_of, other_tenant, tenant};
use crate::metrics::{assert_value, value};
use crate::support::scripted_backend::{
    FINISH, ROLE, ScriptedBackend, Seen, Step, USAGE, WORD, begin, begun_stream, json, paused,
    stream_of,
};
use crate::support::test_gateway::{
    ASK, CHAT, Running, Setup, WHOLE, body, body_text, gateway_answering_with,
    gateway_following_with, gateway_scripted_with, post, read_until, status, with_lines,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_gateway::proxy::OverloadLimits;
use tokenweir_gateway::proxy::access::AccessControl;
use tokenweir_protocol::openai::engine_control::Permission;
use tokenweir_request::access::{TenantEntry, UsageLimits};
use tokenweir_request::record::{Outcome, RequestRecord};
use tokenweir_request::runs::{RunNote, RunSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const STREAM: &str =
    r#"{"model":"tiny","stream":true,"stream_options":{"include_usage":true},"messages":[]}"#;
const EVENTS: [&str; 6] = [ROLE, WORD, WORD, FINISH, USAGE, "[DONE]"];

const RESUME: RunSettings = RunSettings {
    window: Duration::from_mins(1),
    memory: 256 << 20,
};

fn allowed() -> TenantEntry {
    TenantEntry {
        allow: vec![Permission::Resume],
        ..tenant()
    }
}

fn setup(access: Arc<AccessControl>) -> Setup {
    Setup {
        access,
        resume: Some(RESUME),
        ..Setup::default()
    }
}

/// Starts a backend that follows these steps for each request, and a gateway whose tenant may resume
/// responses.
async fn resumable(steps: impl Into<Vec<Step>>) -> (ScriptedBackend, Running) {
    gateway_following_with(setup(access(allowed())), steps).await
}

/// Builds a request with this body, the API key of the tenant and these additional header lines.
fn ask(body: &str, lines: &str) -> String {
    let key = format!("authorization: Bearer {KEY}");
    let lines = if lines.is_empty() {
        key
    } else {
        format!("{key}\r\n{lines}")
    };
    with_lines(&post(CHAT, body), &lines)
}

/// Returns the status of an answer and its `x-gateway-error`.
fn refusal(answer: &[u8]) -> (u16, String) {
    let head = String::from_utf8_lossy(answer).to_ascii_lowercase();
    let reason = head
        .lines()
        .find_map(|line| line.strip_prefix("x-gateway-error: "));
    (status(answer), reason.unwrap_or_default().to_owned())
}

/// Starts a gateway, and a backend that sends the first two events of its stream at once, and the others when
/// the test releases it.
async fn pausing() -> (ScriptedBackend, Running) {
    resumable(paused(&EVENTS[..2], &EVENTS[2..])).await
}

/// Returns the records of the next two requests that end. First comes the record of the repeated request,
/// which got the response of the first request, then the record of the first request.
async fn attached_and_run(gateway: &Running) -> [RequestRecord; 2] {
    let mut records = [gateway.record().await, gateway.record().await];
    records.sort_by_key(|record| RunNote::outcome_of(record) == Some("resumed"));
    records
}

#[tokio::test]
async fn a_repetition_gets_the_whole_first_stream() {
    let (fake, gateway) = pausing().await;
    let request = ask(STREAM, "idempotency-key: a");
    let mut first = gateway.send(&request).await;
    let begun = read_until(&mut first, "Hi").await;
    assert_eq!(status(&begun), 200);
    drop(first);
    let mut second = gateway.send(&request).await;
    let mut answer = read_until(&mut second, "Hi").await;
    fake.go();
    second.read_to_end(&mut answer).await.unwrap();
    let expected = body(&stream_of(&EVENTS)).0;
    assert_eq!(body(&answer), (expected.clone(), true));
    let head = String::from_utf8_lossy(&answer).to_ascii_lowercase();
    assert!(head.contains("idempotent-replayed: true"), "{head}");
    assert!(
        !String::from_utf8_lossy(&begun)
            .to_ascii_lowercase()
            .contains("idempotent-replayed")
    );
    let [attached, run] = attached_and_run(&gateway).await;
    assert_eq!(
        (attached.outcome, RunNote::outcome_of(&attached)),
        (Outcome::Ok, Some("attached"))
    );
    assert_eq!(
        (attached.output_tokens(), attached.attempts.len()),
        (None, 0)
    );
    assert_eq!((run.outcome, run.output_tokens()), (Outcome::Ok, Some(3)));
    // The gateway keeps the response even after its generation has ended.
    assert_eq!(body(&gateway.raw(&request).await).0, expected);
    assert_eq!(fake.seen().len(), 1, "the engine runs the request once");
    let page = gateway.admin("/metrics").await;
    for (result, count) in [("resumed", 1.0), ("attached", 2.0), ("kept", 0.0)] {
        let series = format!("tokenweir_resume_requests_total{{result=\"{result}\"}}");
        assert_value(&page, &series, count);
    }
    assert!(value(&page, "tokenweir_resume_memory_bytes") > 0.0);
}

#[tokio::test]
async fn a_repetition_fails_with_the_first_request() {
    let error = r#"{"error":{"message":"x","code":500}}"#;
    let (fake, gateway) = resumable(paused(&[ROLE, WORD], &[error, "[DONE]"])).await;
    let request = ask(STREAM, "idempotency-key: a");
    let mut first = gateway.send(&request).await;
    read_until(&mut first, "Hi").await;
    drop(first);
    let mut second = gateway.send(&request).await;
    read_until(&mut second, "Hi").await;
    fake.go();
    second.read_to_end(&mut Vec::new()).await.unwrap();
    let [attached, run] = attached_and_run(&gateway).await;
    assert_eq!(
        (attached.outcome, run.outcome),
        (Outcome::StreamError, Outcome::StreamError)
    );
}

#[tokio::test]
async fn without_return_the_request_is_aborted() {
    let window = Duration::from_millis(300);
    let resume = Some(RunSettings { window, ..RESUME });
    let setup = Setup {
        resume,
        ..setup(access(allowed()))
    };
    let steps = [begin(&[ROLE, WORD]), Step::AwaitClose];
    let (fake, gateway) = gateway_following_with(setup, steps).await;
    let mut client = gateway.send(ask(STREAM, "idempotency-key: a")).await;
    read_until(&mut client, "Hi").await;
    let left_at = Instant::now();
    drop(client);
    fake.closed().await;
    assert!(left_at.elapsed() >= window);
    let record = gateway.record().await;
    assert_eq!(
        (record.outcome, RunNote::outcome_of(&record)),
        (Outcome::Cancelled, Some("abandoned"))
    );
    wait_until!(
        gateway
            .admin("/metrics")
            .await
            .contains("\ntokenweir_resume_memory_bytes 0\n")
    );
}

#[tokio::test]
async fn a_key_matches_one_body_and_tenant() {
    let access = access_of(vec![allowed(), other_tenant(allowed())]);
    let (fake, gateway) = gateway_answering_with(setup(access), json("200 OK", WHOLE)).await;
    let request = ask(ASK, "idempotency-key: a");
    assert_eq!(status(&gateway.raw(&request).await), 200);
    let spaced = ask(&format!("{ASK} "), "idempotency-key: a");
    let others = [
        ask(STREAM, "idempotency-key: a"),
        spaced,
        request.replace(CHAT, "/v1/completions"),
        request.replace(CHAT, &format!("{CHAT}?a=b")),
    ];
    for changed in others {
        assert_eq!(
            refusal(&gateway.raw(changed).await),
            (422, "idempotency_key".to_owned())
        );
    }
    assert_eq!(fake.seen().len(), 1);
    assert_eq!(
        status(&gateway.raw(request.replace(KEY, OTHER_KEY)).await),
        200
    );
    assert_eq!(
        fake.seen().len(),
        2,
        "a tenant does not reach the response of another"
    );
    assert_eq!(
        status(&gateway.raw(request.replace(KEY, "sk-tw-unknown")).await),
        401
    );
}

#[tokio::test]
async fn a_repetition_passes_the_concurrency_limit() {
    let limits = UsageLimits {
        concurrency: Some(1),
        ..UsageLimits::default()
    };
    let access = access(TenantEntry {
        limits,
        ..allowed()
    });
    let steps = [Step::Wait, Step::Send(json("200 OK", WHOLE))];
    let (fake, gateway) = gateway_following_with(setup(access), steps).await;
    let request = ask(ASK, "idempotency-key: a");
    let mut first = gateway.send(&request).await;
    fake.until_received(1).await;
    let mut second = gateway.send(&request).await;
    assert_eq!(
        status(&gateway.raw(ask(ASK, "idempotency-key: b")).await),
        429
    );
    fake.go();
    let mut answers = [Vec::new(), Vec::new()];
    first.read_to_end(&mut answers[0]).await.unwrap();
    second.read_to_end(&mut answers[1]).await.unwrap();
    for answer in &answers {
        assert_eq!(
            (body_text(answer), body(answer).1),
            (WHOLE.to_owned(), true)
        );
        assert!(String::from_utf8_lossy(answer).contains("content-length"));
    }
    assert_eq!(fake.seen().len(), 1);
}

#[tokio::test]
async fn after_a_failure_a_repetition_is_sent() {
    let cut = begun_stream(&[ROLE, WORD]);
    let in_band = r#"{"error":{"message":"engine died","code":500}}"#;
    let failures = [
        json("400 Bad Request", "{}"),
        cut,
        stream_of(&[ROLE, WORD, in_band]),
    ];
    for failure in failures {
        let script = move |seen: &Seen| {
            let is_first = seen.head.contains("x-first");
            let bytes = if is_first {
                failure.clone()
            } else {
                stream_of(&EVENTS)
            };
            vec![Step::Send(bytes), Step::Close]
        };
        let (fake, gateway) = gateway_scripted_with(setup(access(allowed())), script).await;
        gateway
            .raw(ask(STREAM, "idempotency-key: a\r\nx-first: 1"))
            .await;
        let record = gateway.record().await;
        assert_ne!(record.outcome, Outcome::Ok);
        // The gateway drops the response of the first request shortly after it has written the record. Until
        // then, a repeated request gets that response. So the test repeats it until the backend gets a second
        // request.
        let mut answer = Vec::new();
        while fake.seen().len() < 2 {
            answer = gateway.raw(ask(STREAM, "idempotency-key: a")).await;
        }
        assert_eq!(body(&answer), (body(&stream_of(&EVENTS)).0, true));
    }
}

/// Builds the streamed request with this `Last-Event-ID`.
fn ask_after(id: &str) -> String {
    ask(
        STREAM,
        &format!("idempotency-key: a\r\nlast-event-id: {id}"),
    )
}

/// Returns the last event id in the beginning of a response, and the run that the id names.
fn last_id(begun: &[u8]) -> (String, String) {
    let text = String::from_utf8_lossy(begun);
    let id = text
        .lines()
        .filter_map(|line| line.strip_prefix("id: "))
        .next_back()
        .unwrap();
    let (run, _) = id.split_once('.').unwrap();
    (id.to_owned(), run.to_owned())
}

#[tokio::test]
async fn a_stream_resumes_after_the_last_event() {
    for start in ["0", ""] {
        let (fake, gateway) = pausing().await;
        let mut first = gateway.send(ask_after(start)).await;
        let begun = read_until(&mut first, ".2\n").await;
        let (id, run) = last_id(&begun);
        let begun = String::from_utf8(begun).unwrap();
        assert!(
            begun.contains(&format!("data: {ROLE}\nid: {run}.1\n\n")),
            "{begun}"
        );
        drop(first);
        fake.go();
        let rest = body_text(&gateway.raw(ask_after(&id)).await);
        let expected = format!(
            "data: {WORD}\nid: {run}.3\n\ndata: {FINISH}\nid: {run}.4\n\n\
             data: {USAGE}\nid: {run}.5\n\ndata: [DONE]\nid: {run}.6\n\n"
        );
        assert_eq!(rest, expected);
        assert_eq!(
            body_text(&gateway.raw(ask_after(&format!("{run}.6"))).await),
            ""
        );
        // Without `last-event-id`, the client gets the stream of the engine without event ids.
        assert_eq!(
            body_text(&gateway.raw(ask(STREAM, "idempotency-key: a")).await),
            body_text(&stream_of(&EVENTS))
        );
        assert_eq!(fake.seen().len(), 1);
    }
}

#[tokio::test]
async fn an_unknown_event_id_is_refused() {
    let (fake, gateway) = pausing().await;
    let mut first = gateway.send(ask_after("0")).await;
    let (id, run) = last_id(&read_until(&mut first, ".2\n").await);
    fake.go();
    first.read_to_end(&mut Vec::new()).await.unwrap();
    let beyond = format!("{run}.7");
    let endless = format!("{run}.99999999999999999999999");
    let twice = format!("{id}\r\nlast-event-id: {id}");
    let of_other_run = "0123456789abcdef.1";
    for id in [
        &*beyond,
        &*endless,
        &*twice,
        of_other_run,
        "2",
        "-1",
        "evt_1",
        "0.0",
    ] {
        let answer = gateway.raw(ask_after(id)).await;
        assert_eq!(refusal(&answer), (412, "last_event_id".to_owned()), "{id}");
    }
    assert_eq!(fake.seen().len(), 1);
}

#[tokio::test]
async fn an_unkept_event_id_reaches_no_backend() {
    let id = "0123456789abcdef.1";
    let with_key = ask_after(id);
    let without_key = ask(STREAM, &format!("last-event-id: {id}"));
    let number = ask_after("999999");
    let off = Setup {
        access: access(allowed()),
        ..Setup::default()
    };
    let cases = [
        (
            setup(access(allowed())),
            vec![&with_key, &without_key, &number],
        ),
        (setup(access(tenant())), vec![&with_key, &without_key]),
        (off, vec![&with_key, &without_key]),
    ];
    for (setup, requests) in cases {
        let (fake, gateway) = gateway_answering_with(setup, stream_of(&EVENTS)).await;
        for request in requests {
            let answer = gateway.raw(request).await;
            assert_eq!(
                refusal(&answer),
                (412, "last_event_id".to_owned()),
                "{request}"
            );
            assert_eq!(gateway.record().await.outcome, Outcome::ClientError);
        }
        assert_eq!(fake.seen().len(), 0);
    }
}

#[tokio::test]
async fn repetitions_count_for_the_tenant() {
    let limits = UsageLimits {
        concurrency: Some(1),
        requests_per_minute: Some(3),
        ..UsageLimits::default()
    };
    let access = access(TenantEntry {
        limits,
        ..allowed()
    });
    let (fake, gateway) =
        gateway_following_with(setup(access), paused(&EVENTS[..2], &EVENTS[2..])).await;
    let request = ask(STREAM, "idempotency-key: a");
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = gateway.send(&request).await;
        assert_eq!(status(&read_until(&mut client, "Hi").await), 200);
        clients.push(client);
    }
    let refused = gateway.raw(&request).await;
    assert_eq!(refusal(&refused), (429, "request_limit".to_owned()));
    assert_eq!(fake.seen().len(), 1);
}

#[tokio::test]
async fn an_absent_client_counts_for_its_address() {
    let limits = OverloadLimits {
        max_requests_per_client: Some(1),
        ..OverloadLimits::default()
    };
    let setup = Setup {
        gate: limits,
        ..setup(access(allowed()))
    };
    let (fake, gateway) = gateway_following_with(setup, paused(&EVENTS[..2], &EVENTS[2..])).await;
    let request = ask(STREAM, "idempotency-key: a");
    let mut first = gateway.send(&request).await;
    read_until(&mut first, "Hi").await;
    drop(first);
    wait_until!(
        gateway
            .admin("/metrics")
            .await
            .contains("\ntokenweir_connections 0\n")
    );
    let other = gateway.raw(ask(STREAM, "idempotency-key: b")).await;
    assert_eq!(refusal(&other), (429, "client_busy".to_owned()));
    let mut second = gateway.send(&request).await;
    let mut answer = read_until(&mut second, "Hi").await;
    fake.go();
    second.read_to_end(&mut answer).await.unwrap();
    assert_eq!(body(&answer), (body(&stream_of(&EVENTS)).0, true));
    assert_eq!(fake.seen().len(), 1);
}

#[tokio::test]
async fn absent_clients_leave_places_to_others() {
    let limits = OverloadLimits {
        max_requests: Some(8),
        ..OverloadLimits::default()
    };
    let access = access_of(vec![allowed(), other_tenant(allowed())]);
    let setup = Setup {
        gate: limits,
        ..setup(access)
    };
    let steps = [begin(&[ROLE, WORD]), Step::AwaitClose];
    let (fake, gateway) = gateway_following_with(setup, steps).await;
    for number in 0..20 {
        let mut client = gateway
            .send(ask(STREAM, &format!("idempotency-key: {number}")))
            .await;
        assert_eq!(
            status(&read_until(&mut client, "Hi").await),
            200,
            "{number}"
        );
        drop(client);
        if number >= 2 {
            let record = gateway.record().await;
            assert_eq!(
                RunNote::outcome_of(&record),
                Some("absent_limit"),
                "{number}"
            );
            fake.closed().await;
        }
    }
    let mut other = gateway
        .send(ask(STREAM, "idempotency-key: a").replace(KEY, OTHER_KEY))
        .await;
    assert_eq!(status(&read_until(&mut other, "Hi").await), 200);
}

#[tokio::test]
async fn waiting_repetitions_hold_no_bodies() {
    let (fake, gateway) = resumable([Step::Wait, Step::Send(json("200 OK", WHOLE))]).await;
    let long = ASK.replace('{', &format!("{{\"x\":\"{}\",", "y".repeat(200 << 10)));
    let request = ask(&long, "idempotency-key: a");
    let mut clients = Vec::new();
    for _ in 0..9 {
        clients.push(gateway.send(&request).await);
    }
    // Of nine repetitions, one is refused while the other eight have sent their bodies and wait.
    let refused = "tokenweir_requests_rejected_total{reason=\"idempotency_key\"} 1\n";
    wait_until!(gateway.admin("/metrics").await.contains(refused));
    assert!(gateway.body_memory.used_bytes() < 2 * long.len());
    fake.go();
    let mut statuses = Vec::new();
    for mut client in clients {
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        statuses.push(status(&answer));
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 200, 200, 409]);
    wait_until!(gateway.body_memory.used_bytes() == 0);
}

#[tokio::test]
async fn too_large_a_response_cannot_be_resumed() {
    let events: Vec<&str> = std::iter::repeat_n(WORD, 2_000).collect();
    let stream = stream_of(&events);
    let expected = body(&stream).0;
    let resume = Some(RunSettings {
        memory: 1 << 20,
        ..RESUME
    });
    let setup = Setup {
        resume,
        ..setup(access(allowed()))
    };
    let (fake, gateway) = gateway_answering_with(setup, stream).await;
    for runs in 1..=2 {
        let answer = gateway.raw(ask(STREAM, "idempotency-key: a")).await;
        assert_eq!(body(&answer), (expected.clone(), true));
        assert_eq!(
            RunNote::outcome_of(&gateway.record().await),
            Some("response_memory")
        );
        assert_eq!(fake.seen().len(), runs);
    }
    wait_until!(
        gateway
            .admin("/metrics")
            .await
            .contains("\ntokenweir_resume_memory_bytes 0\n")
    );
}

#[tokio::test]
async fn readers_beyond_the_limit_are_refused() {
    let (fake, gateway) = pausing().await;
    let request = ask(STREAM, "idempotency-key: a");
    let mut readers = Vec::new();
    for _ in 0..8 {
        let mut client = gateway.send(&request).await;
        let begun = read_until(&mut client, "Hi").await;
        readers.push((client, begun));
    }
    assert_eq!(status(&gateway.raw(&request).await), 409);
    fake.go();
    for (mut client, mut answer) in readers {
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(body(&answer), (body(&stream_of(&EVENTS)).0, true));
    }
    assert_eq!(fake.seen().len(), 1);
}

#[tokio::test]
async fn without_permission_a_repetition_is_sent() {
    let long = format!("idempotency-key: {}", "k".repeat(256));
    let twice = "idempotency-key: a\r\nidempotency-key: b";
    let everybody = access_for_all(&[Permission::Resume]);
    for (access, lines, expected) in [
        (access(tenant()), "idempotency-key: a", "not_allowed"),
        (access(allowed()), &*long, "invalid_key"),
        (access(allowed()), twice, "invalid_key"),
        (access(allowed()), "idempotency-key:", "invalid_key"),
        (everybody.clone(), "idempotency-key: a", "no_identity"),
    ] {
        let (fake, gateway) = gateway_answering_with(setup(access), json("200 OK", WHOLE)).await;
        for _ in 0..2 {
            let mut request = ask(ASK, lines);
            if expected == "no_identity" {
                request = request.replace(&format!("authorization: Bearer {KEY}\r\n"), "");
            }
            assert_eq!(body_text(&gateway.raw(request).await), WHOLE);
            assert_eq!(RunNote::outcome_of(&gateway.record().await), Some(expected));
        }
        assert_eq!(fake.seen().len(), 2, "{expected}");
    }
    // If the gateway checks no API keys, it tells clients apart by the credentials that it forwards to the
    // backend.
    let (fake, gateway) = gateway_answering_with(setup(everybody), json("200 OK", WHOLE)).await;
    for (key, runs) in [(KEY, 1), (KEY, 1), (OTHER_KEY, 2)] {
        gateway
            .raw(ask(ASK, "idempotency-key: a").replace(KEY, key))
            .await;
        assert_eq!(fake.seen().len(), runs);
    }
}

#[tokio::test]
async fn without_configuration_the_key_is_ignored() {
    let off = Setup {
        access: access(allowed()),
        ..Setup::default()
    };
    let (fake, gateway) = gateway_answering_with(off, stream_of(&EVENTS)).await;
    let lines = [
        "",
        "idempotency-key: a",
        "idempotency-key: a\r\nlast-event-id: 2",
    ];
    let mut answers = Vec::new();
    for lines in lines {
        let answer = String::from_utf8(gateway.raw(ask(STREAM, lines)).await).unwrap();
        let is_variable =
            |line: &&str| line.starts_with("x-request-id") || line.starts_with("date");
        answers.push(
            answer
                .lines()
                .filter(|line| !is_variable(line))
                .collect::<Vec<_>>()
                .join("\n"),
        );
        assert_eq!(RunNote::outcome_of(&gateway.record().await), None);
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    assert_eq!(fake.seen().len(), lines.len());
}

#[tokio::test]
async fn an_absent_client_does_not_delay_shutdown() {
    let (fake, mut gateway) = resumable([begin(&[ROLE, WORD]), Step::AwaitClose]).await;
    let mut client = gateway.send(ask(STREAM, "idempotency-key: a")).await;
    read_until(&mut client, "Hi").await;
    client.shutdown().await.unwrap();
    drop(client);
    gateway.stop().await;
    fake.closed().await;
    assert_eq!(gateway.record().await.outcome, Outcome::Cancelled);
}
