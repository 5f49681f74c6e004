//! Requests over real sockets to a scripted backend: requests that complete, are rejected, break, or are
//! abandoned by their client.

use crate::access::access_for_all;
use crate::support::recording;
use crate::support::scripted_backend::{
    FINISH, ROLE, ScriptedBackend, Step, USAGE, WORD, data, json, paused, response, stream_of,
};
use crate::support::test_gateway::{
    ASK_STREAM, CHAT, Running, Setup, advance_time, body, body_json, gateway_answering,
    gateway_answering_with, gateway_following, gateway_scripted, get, post, read_rest, read_until,
    start, start_with, status, with_lines,
};
use serde_json::Value;
use std::time::Duration;
use tokenweir_protocol::openai::FinishReason;
use tokenweir_protocol::openai::engine_control::Permission;
use tokenweir_request::record::Outcome;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn envelope(answer: &[u8]) -> Value {
    let (body, whole) = body(answer);
    assert!(whole, "a complete error response");
    let value: Value = serde_json::from_slice(&body).expect("a JSON error body");
    assert!(
        value["error"]["message"].is_string(),
        "in OpenAI's error format: {value}"
    );
    value["error"].clone()
}

#[tokio::test]
async fn a_stream_is_unchanged_with_one_record() {
    let events = [ROLE, WORD, WORD, FINISH, USAGE, "[DONE]"];
    let (_fake, gateway) = gateway_answering(stream_of(&events)).await;
    let answer = gateway.post(CHAT, ASK_STREAM).await;
    let expected = events.map(data).concat();
    assert_eq!(body(&answer), (expected.into_bytes(), true));
    let record = gateway.record().await;
    assert_eq!((record.outcome, record.status), (Outcome::Ok, Some(200)));
    assert_eq!(record.observed.output_events, 2);
    assert_eq!(record.observed.finish_reasons, [Some(FinishReason::Stop)]);
    assert_eq!(
        (record.observed.usage.input, record.observed.usage.output),
        (Some(9), Some(3))
    );
    assert!(record.ttft().is_some() && record.tpot().is_some());
    gateway.assert_no_more_records().await;
}

#[tokio::test]
async fn every_recorded_response_is_unchanged() {
    let mut refused = Vec::new();
    for recording in recording::all() {
        // The gateway removes the header `connection: close` of the recorded response. All other headers
        // remain.
        let head = recording.head.replace("connection: close\r\n", "");
        let raw = [head.as_bytes(), &recording.framed].concat();
        let fake = ScriptedBackend::following([Step::Send(raw), Step::Close]).await;
        // Three of the recorded requests have the field `priority`, for which clients need a permission.
        let access = access_for_all(&[Permission::Priority]);
        let gateway = start_with(
            &[fake.addr],
            Setup {
                access,
                ..Setup::default()
            },
        )
        .await;
        let ask = recording.request.as_deref().unwrap_or("{}");
        let ask = if ask.starts_with('{') { ask } else { "{}" };
        let answer = gateway
            .post(
                CHAT,
                &ask.replace("\"model\": \"none\"", "\"model\": \"tiny\""),
            )
            .await;
        let record = gateway.record().await;
        if record.refusal.is_some() {
            // The gateway rejects this request itself, so there is no response to compare.
            refused.push(recording.name);
            continue;
        }
        let (bytes, whole) = body(&answer);
        let name = &recording.name;
        assert!(bytes == recording.body(), "{name}");
        assert!(
            !String::from_utf8_lossy(&answer).contains("x-gateway-error"),
            "{name}"
        );
        assert_eq!(whole, recording.expected["complete_http"] == true, "{name}");
        assert_eq!(
            u64::from(status(&answer)),
            recording.expected["status"].as_u64().unwrap(),
            "{name}"
        );
        gateway.assert_no_more_records().await;
    }
    assert!(
        refused.iter().all(|name| name.contains("error-")),
        "{refused:?}"
    );
}

