//! Compares the gateway's parser of HTTP/1.1 responses with hyper's client, for any split or corruption of
//! the bytes.

use crate::support::corrupted_bytes::{chunked, corrupted};
use crate::support::scripted_backend::{FINISH, WORD, chunk, event_stream_head, json};
use crate::support::tcp_server::TcpServer;
use crate::support::test_gateway::{Setup, body, start_with, status};
use bytes::{Buf, Bytes, BytesMut};
use http::{Method, Request};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use tokenweir_protocol::http1;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Status, headers and body of a complete response.
type Answer = (u16, Vec<(String, Vec<u8>)>, Vec<u8>);

fn sorted(headers: &http::HeaderMap) -> Vec<(String, Vec<u8>)> {
    let mut pairs: Vec<_> = headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
        .collect();
    pairs.sort();
    pairs
}

/// Returns the response that the gateway parses from `wire`, in pieces of `piece` bytes, if the server closes
/// the connection after it. `None`: the gateway rejects the response.
fn parse_with_gateway(wire: &[u8], piece: usize) -> Option<Answer> {
    let (mut bytes, mut data) = (BytesMut::new(), BytesMut::new());
    let mut answer: Option<http1::ResponseHead> = None;
    for piece in wire.chunks(piece) {
        bytes.extend_from_slice(piece);
        if answer.is_none() {
            let Some(head) = http1::parse_response_head(&Method::GET, false, &bytes).ok()? else {
                continue;
            };
            bytes.advance(head.length);
            answer = Some(head);
        }
        let head = answer.as_mut()?;
        let count = head.body.decode(&bytes, &mut data).ok()?;
        bytes.advance(count);
        if head.body.is_complete() {
            break;
        }
    }
    let head = answer?;
    let is_whole = head.body.is_complete() || head.body == http1::BodyDecoder::UntilClose;
    let (status, headers) = (
        head.response.status().as_u16(),
        sorted(head.response.headers()),
    );
    is_whole.then(|| (status, headers, data.to_vec()))
}

/// Returns the response that hyper's client parses. `None`: hyper rejects the response.
async fn parse_with_hyper(wire: Vec<u8>) -> Option<Answer> {
    let (here, mut there) = tokio::io::duplex(1 << 20);
    tokio::spawn(async move {
        let mut request = [0; 256];
        let _ = there.read(&mut request).await;
        let _ = there.write_all(&wire).await;
    });
    let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(here))
        .await
        .ok()?;
    tokio::spawn(driver);
    let request = Request::get("/")
        .header("host", "a")
        .body(Empty::<Bytes>::new())
        .unwrap();
    let (parts, body) = sender.send_request(request).await.ok()?.into_parts();
    let body = body.collect().await.ok()?.to_bytes();
    Some((parts.status.as_u16(), sorted(&parts.headers), body.to_vec()))
}

fn wire() -> impl Strategy<Value = Vec<u8>> {
    let status = prop_oneof![
        Just("HTTP/1.1 200 OK"),
        Just("HTTP/1.1 503 Service Unavailable"),
        Just("HTTP/1.1 204 No Content"),
        Just("HTTP/1.0 200 OK"),
        Just("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200"),
    ];
    let header = prop_oneof![
        Just("content-type: application/json\r\n"),
        Just("X-Request-Id:  a \r\n"),
        Just("connection: close\r\n"),
        Just("set-cookie: a\r\nset-cookie: b\r\n"),
    ];
    let body = proptest::collection::vec(any::<u8>(), 0..300);
    (
        status,
        proptest::collection::vec(header, 0..4),
        body,
        0..3,
        1_usize..100,
    )
        .prop_map(|(status, headers, body, framing, size)| {
            let mut wire = format!("{status}\r\n{}", headers.concat()).into_bytes();
            match framing {
                0 => wire.extend(format!("content-length: {}\r\n\r\n", body.len()).bytes()),
                1 => wire.extend(b"transfer-encoding: chunked\r\n\r\n"),
                _ => wire.extend(b"\r\n"),
            }
            if framing == 1 {
                wire.extend(chunked(&body, size));
            } else {
                wire.extend(body);
            }
            wire
        })
}

proptest! {
    #[test]
    fn gateway_and_hyper_parse_valid_responses_alike(wire in wire(), piece in 1_usize..80) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let theirs = runtime.block_on(parse_with_hyper(wire.clone()));
        // hyper accepts a chunked body from an HTTP/1.0 server. The gateway does not, because HTTP/1.0 has no
        // chunked encoding.
        let is_odd = wire.starts_with(b"HTTP/1.0") && wire.windows(9).any(|part| part == b": chunked");
        prop_assert_eq!(parse_with_gateway(&wire, piece), theirs.filter(|_| !is_odd));
    }

    #[test]
    fn corrupted_responses_need_hypers_acceptance(
        wire in corrupted(wire()),
        piece in 1_usize..80,
    ) {
        if let Some(answer) = parse_with_gateway(&wire, piece) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            prop_assert_eq!(Some(answer), runtime.block_on(parse_with_hyper(wire)));
        }
    }
}

/// Serves a connection. Each response has two events: the first is sent before the request body is read, the
/// second after the whole body is read.
async fn answer_early(stream: TcpStream) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            let from = head.len();
            (stream.read_line(&mut head).await.ok()? > 0).then_some(())?;
            if let Some(digits) = head[from..].strip_prefix("content-length: ") {
                length = digits.trim().parse().ok()?;
            }
        }
        if head.starts_with("GET") {
            stream.write_all(&json("200 OK", r#"{"a":1}"#)).await.ok()?;
            continue;
        }
        stream
            .write_all(&[event_stream_head(), chunk(WORD)].concat())
            .await
            .ok()?;
        tokio::io::copy(&mut (&mut stream).take(length), &mut tokio::io::sink())
            .await
            .ok()?;
        let rest = [chunk(FINISH), chunk("[DONE]"), b"0\r\n\r\n".to_vec()].concat();
        stream.write_all(&rest).await.ok()?;
    }
}

#[tokio::test]
async fn an_early_answer_still_gets_the_body() {
    let serve = |stream| async move { answer_early(stream).await.unwrap_or_default() };
    let backend = TcpServer::start(serve).await;
    let setup = Setup {
        max_body: 64 << 20,
        ..Setup::default()
    };
    let gateway = start_with(&[backend.addr], setup).await;
    // The prompt is larger than the socket buffers.
    let prompt = "word ".repeat(4 << 20);
    let ask = format!(r#"{{"model":"tiny","stream":true,"prompt":"{prompt}"}}"#);
    let answer = gateway.post("/v1/completions", &ask).await;
    assert_eq!(status(&answer), 200);
    let (body, is_whole) = body(&answer);
    assert!(
        is_whole && body.ends_with(b"data: [DONE]\n\n"),
        "{}",
        String::from_utf8_lossy(&body)
    );
}
