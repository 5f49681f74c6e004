//! Tests of response parsing. `tests/suite/response_parsing.rs` compares the results with hyper's.

use super::{
    BodyDecoder, HeadLimits, Http1ParseError, RequestFraming, RequestHead, encode_request_head,
    has_blank_line, parse_request_head, parse_response_head, websocket,
};
use crate::headers;
use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, Method, Request};

const CHUNKED_HEAD: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

/// The body of a response that arrives in reads of `chunk_size` bytes, and whether it has ended.
fn decoded_body(text: &str, chunk_size: usize) -> Result<(String, bool), Http1ParseError> {
    let mut bytes = BytesMut::new();
    let mut data = BytesMut::new();
    let mut body: Option<BodyDecoder> = None;
    for chunk in text.as_bytes().chunks(chunk_size) {
        bytes.extend_from_slice(chunk);
        if body.is_none()
            && let Some(head) = parse_response_head(&Method::POST, false, &bytes)?
        {
            bytes.advance(head.length);
            body = Some(head.body);
        }
        if let Some(body) = &mut body {
            let count = body.decode(&bytes, &mut data)?;
            bytes.advance(count);
        }
    }
    let is_complete = body.is_some_and(|body| body.is_complete());
    Ok((String::from_utf8(data.to_vec()).unwrap(), is_complete))
}

#[test]
fn decoding_does_not_depend_on_splits() {
    let length = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello".to_owned();
    let interim = format!("HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n{length}");
    let chunks = format!("{CHUNKED_HEAD}2;a=\"b\"\r\nhe\r\n003 \r\nllo\r\n0\r\nx: y\r\n\r\n");
    let close = "HTTP/1.1 200 OK\r\n\r\nhello".to_owned();
    for (text, is_complete) in [
        (length, true),
        (interim, true),
        (chunks, true),
        (close, false),
    ] {
        for piece in 1..text.len() {
            assert_eq!(
                decoded_body(&text, piece),
                Ok(("hello".into(), is_complete)),
                "{text:?} by {piece}"
            );
        }
    }
}

#[test]
fn trailers_after_the_last_chunk_are_read() {
    let read = |lines: &str| {
        let mut body = BodyDecoder::chunked();
        for byte in format!("0\r\n{lines}\r\n").as_bytes() {
            body.decode(&[*byte], &mut BytesMut::new()).unwrap();
        }
        assert!(body.is_complete());
        (body.has_trailers(), body.take_trailers())
    };
    assert_eq!(read(""), (false, None));
    let map = HeaderMap::from_iter([(http::header::ETAG, "a".parse().unwrap())]);
    assert_eq!(read("etag: a\r\n"), (true, Some(map)));
}

#[test]
fn later_bytes_do_not_belong_to_the_body() {
    for framing in [
        "content-length: 2\r\n\r\nhi",
        "transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    ] {
        let text = format!("HTTP/1.1 200 OK\r\n{framing}");
        assert_eq!(
            decoded_body(&format!("{text}HTTP/1.1 200 OK\r\n"), usize::MAX),
            Ok(("hi".into(), true))
        );
    }
}

#[test]
fn an_ambiguous_body_length_is_rejected() {
    for headers in [
        "content-length: 1\r\ncontent-length: 2\r\n",
        "content-length: 1, 1\r\n",
        "content-length: +1\r\n",
        "content-length: 99999999999999999999\r\n",
        "content-length:\r\n",
        "transfer-encoding: gzip, chunked\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
    ] {
        let text = format!("HTTP/1.1 200 OK\r\n{headers}\r\n");
        let error = parse_response_head(&Method::POST, false, text.as_bytes()).unwrap_err();
        assert!(
            matches!(
                error,
                Http1ParseError::InvalidBodyLength | Http1ParseError::InvalidHead
            ),
            "{headers:?}: {error:?}"
        );
    }
    let http10 = b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    assert_eq!(
        parse_response_head(&Method::POST, false, http10).unwrap_err(),
        Http1ParseError::InvalidBodyLength
    );
}

