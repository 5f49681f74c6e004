//! Limits for clients that are slow, that are numerous or that use much memory. The gateway enforces each
//! limit with a clear error and does not delay other clients.

use crate::support::http2_client;
use crate::support::scripted_backend::{
    FINISH, ROLE, ScriptedBackend, Step, WORD, begin, chunk, json, paused, stream_of,
};
use crate::support::test_gateway::{
    ASK_STREAM, CHAT, Running, Setup, gateway_answering_with, gateway_following_with,
    gateway_scripted_with, get, post, read_rest, start_before, status,
};
use http_body_util::BodyExt;
use std::time::Duration;
use tokenweir_gateway::proxy::OverloadLimits;
use tokenweir_gateway::server::ServerLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A timeout that is short, because the tests wait until it has passed.
const SHORT_TIMEOUT: Duration = Duration::from_millis(200);

fn setup(limits: ServerLimits) -> Setup {
    Setup {
        limits,
        ..Setup::default()
    }
}

/// Returns the steps of a stream that is too large for all buffers between backend and client.
fn endless() -> Vec<Step> {
    let flood = chunk(WORD).repeat(1_000);
    [begin(&[ROLE])]
        .into_iter()
        .chain((0..1_000).map(|_| Step::Send(flood.clone())))
        .collect()
}

/// Returns the steps of a stream that begins with some events, and goes on when the test releases the
/// backend.
fn waiting() -> Vec<Step> {
    paused(&[ROLE, WORD], &[FINISH, "[DONE]"])
}

/// Starts a backend that follows the steps of [`waiting`], and a gateway that closes idle connections soon.
async fn waiting_with_short_idle_timeout() -> (ScriptedBackend, Running) {
    let limits = ServerLimits {
        keep_alive_timeout: SHORT_TIMEOUT,
        head_timeout: SHORT_TIMEOUT,
        ..ServerLimits::default()
    };
    gateway_following_with(setup(limits), waiting()).await
}

// === slow clients ===

