//! HTTP/2 requests that are impossible in HTTP/1.1: the gateway rejects each of them or forwards it as one
//! well-formed HTTP/1.1 request. Floods of frames that cost their sender little: the gateway ends each flood
//! and serves other clients.
//!
//! `HTTP2_FRAMES` sets the number of frames per flood.

mod floods;

use crate::smuggling::{echo_gateway, victim};
use crate::support::raw_http2::{
    DATA, END_HEADERS, END_STREAM, Ended, HEADERS, Http2, encode_headers, frame,
};
use crate::support::strict::{answers, check_forwarded_request};
use crate::support::test_gateway::CHAT;
use std::time::Duration;

const BODY: &str = r#"{"model":"tiny","user":"attack"}"#;
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

type Headers = Vec<(Vec<u8>, Vec<u8>)>;

/// The expected result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The gateway rejects the request, which reaches no backend.
    Rejected,
    /// The request reaches the backend.
    Served,
}

use Verdict::{Rejected, Served};

/// Returns the headers of a valid chat request.
fn valid_headers() -> Headers {
    let pairs = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", CHAT),
        (":authority", "g"),
    ];
    pairs
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()))
        .collect()
}

/// Returns the headers of [`valid_headers`] and these additional ones.
fn with(additional: &[(&str, &str)]) -> Headers {
    let additional = additional
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()));
    valid_headers().into_iter().chain(additional).collect()
}

/// Returns the headers of [`valid_headers`] with another value of the header `name`. `None` removes the
/// header.
fn changed(name: &str, value: Option<&str>) -> Headers {
    let mut headers = valid_headers();
    let place = headers
        .iter()
        .position(|(known, _)| known == name.as_bytes())
        .unwrap();
    match value {
        Some(value) => headers[place].1 = value.into(),
        None => drop(headers.remove(place)),
    }
    headers
}

