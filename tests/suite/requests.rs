//! How requests of HTTP/1.1 are read, against hyper's server: whatever the gateway takes, hyper takes,
//! and reads as the same, however the bytes are cut or spoilt. And what a client sees whose request
//! is answered before it was read.

use crate::support::fake::{Fake, json};
use crate::support::gateway::{Setup, body, post, start, start_with, status};
use crate::support::spoilt::spoilt;
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
use tokenweir_core::http1;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Method, target, headers and body of a request that came whole.
type Asked = (Method, Uri, HeaderMap, Vec<u8>);

const CHAT: &str = "/v1/chat/completions";
const MOST: http1::Most = http1::Most { bytes: 64 << 10, headers: 100 };

/// What the gateway reads.
fn ours(wire: &[u8], piece: usize) -> Option<Asked> {
    let mut bytes = BytesMut::new();
    let mut asked: Option<(Request<()>, http1::Body, Vec<u8>)> = None;
    for piece in wire.chunks(piece) {
        bytes.extend_from_slice(piece);
        if asked.is_none() {
            let came = bytes.clone().freeze();
            let Some(head) = http1::request_head(&came, MOST).ok()? else { continue };
            bytes.advance(head.length);
            asked = Some((head.request, head.body, Vec::new()));
        }
        let (_, body, data) = asked.as_mut()?;
        let mut came = bytes.split().freeze();
        while !came.is_empty() && !body.is_over() {
            data.extend_from_slice(&body.take(&mut came).ok()?);
        }
        if body.is_over() {
            break;
        }
    }
    let (request, body, data) = asked?;
    let (head, ()) = request.into_parts();
    body.is_over().then_some((head.method, head.uri, head.headers, data))
}

/// What hyper's server reads first.
async fn hypers(wire: Vec<u8>) -> Option<Asked> {
    let (here, mut there) = tokio::io::duplex(1 << 20);
    let seen = Arc::new(Mutex::new(None));
    let service = service_fn(|request: Request<hyper::body::Incoming>| {
        let seen = seen.clone();
        async move {
            let (head, body) = request.into_parts();
            if let Ok(body) = body.collect().await {
                let asked = (head.method, head.uri, head.headers, body.to_bytes().to_vec());
                seen.lock().unwrap().get_or_insert(asked);
            }
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    there.write_all(&wire).await.ok()?;
    there.shutdown().await.ok()?;
    let served = Builder::new().half_close(true).serve_connection(TokioIo::new(here), service);
    let reading = async { there.read_to_end(&mut Vec::new()).await };
    let _ = tokio::join!(served, reading);
    seen.lock().unwrap().take()
}

fn wire() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        Just("POST /v1/chat/completions HTTP/1.1"),
        Just("GET http://a:1/x?y=%20 HTTP/1.1"),
        Just("\r\nOPTIONS * HTTP/1.1"),
        Just("PUT / HTTP/1.0"),
    ];
    let header = prop_oneof![
        Just("content-type: application/json\r\n"),
        Just("X-Request-Id:  a \r\n"),
        Just("connection: keep-alive, x\r\n"),
        Just("cookie: a\r\ncookie: b\r\n"),
        Just("x-empty:\r\n"),
    ];
    let body = proptest::collection::vec(any::<u8>(), 0..300);
    (line, proptest::collection::vec(header, 0..4), body, 0..3, 1_usize..100).prop_map(
        |(line, headers, body, framing, size)| {
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
                for chunk in body.chunks(size) {
                    wire.extend(format!("{:x};a=b\r\n", chunk.len()).bytes());
                    wire.extend(chunk);
                    wire.extend(b"\r\n");
                }
                wire.extend(b"0\r\nx-trailer: a\r\n\r\n");
            }
            wire
        },
    )
}

proptest! {
    #[test]
    fn what_a_sound_client_sends_is_read_as_hyper_reads_it(wire in wire(), piece in 1_usize..80) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let ours = ours(&wire, piece);
        prop_assert!(ours.is_some());
        prop_assert_eq!(ours, runtime.block_on(hypers(wire)));
    }

    #[test]
    fn nothing_is_taken_of_spoilt_bytes_that_hyper_does_not_take(
        wire in spoilt(wire()),
        piece in 1_usize..80,
    ) {
        if let Some(asked) = ours(&wire, piece) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            prop_assert_eq!(Some(asked), runtime.block_on(hypers(wire)));
        }
    }
}

#[tokio::test]
async fn a_refusal_before_the_body_is_read_reaches_a_client_that_still_sends_it() {
    let fake = Fake::answering(json("200 OK", "{}")).await;
    let gateway = start_with(&[fake.addr], Setup { max_body: 1 << 10, ..Setup::default() }).await;
    let mut client = gateway.connect().await;
    let (length, head) = (8 << 20, "POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length:");
    client.write_all(format!("{head} {length}\r\n\r\n").as_bytes()).await.unwrap();
    // More than the buffers of both sides take: without a reader, it would never be gone.
    client.write_all(&vec![b' '; length]).await.unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    assert_eq!(status(&answer), 413);
    assert!(String::from_utf8_lossy(&answer).contains("connection: close\r\n"));
}

#[tokio::test]
async fn a_body_that_came_and_was_not_read_does_not_cost_the_connection() {
    let fake = Fake::answering(json("200 OK", "{}")).await;
    let gateway = start(&[fake.addr]).await;
    let nowhere = post("/nowhere", "{\"a\": 1}").replace("connection: close\r\n", "");
    let answers = gateway.raw([nowhere, post(CHAT, r#"{"model":"tiny"}"#)].concat()).await;
    let answers = String::from_utf8_lossy(&answers);
    assert!(answers.starts_with("HTTP/1.1 404 "), "{answers}");
    assert!(answers.contains("HTTP/1.1 200 OK\r\n"), "{answers}");
}

#[tokio::test]
async fn a_client_of_http_1_0_may_keep_its_connection_if_answers_have_a_length() {
    let fake = Fake::answering(json("200 OK", "{}")).await;
    let gateway = start(&[fake.addr]).await;
    let old = |connection: &str| {
        let request = post(CHAT, r#"{"model":"tiny"}"#).replace("HTTP/1.1", "HTTP/1.0");
        request.replace("connection: close\r\n", connection)
    };
    let all = [old("connection: keep-alive\r\n"), old("")].concat();
    let answers = gateway.raw(all).await;
    let (first, second) = answers.split_at(answers.len() / 2);
    let text = String::from_utf8_lossy(first);
    assert!(text.starts_with("HTTP/1.0 200 OK\r\n"), "{text}");
    assert_eq!(String::from_utf8_lossy(&answers).matches("connection: keep-alive").count(), 1);
    assert_eq!(body(second).0, b"{}");
}
