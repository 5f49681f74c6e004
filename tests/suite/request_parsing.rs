//! Compares the gateway's parser of HTTP/1.1 requests with hyper's server. If the gateway accepts a request,
//! hyper must accept it with the same meaning, for any split or corruption of the bytes. Also tests what a
//! client sees if its request is answered before it was read.

use crate::support::corrupted_bytes::{chunked, corrupted};
use crate::support::scripted_backend::json;
use crate::support::test_gateway::{
    CHAT, Setup, body, gateway_answering, gateway_answering_with, post, read_rest, status,
};
use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, Method, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use tokenweir_protocol::http1;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Method, target, headers and body of a complete request.
type ParsedRequest = (Method, Uri, HeaderMap, Vec<u8>);

const HEAD_LIMITS: http1::HeadLimits = http1::HeadLimits {
    max_bytes: 64 << 10,
    max_headers: 100,
};

/// Returns the request that the gateway parses from `wire`, in pieces of `piece` bytes. `None`: the gateway
/// rejects the request, or the request is incomplete.
fn parse_with_gateway(wire: &[u8], piece: usize) -> Option<ParsedRequest> {
    let mut bytes = BytesMut::new();
    let mut parsed: Option<(Request<()>, http1::BodyDecoder, Vec<u8>)> = None;
    for piece in wire.chunks(piece) {
        bytes.extend_from_slice(piece);
        if parsed.is_none() {
            let received = bytes.clone().freeze();
            let Some(head) = http1::parse_request_head(&received, HEAD_LIMITS).ok()? else {
                continue;
            };
            bytes.advance(head.length);
            parsed = Some((head.request, head.body, Vec::new()));
        }
        let (_, body, data) = parsed.as_mut()?;
        let mut received = bytes.split().freeze();
        while !received.is_empty() && !body.is_complete() {
            data.extend_from_slice(&body.decode_bytes(&mut received).ok()?);
        }
        if body.is_complete() {
            break;
        }
    }
    let (request, body, data) = parsed?;
    let (head, ()) = request.into_parts();
    body.is_complete()
        .then_some((head.method, head.uri, head.headers, data))
}

/// Returns the first request that hyper's server parses. `None`: hyper rejects the request, or the request is
/// incomplete.
async fn parse_with_hyper(wire: Vec<u8>) -> Option<ParsedRequest> {
    let (server_side, mut client_side) = tokio::io::duplex(1 << 20);
    let first_request = Arc::new(Mutex::new(None));
    let service = service_fn(|request: Request<hyper::body::Incoming>| {
        let first_request = first_request.clone();
        async move {
            let (head, body) = request.into_parts();
            if let Ok(body) = body.collect().await {
                let parsed = (
                    head.method,
                    head.uri,
                    head.headers,
                    body.to_bytes().to_vec(),
                );
                first_request.lock().unwrap().get_or_insert(parsed);
            }
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    client_side.write_all(&wire).await.ok()?;
    client_side.shutdown().await.ok()?;
    let served = Builder::new()
        .half_close(true)
        .serve_connection(TokioIo::new(server_side), service);
    let reading = async { client_side.read_to_end(&mut Vec::new()).await };
    let _ = tokio::join!(served, reading);
    first_request.lock().unwrap().take()
}

fn wire() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        Just("POST /v1/chat/completions HTTP/1.1"),
        Just("GET http://a:1/x?y=%20 HTTP/1.1"),
        Just("\r\nOPTIONS * HTTP/1.1"),
        Just("\r\n\r\nOPTIONS * HTTP/1.1"),
        Just("PUT / HTTP/1.0"),
    ];
    let header = prop_oneof![
        Just("content-type: application/json\r\n"),
        Just("X-Request-Id:  a \r\n"),
        Just("connection: keep-alive, x\r\n"),
        Just("cookie: a\r\ncookie: b\r\n"),
        Just("x: content-length: 1\r\n"),
        Just("x-empty:\r\n"),
    ];
    let body = proptest::collection::vec(any::<u8>(), 0..300);
    (
        line,
        proptest::collection::vec(header, 0..4),
        body,
        0..3,
        1_usize..100,
    )
        .prop_map(|(line, headers, body, framing, size)| {
            let mut wire = format!("{line}\r\n{}", headers.concat()).into_bytes();
            let is_old = line.ends_with('0');
            match framing {
                0 => wire.extend(format!("Content-Length: {}\r\n\r\n", body.len()).bytes()),
                1 if !is_old => wire.extend(b"transfer-encoding: chunked\r\n\r\n"),
                _ => wire.extend(b"\r\n"),
            }
            if framing == 0 {
                wire.extend(body);
            } else if framing == 1 && !is_old {
                wire.extend(chunked(&body, size));
            }
            wire
        })
}

proptest! {
    #[test]
    fn valid_requests_are_parsed_like_hyper(wire in wire(), piece in 1_usize..80) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let parsed = parse_with_gateway(&wire, piece);
        prop_assert!(parsed.is_some());
        prop_assert_eq!(parsed, runtime.block_on(parse_with_hyper(wire)));
    }

    #[test]
    fn corrupted_requests_need_hypers_acceptance(
        wire in corrupted(wire()),
        piece in 1_usize..80,
    ) {
        if let Some(parsed) = parse_with_gateway(&wire, piece) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            prop_assert_eq!(Some(parsed), runtime.block_on(parse_with_hyper(wire)));
        }
    }
}

