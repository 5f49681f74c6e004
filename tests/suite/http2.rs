//! What HTTP/2 can carry and HTTP/1.1 cannot: it is refused, or becomes one sound request of
//! HTTP/1.1. And floods of frames that cost their sender little: they end, and others are served.
//!
//! `HTTP2_FRAMES` sets how many frames a flood has.

mod floods;

use crate::smuggling::{CHAT, echo, victim};
use crate::support::gateway::start;
use crate::support::raw_http2::{
    DATA, END_HEADERS, END_STREAM, Ended, HEADERS, Http2, frame, literals,
};
use crate::support::strict::{answers, unsound};
use std::time::Duration;

const BODY: &str = r#"{"model":"tiny","user":"attack"}"#;
const PATIENCE: Duration = Duration::from_secs(10);

type Headers = Vec<(Vec<u8>, Vec<u8>)>;

/// What must become of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// No replica hears of it.
    Refused,
    /// The replica gets it.
    Served,
}

use Verdict::{Refused, Served};

/// The headers of an honest request.
fn honest() -> Headers {
    let pairs = [(":method", "POST"), (":scheme", "http"), (":path", CHAT), (":authority", "g")];
    pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

/// Those with more behind them.
fn with(more: &[(&str, &str)]) -> Headers {
    let more = more.iter().map(|(name, value)| ((*name).into(), (*value).into()));
    honest().into_iter().chain(more).collect()
}

/// Those with another value of one; `None`: without it.
fn changed(name: &str, value: Option<&str>) -> Headers {
    let mut headers = honest();
    let place = headers.iter().position(|(known, _)| known == name.as_bytes()).unwrap();
    match value {
        Some(value) => headers[place].1 = value.into(),
        None => drop(headers.remove(place)),
    }
    headers
}

/// Name, headers and what must become of it.
type Case = (&'static str, Headers, Verdict);

/// Headers that frame a message of HTTP/1.1, or are for one hop of it.
fn framings() -> Vec<Case> {
    let length = BODY.len().to_string();
    let twice = [("content-length", &*length), ("content-length", &*length)];
    vec![
        ("nothing strange", honest(), Served),
        ("a length", with(&[("content-length", &length)]), Served),
        ("a length that is too long", with(&[("content-length", "99")]), Refused),
        ("a length that is too short", with(&[("content-length", "1")]), Refused),
        ("a length of nothing", with(&[("content-length", "0")]), Refused),
        ("a length with a sign", with(&[("content-length", &format!("+{length}"))]), Refused),
        ("two lengths", with(&[("content-length", "1"), twice[0]]), Refused),
        ("an encoding", with(&[("transfer-encoding", "chunked")]), Refused),
        ("an encoding and a length", with(&[("transfer-encoding", "chunked"), twice[0]]), Refused),
        ("a connection", with(&[("connection", "close")]), Refused),
        ("an upgrade", with(&[("upgrade", "h2c")]), Refused),
        ("a kept connection", with(&[("keep-alive", "1")]), Refused),
        ("a proxy's connection", with(&[("proxy-connection", "close")]), Refused),
        ("trailers wished for", with(&[("te", "trailers")]), Served),
        ("an encoding wished for", with(&[("te", "chunked")]), Refused),
        ("an underscore", with(&[("content_length", "0"), ("transfer_encoding", "x")]), Served),
    ]
}

/// Bytes that would end a line or a name in HTTP/1.1.
fn characters() -> Vec<Case> {
    let value = |value: &str| with(&[("x", value)]);
    let name = |name: &str| with(&[(name, "a")]);
    vec![
        ("a line end in a value", value("a\r\ncontent-length: 0"), Refused),
        ("a request in a value", value("a\r\n\r\nGET / HTTP/1.1\r\n\r\n"), Refused),
        ("LF in a value", value("a\nx: b"), Refused),
        ("CR in a value", value("a\rx: b"), Refused),
        ("NUL in a value", value("a\0b"), Refused),
        ("a line end in a name", name("x: a\r\ny"), Refused),
        ("a colon in a name", name("x:y"), Refused),
        ("a blank in a name", name("x y"), Refused),
        ("a capital in a name", name("X-A"), Refused),
        ("no name", name(""), Refused),
        ("a line end in a method", changed(":method", Some("POST / HTTP/1.1\r\nx: y")), Refused),
        ("a blank in a method", changed(":method", Some("POST /x")), Refused),
        ("a line end in a path", changed(":path", Some("/v1 HTTP/1.1\r\nx: y\r\n\r\n")), Refused),
        ("a blank in a path", changed(":path", Some(&format!("{CHAT} HTTP/1.1"))), Refused),
        ("a line end in a host", changed(":authority", Some("g\r\nx: y")), Refused),
        ("a user in a host", with(&[("host", "a@g")]), Refused),
    ]
}

/// Pseudo-headers that are missing, double or strange.
fn pseudo_headers() -> Vec<Case> {
    let mut late = with(&[("x", "a")]);
    late.swap(0, 4);
    let absolute = format!("http://169.254.169.254{CHAT}");
    vec![
        ("no method", changed(":method", None), Refused),
        ("no scheme", changed(":scheme", None), Refused),
        ("no path", changed(":path", None), Refused),
        ("an empty path", changed(":path", Some("")), Refused),
        ("an asterisk", changed(":path", Some("*")), Refused),
        ("a path without its slash", changed(":path", Some("v1/chat/completions")), Refused),
        ("an absolute path", changed(":path", Some(&absolute)), Refused),
        ("two paths", with(&[(":path", "/metrics")]), Refused),
        ("two methods", with(&[(":method", "GET")]), Refused),
        ("one of an answer", with(&[(":status", "200")]), Refused),
        ("one that nobody knows", with(&[(":x", "a")]), Refused),
        ("one behind the others", late, Refused),
        ("no authority, and no host", changed(":authority", None), Served),
        ("the same host", with(&[("host", "g")]), Served),
        ("another host", with(&[("host", "h")]), Refused),
        ("two hosts", with(&[("host", "g"), ("host", "g")]), Refused),
        ("a tunnel", changed(":method", Some("CONNECT")), Refused),
        ("a tunnel for a protocol", with(&[(":protocol", "websocket")]), Refused),
    ]
}

#[tokio::test]
async fn a_request_of_http_2_is_refused_or_becomes_one_sound_request_of_http_1() {
    let fake = echo().await;
    let gateway = start(&[fake.addr]).await;
    for (name, headers, verdict) in [framings(), characters(), pseudo_headers()].concat() {
        fake.take_seen();
        let mut client = Http2::connect(gateway.addr, &[]).await;
        let head = frame(HEADERS, END_HEADERS, 1, &literals(&headers));
        let body = frame(DATA, END_STREAM, 1, BODY.as_bytes());
        client.send(&[head, body].concat()).await;
        let ended = tokio::time::timeout(PATIENCE, client.reader.ended(1)).await.expect(name);
        let seen = fake.take_seen();
        assert_eq!(seen.len(), usize::from(verdict == Served), "{name}: {ended:?}");
        for seen in &seen {
            assert_eq!((unsound(seen), &seen.body[..]), (Ok(()), BODY.as_bytes()), "{name}");
        }
        match (verdict, &ended) {
            (Served, ended) => assert_eq!(*ended, Ended::Answered(BODY.into()), "{name}"),
            // In the envelope of every refusal, and not by a replica.
            (Refused, Ended::Answered(body)) => {
                let error: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
                let code = error["error"]["code"].as_u64();
                assert!(body.is_empty() || matches!(code, Some(400..500)), "{name}: {body}");
            }
            (Refused, _) => {}
        }
        let (request, expected) = victim("other");
        let answer = gateway.raw(request).await;
        assert_eq!(answers(&answer), Ok(vec![expected]), "{name}: another client");
    }
    assert!(gateway.pool.is_ready(), "and no replica was blamed");
}

#[tokio::test]
async fn trailers_of_http_2_go_no_further() {
    let fake = echo().await;
    let gateway = start(&[fake.addr]).await;
    let mut client = Http2::connect(gateway.addr, &[]).await;
    let trailers = literals(&[("content-length", "0"), ("x-trailer", "1")]);
    let frames = [
        frame(HEADERS, END_HEADERS, 1, &literals(&honest())),
        frame(DATA, 0, 1, BODY.as_bytes()),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &trailers),
    ];
    client.send(&frames.concat()).await;
    assert_eq!(client.reader.ended(1).await, Ended::Answered(BODY.into()));
    let seen = &fake.seen()[0];
    assert_eq!(unsound(seen), Ok(()));
    assert!(!seen.head.contains("x-trailer"));
}