#[test]
fn invalid_chunks_of_a_response_body_are_rejected() {
    for chunks in [
        "0\r\nno trailer\r\n\r\n",
        "0\r\nx-trailer: a \n\r\n",
        "2;a\r\0\r\n",
        "\r\n",
        "g\r\n",
        "-1\r\n",
        "2\r\nhix\r\n",
        "2\nhi\r\n",
        "11112222333344445\r\n",
    ] {
        assert_eq!(
            decoded_body(&format!("{CHUNKED_HEAD}{chunks}"), 3),
            Err(Http1ParseError::InvalidChunks),
            "{chunks:?}"
        );
    }
    let long_chunk_line = format!("{CHUNKED_HEAD}1;{}", "x".repeat(20_000));
    assert_eq!(
        decoded_body(&long_chunk_line, 1_000),
        Err(Http1ParseError::InvalidChunks)
    );
}

#[test]
fn some_responses_never_have_a_body() {
    let framing = |method: Method, status: &str| {
        let text = format!("HTTP/1.1 {status}\r\ncontent-length: 7\r\n\r\n");
        parse_response_head(&method, false, text.as_bytes())
            .unwrap()
            .unwrap()
            .body
    };
    assert_eq!(framing(Method::HEAD, "200 OK"), BodyDecoder::empty());
    assert_eq!(framing(Method::GET, "204 No Content"), BodyDecoder::empty());
    assert_eq!(
        framing(Method::GET, "304 Not Modified"),
        BodyDecoder::empty()
    );
    assert_eq!(framing(Method::GET, "200 OK"), BodyDecoder::Length(7));
}

#[test]
fn self_delimiting_responses_keep_the_connection() {
    let is_keep_alive = |text: &str| {
        parse_response_head(&Method::GET, false, text.as_bytes())
            .unwrap()
            .unwrap()
            .is_keep_alive
    };
    let length = "content-length: 0\r\n";
    assert!(is_keep_alive(&format!("HTTP/1.1 200 OK\r\n{length}\r\n")));
    assert!(!is_keep_alive(&format!(
        "HTTP/1.1 200 OK\r\n{length}connection: x, Close\r\n\r\n"
    )));
    assert!(!is_keep_alive("HTTP/1.1 200 OK\r\n\r\n"));
    assert!(!is_keep_alive(&format!("HTTP/1.0 200 OK\r\n{length}\r\n")));
    assert!(is_keep_alive(&format!(
        "HTTP/1.0 200 OK\r\n{length}connection: keep-alive\r\n\r\n"
    )));
}

/// Three spellings of a token, which mean the same because tokens are case-insensitive.
fn spellings(token: &str) -> [String; 3] {
    let (first, rest) = token.split_at(1);
    let capitalized = first.to_ascii_uppercase() + rest;
    [token.to_owned(), token.to_ascii_uppercase(), capitalized]
}

fn request_with(lines: &str) -> Box<RequestHead> {
    let limits = HeadLimits {
        max_bytes: 1 << 10,
        max_headers: 10,
    };
    let head = Bytes::from(format!("GET / HTTP/1.1\r\n{lines}\r\n\r\n"));
    parse_request_head(&head, limits).unwrap().unwrap()
}

#[test]
fn tokens_in_request_heads_are_compared_without_case() {
    for chunked in spellings("chunked") {
        let head = request_with(&format!("transfer-encoding: {chunked}"));
        assert_eq!(head.body, BodyDecoder::chunked_strict(), "{chunked}");
    }
    for close in spellings("close") {
        assert!(
            !request_with(&format!("connection: x, {close}")).is_keep_alive,
            "{close}"
        );
    }
    for expectation in spellings("100-continue") {
        let lines = format!("content-length: 1\r\nexpect: {expectation}");
        assert!(request_with(&lines).is_expectant, "{expectation}");
    }
    let handshake = "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n\
                     sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==";
    for token in ["websocket", "upgrade"] {
        for spelling in spellings(token) {
            let lines = handshake.replace(&format!(": {token}"), &format!(": {spelling}"));
            let (head, ()) = request_with(&lines).request.into_parts();
            assert!(websocket::expected_accept(&head).is_some(), "{lines}");
            assert!(headers::asks_for_upgrade(&head.headers), "{lines}");
        }
    }
    for offer in spellings("h2c") {
        let lines = format!("upgrade: {offer}\r\nconnection: upgrade");
        let head = request_with(&lines).request;
        assert!(!headers::asks_for_upgrade(head.headers()), "{offer}");
    }
}