/// The name of a request, its headers, and the expected result.
type Case = (&'static str, Headers, Verdict);

/// Builds requests with headers that HTTP/2 forbids: those that frame an HTTP/1.1 message, and hop-by-hop
/// headers.
fn framings() -> Vec<Case> {
    let length = BODY.len().to_string();
    let twice = [("content-length", &*length), ("content-length", &*length)];
    vec![
        ("nothing strange", valid_headers(), Served),
        ("a length", with(&[("content-length", &length)]), Served),
        (
            "a length that is too long",
            with(&[("content-length", "99")]),
            Rejected,
        ),
        (
            "a length that is too short",
            with(&[("content-length", "1")]),
            Rejected,
        ),
        (
            "a length of zero",
            with(&[("content-length", "0")]),
            Rejected,
        ),
        (
            "a length with a sign",
            with(&[("content-length", &format!("+{length}"))]),
            Rejected,
        ),
        (
            "two lengths",
            with(&[("content-length", "1"), twice[0]]),
            Rejected,
        ),
        (
            "an encoding",
            with(&[("transfer-encoding", "chunked")]),
            Rejected,
        ),
        (
            "an encoding and a length",
            with(&[("transfer-encoding", "chunked"), twice[0]]),
            Rejected,
        ),
        ("a connection", with(&[("connection", "close")]), Rejected),
        ("an upgrade", with(&[("upgrade", "h2c")]), Rejected),
        (
            "a keep-alive header",
            with(&[("keep-alive", "1")]),
            Rejected,
        ),
        (
            "a proxy-connection header",
            with(&[("proxy-connection", "close")]),
            Rejected,
        ),
        ("te: trailers", with(&[("te", "trailers")]), Served),
        ("te: chunked", with(&[("te", "chunked")]), Rejected),
        (
            "an underscore",
            with(&[("content_length", "0"), ("transfer_encoding", "x")]),
            Served,
        ),
    ]
}

/// Builds requests with bytes that would end a line or a header name in HTTP/1.1.
fn characters() -> Vec<Case> {
    let value = |value: &str| with(&[("x", value)]);
    let name = |name: &str| with(&[(name, "a")]);
    vec![
        (
            "a line end in a value",
            value("a\r\ncontent-length: 0"),
            Rejected,
        ),
        (
            "a request in a value",
            value("a\r\n\r\nGET / HTTP/1.1\r\n\r\n"),
            Rejected,
        ),
        ("LF in a value", value("a\nx: b"), Rejected),
        ("CR in a value", value("a\rx: b"), Rejected),
        ("NUL in a value", value("a\0b"), Rejected),
        ("a line end in a name", name("x: a\r\ny"), Rejected),
        ("a colon in a name", name("x:y"), Rejected),
        ("a space in a name", name("x y"), Rejected),
        ("a capital in a name", name("X-A"), Rejected),
        ("no name", name(""), Rejected),
        (
            "a line end in a method",
            changed(":method", Some("POST / HTTP/1.1\r\nx: y")),
            Rejected,
        ),
        (
            "a space in a method",
            changed(":method", Some("POST /x")),
            Rejected,
        ),
        (
            "a line end in a path",
            changed(":path", Some("/v1 HTTP/1.1\r\nx: y\r\n\r\n")),
            Rejected,
        ),
        (
            "a space in a path",
            changed(":path", Some(&format!("{CHAT} HTTP/1.1"))),
            Rejected,
        ),
        (
            "a line end in a host",
            changed(":authority", Some("g\r\nx: y")),
            Rejected,
        ),
        ("a user in a host", with(&[("host", "a@g")]), Rejected),
    ]
}

/// Builds requests whose pseudo-headers are missing, duplicate or unknown.
fn pseudo_headers() -> Vec<Case> {
    let mut late = with(&[("x", "a")]);
    late.swap(0, 4);
    let absolute = format!("http://169.254.169.254{CHAT}");
    vec![
        ("no method", changed(":method", None), Rejected),
        ("no scheme", changed(":scheme", None), Rejected),
        ("no path", changed(":path", None), Rejected),
        ("an empty path", changed(":path", Some("")), Rejected),
        ("an asterisk", changed(":path", Some("*")), Rejected),
        (
            "a path without its slash",
            changed(":path", Some("v1/chat/completions")),
            Rejected,
        ),
        (
            "an absolute path",
            changed(":path", Some(&absolute)),
            Rejected,
        ),
        ("two paths", with(&[(":path", "/metrics")]), Rejected),
        ("two methods", with(&[(":method", "GET")]), Rejected),
        (
            "a response pseudo-header",
            with(&[(":status", "200")]),
            Rejected,
        ),
        ("an unknown pseudo-header", with(&[(":x", "a")]), Rejected),
        ("a pseudo-header after other headers", late, Rejected),
        (
            "no authority, and no host",
            changed(":authority", None),
            Served,
        ),
        ("the same host", with(&[("host", "g")]), Served),
        ("another host", with(&[("host", "h")]), Rejected),
        ("two hosts", with(&[("host", "g"), ("host", "g")]), Rejected),
        ("a tunnel", changed(":method", Some("CONNECT")), Rejected),
        (
            "a protocol tunnel",
            with(&[(":protocol", "websocket")]),
            Rejected,
        ),
    ]
}

#[tokio::test]
async fn a_request_is_rejected_or_well_formed() {
    let (fake, gateway) = echo_gateway().await;
    for (name, headers, verdict) in [framings(), characters(), pseudo_headers()].concat() {
        fake.take_received();
        let mut client = Http2::connect(gateway.addr, &[]).await;
        let head = frame(HEADERS, END_HEADERS, 1, &encode_headers(&headers));
        let body = frame(DATA, END_STREAM, 1, BODY.as_bytes());
        client.send(&[head, body].concat()).await;
        let ended = tokio::time::timeout(WAIT_TIMEOUT, client.reader.ended(1))
            .await
            .expect(name);
        let seen = fake.take_received();
        assert_eq!(
            seen.len(),
            usize::from(verdict == Served),
            "{name}: {ended:?}"
        );
        for seen in &seen {
            assert_eq!(
                (check_forwarded_request(seen), &seen.body[..]),
                (Ok(()), BODY.as_bytes()),
                "{name}"
            );
        }
        match (verdict, &ended) {
            (Served, ended) => assert_eq!(*ended, Ended::Answered(BODY.into()), "{name}"),
            // The body is an error in the format of the gateway, so it does not come from a backend.
            (Rejected, Ended::Answered(body)) => {
                let error: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
                let code = error["error"]["code"].as_u64();
                assert!(
                    body.is_empty() || matches!(code, Some(400..500)),
                    "{name}: {body}"
                );
            }
            (Rejected, _) => {}
        }
        let (request, expected) = victim("other");
        let answer = gateway.raw(request).await;
        assert_eq!(
            answers(&answer),
            Ok(vec![expected]),
            "{name}: another client"
        );
    }
    assert!(gateway.pool.is_ready(), "no backend was marked down");
}

#[tokio::test]
async fn http2_trailers_are_not_forwarded() {
    let (fake, gateway) = echo_gateway().await;
    let mut client = Http2::connect(gateway.addr, &[]).await;
    let trailers = encode_headers(&[("content-length", "0"), ("x-trailer", "1")]);
    let frames = [
        frame(HEADERS, END_HEADERS, 1, &encode_headers(&valid_headers())),
        frame(DATA, 0, 1, BODY.as_bytes()),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &trailers),
    ];
    client.send(&frames.concat()).await;
    assert_eq!(client.reader.ended(1).await, Ended::Answered(BODY.into()));
    let seen = &fake.seen()[0];
    assert_eq!(check_forwarded_request(seen), Ok(()));
    assert!(!seen.head.contains("x-trailer"));
}