#[tokio::test]
async fn only_hop_by_hop_headers_change() {
    let (fake, gateway) = gateway_answering(json("200 OK", r#"{"a":1}"#)).await;
    let body = "{ \"model\" : \"tiny\",\t\"x\": 1.0e5, \"é\": \"\\u00e9\" }";
    let request = format!(
        "POST {CHAT}?a=b%2f HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer k\r\n\
         X-Request-Id: mine-1\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n\
         X-data-parallel-rank: 1\r\nTransfer-Encoding: chunked\r\n\r\n\
         {:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    let answer = gateway.raw(request).await;
    assert!(String::from_utf8_lossy(&answer).contains("x-request-id: mine-1"));
    let seen = &fake.seen()[0];
    assert_eq!(seen.body, body.as_bytes());
    let head = seen.head.to_ascii_lowercase();
    assert!(
        head.starts_with(&format!("post {CHAT}?a=b%2f http/1.1\r\n")),
        "{head}"
    );
    for there in [
        "authorization: bearer k",
        "x-request-id: mine-1",
        "accept-encoding: identity",
        &format!("content-length: {}", body.len()),
        &format!("host: {}", fake.addr),
    ] {
        assert!(head.contains(there), "{there} in {head}");
    }
    for gone in [
        "transfer-encoding",
        "x-hop",
        "connection",
        "x-data-parallel-rank",
    ] {
        assert!(!head.contains(gone), "{gone} in {head}");
    }
}

#[tokio::test]
async fn a_stale_connection_is_retried_quietly() {
    // The backend answers the first request of a connection. When another request arrives on that connection,
    // the backend closes it. The network brings the close later.
    let (fake, gateway) = gateway_scripted(|seen| match seen.earlier {
        0 => vec![Step::Send(json("200 OK", r#"{"a":1}"#))],
        _ => vec![Step::Wait, Step::Close],
    })
    .await;
    assert_eq!(
        status(&gateway.post(CHAT, r#"{"model":"tiny"}"#).await),
        200
    );
    gateway.record().await;
    let client = gateway.begin(CHAT, r#"{"model":"tiny"}"#).await;
    fake.until_received(2).await;
    advance_time(Duration::from_secs(1)).await;
    fake.go();
    assert_eq!(status(&read_rest(client).await), 200);
    let record = gateway.record().await;
    let failures: Vec<_> = record
        .attempts
        .iter()
        .map(|attempt| attempt.failure)
        .collect();
    assert_eq!(
        (record.outcome, failures),
        (Outcome::Ok, vec![Some("stale"), None])
    );
    assert!(gateway.pool.is_ready());
}

#[tokio::test]
async fn two_ended_connections_are_a_death() {
    let (fake, gateway) = gateway_scripted(|seen| match seen.number {
        0 => vec![Step::Send(json("200 OK", r#"{"a":1}"#))],
        _ => vec![Step::Close],
    })
    .await;
    assert_eq!(
        status(&gateway.post(CHAT, r#"{"model":"tiny"}"#).await),
        200
    );
    gateway.record().await;
    assert_eq!(
        status(&gateway.post(CHAT, r#"{"model":"tiny"}"#).await),
        502
    );
    let record = gateway.record().await;
    let failures: Vec<_> = record
        .attempts
        .iter()
        .map(|attempt| attempt.failure)
        .collect();
    assert_eq!(failures, [Some("stale"), Some("connection_reset")]);
    assert_eq!(fake.seen().len(), 3, "the backend got it twice");
}

#[tokio::test]
async fn broken_responses_before_headers_cause_502() {
    let cases = [
        (vec![Step::Close], "connection_reset"),
        (vec![Step::Reset], "connection_reset"),
        (
            vec![
                Step::Send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n".to_vec()),
                Step::Close,
            ],
            "bad_response",
        ),
    ];
    for (steps, reason) in cases {
        let (_fake, gateway) = gateway_following(steps).await;
        let answer = gateway.post(CHAT, ASK_STREAM).await;
        assert_eq!(status(&answer), 502);
        envelope(&answer);
        let record = gateway.record().await;
        assert_eq!(
            (record.outcome, record.refusal),
            (Outcome::UpstreamError, Some(reason))
        );
        assert_eq!(gateway.pool.backends()[0].load.in_flight(), 0);
        gateway.assert_no_more_records().await;
    }
}

#[tokio::test]
async fn invalid_requests_get_a_clear_error() {
    let setup = Setup {
        max_body: 1_000,
        ..Setup::default()
    };
    let (fake, gateway) = gateway_answering_with(setup, json("200 OK", r#"{"a":1}"#)).await;
    let long = format!(r#"{{"model":"tiny","prompt":"{}"}}"#, "x".repeat(1_000));
    let chunked = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: g\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{long}\r\n0\r\n\r\n",
        long.len()
    );
    let encoded = with_lines(&post(CHAT, "{}"), "content-encoding: gzip");
    let cases = [
        (post(CHAT, "not json"), 400, "bad_body"),
        (post(CHAT, ""), 400, "bad_body"),
        (
            post(CHAT, r#"{"model":"tiny","model":"x"}"#),
            400,
            "bad_body",
        ),
        (post(CHAT, r#"{"model":"nope"}"#), 404, "unknown_model"),
        (post("/v1/nothing", "{}"), 404, "not_found"),
        (post("/v1/load_lora_adapter", "{}"), 404, "not_found"),
        (post("/v1/../metrics", "{}"), 404, "not_found"),
        (
            post(CHAT, "{}").replace("POST", "GET"),
            405,
            "method_not_allowed",
        ),
        (post(CHAT, &long), 413, "body_too_large"),
        (chunked, 413, "body_too_large"),
        (encoded, 415, "encoded_body"),
    ];
    for (request, expected, reason) in cases {
        let answer = gateway.raw(&request).await;
        let line = request.lines().next().unwrap();
        assert_eq!(status(&answer), expected, "{line}");
        let code = &envelope(&answer)["code"];
        assert!(*code == expected || *code == "model_not_found", "{line}");
        let record = gateway.record().await;
        assert_eq!(
            (record.refusal, record.outcome),
            (Some(reason), Outcome::ClientError),
            "{line}"
        );
    }
    assert!(fake.seen().is_empty());
}

#[tokio::test]
async fn own_paths_are_answered_by_the_gateway() {
    let fakes = [
        ScriptedBackend::answering(json("200 OK", r#"{"a":1}"#)).await,
        ScriptedBackend::answering(json("200 OK", r#"{"a":1}"#)).await,
    ];
    let gateway = start(&[fakes[0].addr, fakes[1].addr]).await;
    assert_eq!(status(&gateway.raw(get("/health")).await), 200);
    assert_eq!(status(&gateway.raw(get("/ping")).await), 200);
    let models = body_json(&gateway.raw(get("/v1/models")).await);
    assert_eq!(
        models["data"].as_array().map(Vec::len),
        Some(1),
        "one entry per id: {models}"
    );
    assert_eq!(models["data"][0]["owned_by"], "vllm");
    let version = gateway.raw(get("/version")).await;
    assert!(String::from_utf8_lossy(&version).contains(env!("CARGO_PKG_VERSION")));
}

#[tokio::test]
async fn a_shutdown_finishes_streams() {
    let steps = paused(&[ROLE, WORD], &[FINISH, "[DONE]"]);
    let (fake, mut gateway) = gateway_following(steps).await;
    let mut client = gateway.begin(CHAT, ASK_STREAM).await;
    let mut answer = read_until(&mut client, "Hi").await;
    gateway.begin_stop();
    wait_until!(TcpStream::connect(gateway.addr).await.is_err());
    fake.go();
    client.read_to_end(&mut answer).await.unwrap();
    assert!(body(&answer).1, "the stream is complete");
    assert_eq!(
        gateway.stop().await,
        tokenweir_gateway::server::DrainOutcome::Whole
    );
    assert_eq!(gateway.record().await.outcome, Outcome::Ok);
}

#[tokio::test]
async fn the_attempts_span_is_the_parent() {
    let propagation =
        Some(tokenweir_gateway::telemetry::otel::TracingSettings::default().propagation);
    let (fake, gateway) = gateway_answering_with(
        Setup {
            propagation,
            ..Setup::default()
        },
        json("200 OK", r#"{"a":1}"#),
    )
    .await;
    let theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let lines = format!("traceparent: {theirs}\r\ntracestate: a=1");
    let request = with_lines(&post(CHAT, r#"{"model":"tiny"}"#), &lines);
    gateway.raw(request).await;
    let record = gateway.record().await;
    let span = record.attempts[0].span_id;
    let head = fake.seen()[0].head.clone();
    let ours = format!("traceparent: 00-0af7651916cd43dd8448eb211c80319c-{span:016x}-01\r\n");
    assert!(
        head.contains(&ours) && head.contains("tracestate: a=1\r\n"),
        "{head}"
    );
    assert_eq!(
        record.trace.unwrap().parent_span_id,
        Some(0xb7ad_6b71_6920_3331)
    );
}

#[tokio::test]
async fn without_tracing_the_context_is_unchanged() {
    let (fake, gateway) = gateway_answering(json("200 OK", r#"{"a":1}"#)).await;
    let theirs = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    gateway
        .raw(with_lines(&post(CHAT, r#"{"model":"tiny"}"#), theirs))
        .await;
    assert!(fake.seen()[0].head.contains(theirs));
}

#[tokio::test]
async fn requests_of_a_client_share_a_connection() {
    let (fake, gateway) = gateway_scripted(|seen| {
        let body = String::from_utf8_lossy(&seen.body).into_owned();
        vec![Step::Send(json("200 OK", &body))]
    })
    .await;
    let keep = |number: usize| {
        post(CHAT, &format!(r#"{{"model":"tiny","n":{number}}}"#))
            .replace("connection: close\r\n", "")
    };
    let mut client = gateway.connect().await;
    for number in 0..3 {
        client.write_all(keep(number).as_bytes()).await.unwrap();
        read_until(&mut client, &format!("\"n\":{number}}}")).await;
    }
    client
        .write_all([keep(3), keep(4)].concat().as_bytes())
        .await
        .unwrap();
    read_until(&mut client, "\"n\":4}").await;
    for _ in 0..5 {
        assert_eq!(gateway.record().await.outcome, Outcome::Ok);
    }
    assert_eq!(
        fake.connections(),
        1,
        "all requests use one backend connection"
    );
}

#[tokio::test]
async fn bytes_behind_a_request_do_no_harm() {
    let (fake, gateway) = gateway_scripted(|_| paused(&[ROLE, WORD], &[FINISH, "[DONE]"])).await;
    let request = post(CHAT, ASK_STREAM).replace("connection: close\r\n", "");
    let mut client = gateway
        .send([request, "x".repeat(500 << 10)].concat())
        .await;
    read_until(&mut client, "Hi").await;
    fake.go();
    assert!(
        read_rest(client)
            .await
            .ends_with(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    );
    assert_eq!(gateway.record().await.outcome, Outcome::Ok);
    gateway.assert_no_more_records().await;
}

#[tokio::test]
async fn http_1_0_streams_end_with_the_connection() {
    let (_fake, gateway) = gateway_answering(stream_of(&[ROLE, WORD, FINISH, "[DONE]"])).await;
    let request = post(CHAT, ASK_STREAM).replace("HTTP/1.1", "HTTP/1.0");
    let answer = gateway.raw(request).await;
    let text = String::from_utf8_lossy(&answer);
    assert!(
        !text.contains("transfer-encoding") && text.ends_with("data: [DONE]\n\n"),
        "{text}"
    );
    assert_eq!(gateway.record().await.outcome, Outcome::Ok);
}

#[tokio::test]
async fn expect_100_continue_gets_100_continue() {
    let (fake, gateway) = gateway_answering(json("200 OK", r#"{"a":1}"#)).await;
    let request = with_lines(&post(CHAT, ASK_STREAM), "Expect: 100-Continue");
    let (head, rest) = request.split_at(request.find("\r\n\r\n").unwrap() + 4);
    let mut client = gateway.send(head).await;
    read_until(&mut client, "100 Continue").await;
    client.write_all(rest.as_bytes()).await.unwrap();
    read_until(&mut client, "200 OK").await;
    assert!(!fake.seen()[0].head.to_ascii_lowercase().contains("expect"));
}

/// Starts a backend whose response is much larger than all buffers between it and a client, and a gateway.
pub(crate) async fn flooding() -> (ScriptedBackend, Running) {
    const FLOOD: usize = 64 << 20;
    gateway_scripted(|_| {
        vec![
            Step::Send(response("200 OK", "", vec![b'x'; FLOOD])),
            Step::AwaitClose,
        ]
    })
    .await
}

/// Asserts that a client of [`flooding`] that does not read its response makes the gateway stop reading from
/// the backend, but not stop serving others. Then disconnects the client.
pub(crate) async fn assert_only_the_backend_stops<C>(
    fake: &ScriptedBackend,
    gateway: &Running,
    client: C,
) {
    assert_eq!(
        status(&gateway.post("/v1/nothing", "{}").await),
        404,
        "another client is served"
    );
    gateway.record().await;
    drop(client);
    fake.closed().await;
    let record = gateway.record().await;
    assert_eq!(
        (record.outcome, record.route),
        (Outcome::Cancelled, Some(CHAT))
    );
    // Sockets and buffers hold a part of the stream. The gateway must not have read more than that from the
    // backend.
    assert!(
        record.bytes_out < 16 << 20,
        "{} bytes were read ahead",
        record.bytes_out
    );
}

#[tokio::test]
async fn slow_clients_slow_their_backend_only() {
    let (fake, gateway) = flooding().await;
    let mut client = gateway.begin(CHAT, ASK_STREAM).await;
    read_until(&mut client, "xxxx").await;
    assert_only_the_backend_stops(&fake, &gateway, client).await;
}

#[tokio::test]
async fn a_large_body_arrives_complete() {
    let setup = Setup {
        max_body: 64 << 20,
        ..Setup::default()
    };
    let (fake, gateway) = gateway_answering_with(setup, json("200 OK", r#"{"a":1}"#)).await;
    let body = format!(
        r#"{{"messages":"{}","model":"tiny"}}"#,
        "image ".repeat(4 << 20)
    );
    assert_eq!(status(&gateway.post(CHAT, &body).await), 200);
    assert_eq!(fake.seen()[0].body, body.as_bytes());
    assert_eq!(gateway.record().await.bytes_in, body.len() as u64);
}

#[tokio::test]
async fn an_unrequested_compression_passes_uninspected() {
    let headers = "content-type: text/event-stream\r\ncontent-encoding: gzip\r\n";
    let answer = response("200 OK", headers, b"\x1f\x8b\x08\x00");
    let (_fake, gateway) = gateway_answering(answer).await;
    let (bytes, whole) = body(&gateway.post(CHAT, ASK_STREAM).await);
    assert_eq!((bytes, whole), (b"\x1f\x8b\x08\x00".to_vec(), true));
    let record = gateway.record().await;
    assert_eq!(record.outcome, Outcome::Ok);
    assert_eq!(
        record.observed.uninspected_reason,
        Some(tokenweir_request::record::UninspectedReason::ContentEncoded)
    );
}

#[tokio::test]
async fn an_endless_head_causes_502() {
    let (fake, gateway) = gateway_scripted(|_| {
        let head = format!("HTTP/1.1 200 OK\r\nx: {}\r\n", "a".repeat(1 << 20));
        vec![Step::Send(head.into_bytes()), Step::AwaitClose]
    })
    .await;
    assert_eq!(status(&gateway.post(CHAT, ASK_STREAM).await), 502);
    fake.closed().await;
    assert_eq!(gateway.record().await.outcome, Outcome::UpstreamError);
}
