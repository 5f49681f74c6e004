//! How answers are read, rule by rule. `tests/suite/answers.rs` compares all of it with hyper.

use super::{Body, Unsound, encode, has_blank_line, head};
use bytes::{Buf, BytesMut};
use http::{HeaderMap, Method, Request};

const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

/// The body, and whether it is over, of a response that comes in pieces of so many bytes.
fn read(text: &str, piece: usize) -> Result<(String, bool), Unsound> {
    let (mut bytes, mut data) = (BytesMut::new(), BytesMut::new());
    let mut body: Option<Body> = None;
    for piece in text.as_bytes().chunks(piece) {
        bytes.extend_from_slice(piece);
        if body.is_none()
            && let Some(head) = head(&Method::POST, &bytes)?
        {
            bytes.advance(head.length);
            body = Some(head.body);
        }
        if let Some(body) = &mut body {
            let count = body.read(&bytes, &mut data)?;
            bytes.advance(count);
        }
    }
    let is_over = body.is_some_and(|body| body.is_over());
    Ok((String::from_utf8(data.to_vec()).unwrap(), is_over))
}

#[test]
fn a_body_is_the_same_however_its_bytes_are_cut() {
    let length = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello".to_owned();
    let interim = format!("HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n{length}");
    let chunks = format!("{CHUNKED}2;a=\"b\"\r\nhe\r\n003 \r\nllo\r\n0\r\nx: y\r\n\r\n");
    let close = "HTTP/1.1 200 OK\r\n\r\nhello".to_owned();
    for (text, is_over) in [(length, true), (interim, true), (chunks, true), (close, false)] {
        for piece in 1..text.len() {
            assert_eq!(read(&text, piece), Ok(("hello".into(), is_over)), "{text:?} by {piece}");
        }
    }
}

#[test]
fn trailers_come_behind_the_last_chunk() {
    let read = |lines: &str| {
        let mut body = Body::chunked();
        for byte in format!("0\r\n{lines}\r\n").as_bytes() {
            body.read(&[*byte], &mut BytesMut::new()).unwrap();
        }
        assert!(body.is_over());
        (body.has_trailers(), body.take_trailers())
    };
    assert_eq!(read(""), (false, None));
    let map = HeaderMap::from_iter([(http::header::ETAG, "a".parse().unwrap())]);
    assert_eq!(read("etag: a\r\n"), (true, Some(map)));
}

#[test]
fn what_stands_behind_a_body_is_none_of_it() {
    for framing in
        ["content-length: 2\r\n\r\nhi", "transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"]
    {
        let text = format!("HTTP/1.1 200 OK\r\n{framing}");
        assert_eq!(
            read(&format!("{text}HTTP/1.1 200 OK\r\n"), usize::MAX),
            Ok(("hi".into(), true))
        );
    }
}

#[test]
fn a_length_that_can_be_read_in_two_ways_is_unsound() {
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
        let error = head(&Method::POST, text.as_bytes()).unwrap_err();
        assert!(matches!(error, Unsound::Length | Unsound::Head), "{headers:?}: {error:?}");
    }
    let old = b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    assert_eq!(head(&Method::POST, old).unwrap_err(), Unsound::Length);
}

#[test]
fn chunks_that_are_none_break_the_body() {
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
        assert_eq!(read(&format!("{CHUNKED}{chunks}"), 3), Err(Unsound::Chunks), "{chunks:?}");
    }
    let endless = format!("{CHUNKED}1;{}", "x".repeat(20_000));
    assert_eq!(read(&endless, 1_000), Err(Unsound::Chunks));
}

#[test]
fn answers_without_a_body_have_none_whatever_their_headers_say() {
    let of = |method: Method, status: &str| {
        let text = format!("HTTP/1.1 {status}\r\ncontent-length: 7\r\n\r\n");
        head(&method, text.as_bytes()).unwrap().unwrap().body
    };
    assert_eq!(of(Method::HEAD, "200 OK"), Body::empty());
    assert_eq!(of(Method::GET, "204 No Content"), Body::empty());
    assert_eq!(of(Method::GET, "304 Not Modified"), Body::empty());
    assert_eq!(of(Method::GET, "200 OK"), Body::Length(7));
}

#[test]
fn a_connection_is_kept_if_both_sides_know_where_the_answer_ends() {
    let is_kept = |text: &str| head(&Method::GET, text.as_bytes()).unwrap().unwrap().is_kept;
    let length = "content-length: 0\r\n";
    assert!(is_kept(&format!("HTTP/1.1 200 OK\r\n{length}\r\n")));
    assert!(!is_kept(&format!("HTTP/1.1 200 OK\r\n{length}connection: x, Close\r\n\r\n")));
    assert!(!is_kept("HTTP/1.1 200 OK\r\n\r\n"));
    assert!(!is_kept(&format!("HTTP/1.0 200 OK\r\n{length}\r\n")));
    assert!(is_kept(&format!("HTTP/1.0 200 OK\r\n{length}connection: keep-alive\r\n\r\n")));
}

#[test]
fn a_request_says_how_long_its_body_is_once() {
    let request = Request::post("http://a:1/v1/x?y=z")
        .header("content-length", "77")
        .header("transfer-encoding", "chunked")
        .header("host", "a:1");
    let (parts, ()) = request.body(()).unwrap().into_parts();
    let text = "POST /v1/x?y=z HTTP/1.1\r\nhost: a:1\r\ncontent-length: 3\r\n\r\n";
    assert_eq!(encode(&parts, 3), text);
    let (parts, ()) = Request::get("http://a:1").body(()).unwrap().into_parts();
    assert_eq!(encode(&parts, 0), "GET / HTTP/1.1\r\n\r\n");
}

#[test]
fn the_end_of_a_head_is_seen_however_it_is_cut() {
    let text = b"HTTP/1.1 200 OK\r\na: b\r\n\r\n";
    for count in 1..=text.len() {
        assert!(has_blank_line(text, count), "{count}");
        assert!(!has_blank_line(&text[..text.len() - 1], count.min(text.len() - 1)), "{count}");
    }
    assert!(has_blank_line(b"HTTP/1.1 200 OK\n\n", 1));
}

#[test]
fn chunks_of_a_client_that_could_be_read_in_two_ways_are_unsound() {
    let read = |chunks: &str, piece: usize| {
        let (mut body, mut data) = (Body::strictly_chunked(), BytesMut::new());
        for bytes in chunks.as_bytes().chunks(piece) {
            body.read(bytes, &mut data)?;
        }
        Ok::<_, Unsound>((body.is_over(), data))
    };
    let sound = "2;a=\"b\"\r\n\n\r\r\nA\r\n0123456789\r\n0\r\ncontent-length: 7\r\n\r\n";
    for piece in 1..sound.len() {
        assert_eq!(read(sound, piece), Ok((true, BytesMut::from("\n\r0123456789"))), "{piece}");
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
            assert_eq!(read(chunks, piece), Err(Unsound::Chunks), "{chunks:?} {piece}");
        }
    }
}