#[tokio::test]
async fn a_sending_client_receives_the_rejection() {
    let (_fake, gateway) = gateway_answering_with(
        Setup {
            max_body: 1 << 10,
            ..Setup::default()
        },
        json("200 OK", r#"{"a":1}"#),
    )
    .await;
    let (length, head) = (
        8 << 20,
        "POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length:",
    );
    let mut client = gateway.send(format!("{head} {length}\r\n\r\n")).await;
    // The socket buffers of both sides cannot hold the body. If the gateway did not read it, this write would
    // not end.
    client.write_all(&vec![b' '; length]).await.unwrap();
    let answer = read_rest(client).await;
    assert_eq!(status(&answer), 413);
    assert!(String::from_utf8_lossy(&answer).contains("connection: close\r\n"));
}

#[tokio::test]
async fn a_received_body_keeps_the_connection() {
    let (_fake, gateway) = gateway_answering(json("200 OK", r#"{"a":1}"#)).await;
    let nowhere = post("/nowhere", "{\"a\": 1}").replace("connection: close\r\n", "");
    let answers = gateway
        .raw([nowhere, post(CHAT, r#"{"model":"tiny"}"#)].concat())
        .await;
    let answers = String::from_utf8_lossy(&answers);
    assert!(answers.starts_with("HTTP/1.1 404 "), "{answers}");
    assert!(answers.contains("HTTP/1.1 200 OK\r\n"), "{answers}");
}

#[tokio::test]
async fn http_1_0_reuses_with_a_content_length() {
    let (_fake, gateway) = gateway_answering(json("200 OK", r#"{"a":1}"#)).await;
    let old = |connection: &str| {
        let request = post(CHAT, r#"{"model":"tiny"}"#).replace("HTTP/1.1", "HTTP/1.0");
        request.replace("connection: close\r\n", connection)
    };
    let all = [old("connection: keep-alive\r\n"), old("")].concat();
    let answers = gateway.raw(all).await;
    let (first, second) = answers.split_at(answers.len() / 2);
    let text = String::from_utf8_lossy(first);
    assert!(text.starts_with("HTTP/1.0 200 OK\r\n"), "{text}");
    assert_eq!(
        String::from_utf8_lossy(&answers)
            .matches("connection: keep-alive")
            .count(),
        1
    );
    assert_eq!(body(second).0, br#"{"a":1}"#);
}