#[tokio::test]
async fn incomplete_headers_close_after_the_timeout() {
    let limits = ServerLimits {
        head_timeout: SHORT_TIMEOUT,
        ..ServerLimits::default()
    };
    let (_fake, gateway) =
        gateway_answering_with(setup(limits), json("200 OK", r#"{"a":1}"#)).await;
    for part in [
        "",
        "P",
        "POST / HTTP/1.1\r\nhost: a\r\nx: ",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut stream = gateway.send(part).await;
        let mut answer = Vec::new();
        // The client receives no response: the gateway only closes the connection.
        let _ = stream.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP/1.1"), "{part}");
    }
    // Further header bytes do not restart the timeout.
    let mut stream = gateway.connect().await;
    let began = std::time::Instant::now();
    while stream.write_all(b"x").await.is_ok() {
        assert!(
            began.elapsed() < SHORT_TIMEOUT * 20,
            "a client that sends single bytes is never closed"
        );
        tokio::time::sleep(SHORT_TIMEOUT / 10).await;
    }
    gateway.assert_no_more_records().await;
}

#[tokio::test]
async fn a_connection_is_closed_only_when_idle() {
    let (fake, gateway) = waiting_with_short_idle_timeout().await;
    let request = post(CHAT, ASK_STREAM).replace("connection: close\r\n", "");
    let mut stream = gateway.send(request).await;
    let mut answer = vec![0; 64];
    stream.read_exact(&mut answer).await.unwrap();
    tokio::time::sleep(SHORT_TIMEOUT * 3).await;
    fake.go();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(
        answer.ends_with(b"data: [DONE]\n\n\r\n0\r\n\r\n"),
        "a complete response, then a close"
    );
    assert_eq!(gateway.record().await.outcome.as_str(), "ok");
}

#[tokio::test]
async fn an_http2_connection_is_closed_only_when_idle() {
    let (fake, gateway) = waiting_with_short_idle_timeout().await;
    let mut sender = http2_client::handshake(gateway.connect().await).await;
    let response = http2_client::post(&mut sender, CHAT, ASK_STREAM).await;
    tokio::time::sleep(SHORT_TIMEOUT * 3).await;
    assert!(!sender.is_closed(), "its request is open");
    fake.go();
    let (status, body) = http2_client::whole(response).await;
    assert_eq!((status, body.ends_with(b"data: [DONE]\n\n")), (200, true));
    wait_until!(sender.is_closed());
}

#[tokio::test]
async fn a_pause_in_a_body_gets_408() {
    let setup = Setup {
        body_idle: SHORT_TIMEOUT,
        ..Setup::default()
    };
    let (fake, gateway) = gateway_answering_with(setup, json("200 OK", r#"{"a":1}"#)).await;
    let whole = post(CHAT, ASK_STREAM).replace("connection: close\r\n", "");
    let answer = gateway.raw(&whole[..whole.len() - 3]).await;
    assert_eq!(status(&answer), 408);
    let text = String::from_utf8(answer).unwrap();
    assert!(
        text.contains("x-gateway-error: body_timeout") && text.contains("\"error\":{"),
        "{text}"
    );
    let record = gateway.record().await;
    assert_eq!(
        (record.ending(), record.refusal),
        ("client_error", Some("body_timeout"))
    );
    assert!(fake.seen().is_empty());
}

#[tokio::test]
async fn a_client_that_does_not_read_is_disconnected() {
    let limits = ServerLimits {
        write_timeout: SHORT_TIMEOUT,
        ..ServerLimits::default()
    };
    let (fake, gateway) = gateway_following_with(setup(limits), endless()).await;
    let _stream = gateway.begin(CHAT, ASK_STREAM).await;
    fake.closed().await;
    let record = gateway.record().await;
    assert_eq!(
        (record.ending(), record.end.initiator().as_str()),
        ("client_write_timeout", "gateway")
    );
    assert_eq!(record.outcome.as_str(), "cancelled");
    let series = "tokenweir_request_terminations_total{closed_by=\"gateway\",termination=\"client_write_timeout\"}";
    gateway.assert_value(series, 1.0).await;
}

#[tokio::test]
async fn only_the_unread_http2_stream_is_reset() {
    let limits = ServerLimits {
        write_timeout: SHORT_TIMEOUT,
        ..ServerLimits::default()
    };
    let (fake, gateway) = gateway_scripted_with(setup(limits), |seen| {
        // The client reads all streams except the one of this request.
        let is_unread = seen.body.ends_with(b"1}");
        if is_unread { endless() } else { waiting() }
    })
    .await;
    let mut sender = http2_client::handshake(gateway.connect().await).await;
    let taken = http2_client::post(&mut sender, CHAT, ASK_STREAM).await;
    let ignored = http2_client::post(
        &mut sender,
        CHAT,
        r#"{"model":"tiny","stream":true,"seed":1}"#,
    )
    .await;
    fake.closed().await;
    let record = gateway.record().await;
    assert_eq!(record.ending(), "client_write_timeout");
    assert!(
        ignored.into_body().collect().await.is_err(),
        "the stream is reset"
    );
    fake.go();
    let (status, body) = http2_client::whole(taken).await;
    assert_eq!(status, 200);
    assert!(body.ends_with(b"data: [DONE]\n\n"));
    assert_eq!(gateway.record().await.ending(), "ok");
}

#[tokio::test]
async fn a_failed_attempt_starts_no_write_timeout() {
    let backends = ScriptedBackend::two(|number, _, seen| match number {
        // The client does not read the response to this request.
        _ if seen.body.ends_with(b"1}") => endless(),
        0 => vec![Step::Send(json("503 Service Unavailable", "{}"))],
        _ => vec![
            Step::Wait,
            Step::Send(stream_of(&[ROLE, WORD, FINISH, "[DONE]"])),
        ],
    })
    .await;
    let limits = ServerLimits {
        write_timeout: SHORT_TIMEOUT,
        ..ServerLimits::default()
    };
    let gateway = start_before(&backends, setup(limits)).await;
    let mut sender = http2_client::handshake(gateway.connect().await).await;
    let mut other = sender.clone();
    let retried =
        tokio::spawn(async move { http2_client::post(&mut sender, CHAT, ASK_STREAM).await });
    wait_until!(
        backends
            .iter()
            .map(|backend| backend.seen().len())
            .sum::<usize>()
            >= 2
    );
    // This stream gets data only after the failed attempt. If the failed attempt had started a write timeout,
    // that one would expire first.
    let ignored = http2_client::post(
        &mut other,
        CHAT,
        r#"{"model":"tiny","stream":true,"seed":1}"#,
    )
    .await;
    assert_eq!(gateway.record().await.ending(), "client_write_timeout");
    drop(ignored);
    backends.iter().for_each(ScriptedBackend::go);
    let (status, body) = http2_client::whole(retried.await.unwrap()).await;
    assert_eq!((status, body.ends_with(b"data: [DONE]\n\n")), (200, true));
    let record = gateway.record().await;
    assert_eq!((record.ending(), record.attempts.len()), ("ok", 2));
}

// === many clients ===

#[tokio::test]
async fn connections_over_the_limit_get_an_error() {
    let all = ServerLimits {
        max_connections: 1,
        ..ServerLimits::default()
    };
    let of_client = ServerLimits {
        max_connections_per_client: Some(1),
        ..ServerLimits::default()
    };
    for (limits, code, error, reason) in [
        (all, 503, "overloaded", "full"),
        (of_client, 429, "client_busy", "client_full"),
    ] {
        let (_fake, gateway) =
            gateway_answering_with(setup(limits), json("200 OK", r#"{"a":1}"#)).await;
        let unfinished = post(CHAT, ASK_STREAM);
        let held = gateway.send(&unfinished[..unfinished.len() - 1]).await;
        wait_for(&gateway, "tokenweir_requests_in_flight 1\n").await;
        let refused = gateway.raw(post(CHAT, ASK_STREAM)).await;
        let text = String::from_utf8_lossy(&refused);
        assert_eq!(status(&refused), code, "{text}");
        assert!(
            text.contains(&format!("x-gateway-error: {error}")),
            "{text}"
        );
        assert!(text.contains("retry-after: 1"), "{text}");
        let refusals = format!("tokenweir_connections_refused_total{{reason=\"{reason}\"}} 1\n");
        wait_for(&gateway, &refusals).await;
        drop(held);
        wait_for(&gateway, "tokenweir_connections 0\n").await;
        assert_eq!(status(&gateway.post(CHAT, "{}").await), 200, "{error}");
    }
}

#[tokio::test]
async fn connections_without_a_head_exclude_nobody() {
    let limits = ServerLimits {
        max_connections: 2,
        ..ServerLimits::default()
    };
    let (_fake, gateway) = gateway_answering_with(setup(limits), json("200 OK", "{}")).await;
    let served = get("/health").replace("connection: close\r\n", "");
    for part in [
        "",
        "P",
        "POST / HTTP/1.1\r\nhost: a\r\nx: ",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &[&served, "POST / HTTP/1.1\r\n"].concat(),
    ] {
        let held = [gateway.send(part).await, gateway.send(part).await];
        wait_for(&gateway, "tokenweir_connections 2\n").await;
        wait_until!(status(&gateway.raw(get("/health")).await) == 200);
        let mut answer = Vec::new();
        let [mut oldest, _] = held;
        // The gateway closes this connection long before the timeout of its head.
        let _ = oldest.read_to_end(&mut answer).await;
    }
}

async fn wait_for(gateway: &Running, line: &str) {
    wait_until!(gateway.admin("/metrics").await.contains(line));
}

// === clients that use much memory ===

#[tokio::test]
async fn requests_over_the_limit_are_rejected_early() {
    for (gate, status_wanted, reason) in [
        (
            OverloadLimits {
                max_requests: Some(1),
                ..OverloadLimits::default()
            },
            503,
            "overloaded",
        ),
        (
            OverloadLimits {
                max_requests_per_client: Some(1),
                ..OverloadLimits::default()
            },
            429,
            "client_busy",
        ),
        // With three descriptors, the gateway permits two connections and two requests.
        (
            OverloadLimits {
                max_descriptors: Some(3),
                ..OverloadLimits::default()
            },
            503,
            "overloaded",
        ),
    ] {
        let setup = Setup {
            gate,
            ..Setup::default()
        };
        let (fake, gateway) = gateway_following_with(setup, waiting()).await;
        let mut first = gateway.begin(CHAT, ASK_STREAM).await;
        let mut answer = vec![0; 64];
        first.read_exact(&mut answer).await.unwrap();
        // The client sends only the head. The gateway must reject the request without waiting for the body.
        let head = post(CHAT, &" ".repeat(100));
        let refused = gateway.raw(&head[..head.len() - 100]).await;
        assert_eq!(status(&refused), status_wanted, "{reason}");
        let text = String::from_utf8(refused).unwrap();
        assert!(
            text.contains(&format!("x-gateway-error: {reason}")),
            "{text}"
        );
        assert!(text.contains("retry-after: 1"), "{text}");
        assert_eq!(
            status(&gateway.raw(get("/health")).await),
            200,
            "the health check is served"
        );
        assert_eq!(gateway.record().await.refusal, Some(reason));
        fake.go();
        first.read_to_end(&mut answer).await.unwrap();
        assert!(answer.ends_with(b"0\r\n\r\n"));
        assert_eq!(gateway.record().await.outcome.as_str(), "ok");
        assert_eq!(fake.seen().len(), 1);
    }
}

#[tokio::test]
async fn over_the_memory_limit_requests_are_rejected() {
    // The process always uses more memory than this limit.
    let limits = ServerLimits {
        max_memory_bytes: Some(1),
        ..ServerLimits::default()
    };
    let (_fake, gateway) =
        gateway_answering_with(setup(limits), json("200 OK", r#"{"a":1}"#)).await;
    loop {
        let answer = String::from_utf8(gateway.post(CHAT, "{}").await).unwrap();
        gateway.record().await;
        if answer.starts_with("HTTP/1.1 503 ") {
            assert!(answer.contains("x-gateway-error: overloaded"), "{answer}");
            break;
        }
    }
    assert!(
        gateway.admin("/livez").await.starts_with("HTTP/1.1 200"),
        "the admin listener is served"
    );
}

#[tokio::test]
async fn all_bodies_share_a_memory_limit() {
    const LENGTH: usize = 1 << 20;
    // One client may use three quarters of this memory for the bodies of its requests.
    let setup = Setup {
        body_memory: 14 * LENGTH / 3,
        ..Setup::default()
    };
    let (_fake, gateway) = gateway_answering_with(setup, json("200 OK", r#"{"a":1}"#)).await;
    let memory = &gateway.body_memory;
    let body = format!("{{\"a\":\"{}\"}}", "x".repeat(LENGTH - 8));
    let request = post(CHAT, &body).into_bytes();
    let half = request.len() - LENGTH / 2;
    let mut uploads = Vec::new();
    for count in 1..=3 {
        let stream = gateway.send(&request[..half]).await;
        uploads.push(stream);
        wait_until!(memory.used_bytes() >= count * LENGTH);
        assert_eq!(
            memory.used_bytes(),
            count * LENGTH,
            "memory for the declared length, and no more"
        );
    }
    let refused = String::from_utf8(gateway.raw(&request).await).unwrap();
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(
        refused.contains("x-gateway-error: body_memory"),
        "{refused}"
    );
    assert!(refused.contains("retry-after: 1"), "{refused}");
    assert_eq!(gateway.record().await.refusal, Some("body_memory"));
    assert_eq!(
        status(&gateway.post(CHAT, "{}").await),
        200,
        "a small body fits"
    );
    gateway.record().await;
    let page = gateway.admin("/metrics").await;
    assert!(
        page.contains(&format!(
            "\ntokenweir_request_body_memory_bytes {}\n",
            3 * LENGTH
        )),
        "{page}"
    );
    let mut first = uploads.remove(0);
    first.write_all(&request[half..]).await.unwrap();
    assert_eq!(status(&read_rest(first).await), 200);
    drop(uploads);
    wait_until!(memory.used_bytes() == 0);
    assert_eq!(status(&gateway.raw(&request).await), 200);
}
