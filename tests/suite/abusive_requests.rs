//! Two kinds of abusive requests: requests that are small for the client but could cost the gateway much, and
//! requests that try to make the gateway contact a host of the client's choice (SSRF).

use crate::smuggling::{echo, echo_gateway, victim};
use crate::support::raw_http2::{DATA, END_HEADERS, Ended, HEADERS, Http2, encode_headers, frame};
use crate::support::scripted_backend::{Page, ScriptedBackend, framed};
use crate::support::strict::answers;
use crate::support::test_gateway::{
    CHAT, Setup, read_until, start, start_with, status, with_lines,
};
use std::net::TcpListener;

/// The first bytes of a gzip body that would decompress to a million times its size.
const GZIP: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];

#[tokio::test]
async fn unknown_encodings_and_long_bodies_are_rejected_unread() {
    let fake = echo().await;
    let setup = Setup {
        max_body: 1_000_000,
        ..Setup::default()
    };
    let gateway = start_with(&[fake.addr], setup).await;
    let encodings = ["br", "compress", "gzip, gzip", "gzip, identity, deflate"];
    let compressed =
        encodings.map(|name| (format!("content-encoding: {name}\r\n"), 1_000_000, 415));
    for (line, length, expected) in compressed
        .into_iter()
        .chain([(String::new(), 1_000_001, 413)])
    {
        let head =
            format!("POST {CHAT} HTTP/1.1\r\nhost: g\r\n{line}content-length: {length}\r\n\r\n");
        let mut client = gateway.send(&[head.as_bytes(), &GZIP].concat()).await;
        // The gateway must answer although the client has not sent most of the body.
        let answer = read_until(&mut client, "\r\n\r\n").await;
        assert_eq!(status(&answer), expected, "{line}");
    }
    assert!(fake.seen().is_empty());
}

#[tokio::test]
async fn a_bytewise_chunked_body_reaches_the_backend() {
    let (_fake, gateway) = echo_gateway().await;
    let body = format!(r#"{{"model":"tiny","prompt":"{}"}}"#, "x".repeat(100_000));
    let pieces: Vec<&str> = body.split_inclusive(|_: char| true).collect();
    let chunks = String::from_utf8(framed(&pieces)).unwrap();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: g\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let answer = gateway.raw(format!("{head}{chunks}0\r\n\r\n")).await;
    assert_eq!(answers(&answer).unwrap()[0].body, body);
}

#[tokio::test]
async fn a_bytewise_http2_body_reaches_the_backend() {
    let (_fake, gateway) = echo_gateway().await;
    let mut client = Http2::connect(gateway.addr, &[]).await;
    let pairs = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", CHAT),
        (":authority", "g"),
    ];
    let body = format!(r#"{{"model":"tiny","prompt":"{}"}}"#, "x".repeat(500));
    let last = body.len() - 1;
    let bytes = body.bytes().enumerate();
    let data: Vec<u8> = bytes
        .flat_map(|(at, byte)| frame(DATA, u8::from(at == last), 1, &[byte]))
        .collect();
    let head = frame(HEADERS, END_HEADERS, 1, &encode_headers(&pairs));
    client.send(&[head, data].concat()).await;
    assert_eq!(client.reader.ended(1).await, Ended::Answered(body));
}

/// Starts a server that the gateway must never contact. The kernel accepts each connection, so that after the
/// gateway has answered all requests, `accept` shows whether it connected.
fn trap() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

#[tokio::test]
async fn only_the_configuration_determines_the_host() {
    let (fake, gateway) = echo_gateway().await;
    let trap = trap();
    let address = trap.local_addr().unwrap();
    let url = format!("http://{address}");
    let mut request_count = 0;
    let names = [
        "api_base",
        "base_url",
        "api_url",
        "url",
        "endpoint",
        "proxy",
        "host",
        "webhook",
        "callback",
        "backend",
        "target",
        "upstream",
        "model_server",
        "server",
        "metadata",
        "image_url",
    ];
    for name in names {
        for value in [
            format!("\"{url}\""),
            format!("[\"{url}\"]"),
            format!("{{\"url\":\"{url}\"}}"),
        ] {
            let body =
                format!(r#"{{"model":"tiny","{name}":{value},"extra_body":{{"{name}":{value}}}}}"#);
            let query = format!("{CHAT}?{name}={url}");
            assert_eq!(status(&gateway.post(&query, &body).await), 200, "{name}");
            request_count += 1;
        }
    }
    let headers = [
        "x-forwarded-host",
        "x-forwarded-server",
        "x-forwarded-for",
        "x-forwarded-proto",
        "x-host",
        "x-original-url",
        "x-rewrite-url",
        "x-original-host",
        "forwarded",
        "x-real-ip",
        "via",
        "x-api-base",
        "x-upstream",
        "x-backend",
        "x-target-url",
        "x-http-method-override",
        "referer",
        "origin",
        "destination",
        "location",
        "x-envoy-original-dst-host",
        "x-proxy-url",
        "helicone-target-url",
    ];
    for name in headers {
        for value in [
            url.clone(),
            address.to_string(),
            format!("for={address};host={address}"),
        ] {
            let (request, expected) = victim(name);
            let request = with_lines(&request, &format!("{name}: {value}"));
            assert_eq!(
                answers(&gateway.raw(request).await),
                Ok(vec![expected]),
                "{name}"
            );
            request_count += 1;
        }
    }
    for (from, to) in [
        ("host: gateway".to_owned(), format!("host: {address}")),
        (format!("POST {CHAT}"), format!("POST {url}{CHAT}")),
    ] {
        let (request, expected) = victim("target");
        let answer = gateway.raw(request.replacen(&from, &to, 1)).await;
        assert_eq!(answers(&answer), Ok(vec![expected]), "{to}");
        request_count += 1;
    }
    let tunnel =
        format!("CONNECT {address} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    assert_eq!(status(&gateway.raw(tunnel).await), 405);
    assert!(
        trap.accept().is_err(),
        "one of {request_count} requests contacts another host"
    );
    assert_eq!(fake.seen().len(), request_count);
}

#[tokio::test]
async fn no_redirect_of_a_backend_is_followed() {
    let trap = trap();
    let address = trap.local_addr().unwrap();
    let location = format!("location: http://{address}/metrics\r\ncontent-length: 0\r\n\r\n");
    for code in [
        "301 Moved",
        "302 Found",
        "303 See Other",
        "307 Temporary Redirect",
        "308 Permanent",
    ] {
        let redirect = format!("HTTP/1.1 {code}\r\n{location}");
        let fake = ScriptedBackend::answering(redirect.clone()).await;
        fake.set_metrics(Some(Page::Whole(redirect.into_bytes())));
        let gateway = start(&[fake.addr]).await;
        let answer = gateway.post(CHAT, r#"{"model":"tiny"}"#).await;
        assert_eq!(
            code[..3].parse(),
            Ok(status(&answer)),
            "the redirect is passed to the client"
        );
        let before = fake.looks()[1];
        wait_until!(fake.looks()[1] >= before + 3);
    }
    assert!(trap.accept().is_err(), "a redirect was followed");
}