#[test]
fn tokens_in_response_heads_are_compared_without_case() {
    let parse = |lines: &str| {
        let head = format!("HTTP/1.1 200 OK\r\n{lines}\r\n\r\n");
        parse_response_head(&Method::GET, false, head.as_bytes())
            .unwrap()
            .unwrap()
    };
    for chunked in spellings("chunked") {
        let head = parse(&format!("transfer-encoding: {chunked}"));
        assert_eq!(head.body, BodyDecoder::chunked(), "{chunked}");
    }
    for close in spellings("close") {
        let head = parse(&format!("content-length: 0\r\nconnection: {close}"));
        assert!(!head.is_keep_alive, "{close}");
    }
    for media_type in spellings("text/event-stream") {
        let head = parse(&format!("content-type: {media_type} ; charset=utf-8"));
        assert!(
            headers::is_event_stream(head.response.headers()),
            "{media_type}"
        );
    }
}

#[test]
fn a_request_head_states_its_length_once() {
    let request = Request::post("http://a:1/v1/x?y=z")
        .header("content-length", "77")
        .header("transfer-encoding", "chunked")
        .header("host", "a:1");
    let (parts, ()) = request.body(()).unwrap().into_parts();
    let text = "POST /v1/x?y=z HTTP/1.1\r\nhost: a:1\r\ncontent-length: 3\r\n\r\n";
    assert_eq!(encode_request_head(&parts, RequestFraming::Length(3)), text);
    let (parts, ()) = Request::get("http://a:1").body(()).unwrap().into_parts();
    assert_eq!(
        encode_request_head(&parts, RequestFraming::Length(0)),
        "GET / HTTP/1.1\r\n\r\n"
    );
}

#[test]
fn the_heads_end_is_found_across_splits() {
    let text = b"HTTP/1.1 200 OK\r\na: b\r\n\r\n";
    for count in 1..=text.len() {
        assert!(has_blank_line(text, count), "{count}");
        assert!(
            !has_blank_line(&text[..text.len() - 1], count.min(text.len() - 1)),
            "{count}"
        );
    }
    assert!(has_blank_line(b"HTTP/1.1 200 OK\n\n", 1));
}

#[test]
fn ambiguous_chunks_of_a_request_body_are_rejected() {
    let read = |chunks: &str, piece: usize| {
        let mut body = BodyDecoder::chunked_strict();
        let mut data = BytesMut::new();
        for bytes in chunks.as_bytes().chunks(piece) {
            body.decode(bytes, &mut data)?;
        }
        Ok::<_, Http1ParseError>((body.is_complete(), data))
    };
    let valid = "2;a=\"b\"\r\n\n\r\r\nA\r\n0123456789\r\n0\r\ncontent-length: 7\r\n\r\n";
    for piece in 1..valid.len() {
        assert_eq!(
            read(valid, piece),
            Ok((true, BytesMut::from("\n\r0123456789"))),
            "{piece}"
        );
    }
    for chunks in [
        "2\n",
        "2 \r\n",
        "0x2\r\n",
        "+2\r\n",
        "\r\n",
        "10000000000000000\r\n",
        "2;a\n",
        "2;a\rb\r\n",
        "2\r\n{}x\r\n",
        "2\r\n{}\n",
        "0\r\nx: a\n",
    ] {
        for piece in 1..=chunks.len() {
            assert_eq!(
                read(chunks, piece),
                Err(Http1ParseError::InvalidChunks),
                "{chunks:?} {piece}"
            );
        }
    }
}
