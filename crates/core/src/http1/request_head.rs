//! The head of a client's request, and what it says of the body. It is read in one way only: CRLF ends
//! a line, and one `Content-Length` of digits or one `Transfer-Encoding: chunked` frames a body.
//! What could be read in two ways is how requests are smuggled past proxies.

use super::body::Body;
use super::{Unsound, fields, is_kept, number};
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING};
use http::uri::Uri;
use http::{HeaderMap, HeaderValue, Method, Request, Version};
use httparse::Status;
use memchr::memchr_iter;
use std::mem::MaybeUninit;

/// The head of a request.
#[derive(Debug)]
pub struct RequestHead {
    /// Method, target and headers.
    pub request: Request<()>,
    /// The body, of which nothing has been read.
    pub body: Body,
    /// The client waits for `100 Continue` before it sends the body.
    pub is_expectant: bool,
    /// Another request may follow on the connection.
    pub is_kept: bool,
    /// How many bytes the head was, with blank lines before it.
    pub length: usize,
}

/// How large a head may be.
#[derive(Debug, Clone, Copy)]
pub struct Most {
    /// Of bytes, with blank lines before it.
    pub bytes: usize,
    /// Of headers.
    pub headers: usize,
}

/// Longest target, in bytes: [`Uri`] takes no longer one.
const LONGEST_TARGET: usize = u16::MAX as usize - 1;
/// So many headers are read without memory of their own.
const FEW: usize = 128;

/// Reads the head of a request. `None`: more of it must come.
pub fn request_head(bytes: &Bytes, most: Most) -> Result<Option<RequestHead>, Unsound> {
    let mut few = [const { MaybeUninit::uninit() }; FEW];
    let mut many = Vec::new();
    let space = if let Some(few) = few.get_mut(..most.headers) {
        few
    } else {
        many.resize_with(most.headers, MaybeUninit::uninit);
        &mut many[..]
    };
    let mut parsed = httparse::Request::new(&mut []);
    let config = httparse::ParserConfig::default();
    let length = match config.parse_request_with_uninit_headers(&mut parsed, bytes, space) {
        Ok(Status::Complete(length)) if length <= most.bytes => length,
        Ok(Status::Partial) if bytes.len() <= most.bytes => return Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => return Err(Unsound::TooLong),
        Err(_) => return Err(Unsound::Head),
    };
    if !ends_lines_with_crlf(&bytes[..length]) {
        return Err(Unsound::Head);
    }
    let is_old = parsed.version == Some(0);
    // Values are parts of what came, and no copies.
    let part = |value: &[u8]| HeaderValue::from_maybe_shared(bytes.slice_ref(value));
    let headers = fields(parsed.headers, part).ok_or(Unsound::Head)?;
    let body = framing(&headers, is_old)?;
    let is_kept = is_kept(&headers, is_old);
    let expects = headers.get(EXPECT).is_some_and(|value| value == "100-continue");
    let is_expectant = expects && !is_old && !body.is_over();
    let mut request = Request::new(());
    *request.method_mut() = method(parsed.method)?;
    *request.uri_mut() = target(bytes, parsed.path)?;
    *request.version_mut() = if is_old { Version::HTTP_10 } else { Version::HTTP_11 };
    *request.headers_mut() = headers;
    Ok(Some(RequestHead { request, body, is_expectant, is_kept, length }))
}

/// httparse takes a line feed alone, too.
fn ends_lines_with_crlf(head: &[u8]) -> bool {
    memchr_iter(b'\n', head).all(|at| at > 0 && head[at - 1] == b'\r')
}

fn method(name: Option<&str>) -> Result<Method, Unsound> {
    Method::from_bytes(name.unwrap_or_default().as_bytes()).map_err(|_| Unsound::Head)
}

fn target(bytes: &Bytes, target: Option<&str>) -> Result<Uri, Unsound> {
    let target = target.unwrap_or_default();
    if target.len() > LONGEST_TARGET {
        return Err(Unsound::Target);
    }
    Uri::from_maybe_shared(bytes.slice_ref(target.as_bytes())).map_err(|_| Unsound::Head)
}

/// A body is framed once, by one header.
fn framing(headers: &HeaderMap, is_old: bool) -> Result<Body, Unsound> {
    let one = |name| {
        let mut values = headers.get_all(name).iter();
        let first = values.next();
        if values.next().is_some() { Err(Unsound::Length) } else { Ok(first) }
    };
    match (one(CONTENT_LENGTH)?, one(TRANSFER_ENCODING)?) {
        (None, None) => Ok(Body::empty()),
        (Some(length), None) => {
            number(length.as_bytes(), 10).map(Body::Length).ok_or(Unsound::Length)
        }
        (None, Some(coding)) if !is_old && coding.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            Ok(Body::strictly_chunked())
        }
        _ => Err(Unsound::Length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Most = Most { bytes: 1 << 20, headers: 100 };

    fn read(text: &str) -> Result<Option<RequestHead>, Unsound> {
        request_head(&Bytes::copy_from_slice(text.as_bytes()), MOST)
    }

    #[test]
    fn a_head_ends_at_its_blank_line_and_says_how_long_its_body_is() {
        for (head, body) in [
            ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", Body::empty()),
            ("\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n", Body::empty()),
            ("P / HTTP/1.1\r\nContent-Length: \t2 \r\n\r\n", Body::Length(2)),
            ("P / HTTP/1.1\r\ncontent-length: 0\r\n\r\n", Body::empty()),
            ("P / HTTP/1.0\r\ncontent-length: 7\r\n\r\n", Body::Length(7)),
            (
                "P / HTTP/1.1\r\nx: content-length: 1\r\nTRANSFER-encoding: Chunked\r\n\r\n",
                Body::strictly_chunked(),
            ),
        ] {
            let found = read(&format!("{head}GET /next")).unwrap().unwrap();
            assert_eq!((found.length, found.body), (head.len(), body), "{head:?}");
            for cut in 0..head.len() {
                assert!(read(&head[..cut]).unwrap().is_none(), "{:?}", &head[..cut]);
            }
        }
    }

    #[test]
    fn a_head_that_could_be_read_in_two_ways_is_unsound() {
        for rest in [
            "content-length: 2\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: chunked\r\ncontent-length: 2\r\n",
            "content-length: 2\r\ncontent-length: 2\r\n",
            "content-length: 2, 2\r\n",
            "content-length: +2\r\n",
            "content-length:\r\n",
            "content-length: 18446744073709551616\r\n",
            "transfer-encoding: gzip, chunked\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: \x0bchunked\r\n",
            "transfer-encoding : chunked\r\n",
            "content-length: 2\r\n x\r\n",
            "x: a\n",
            "x: a\rb\r\n",
            "x: a\0b\r\n",
        ] {
            let text = format!("P / HTTP/1.1\r\nhost: a\r\n{rest}\r\n");
            assert!(read(&text).is_err(), "{rest:?}");
        }
        for head in [
            "P / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n",
            "P / HTTP/1.1\nhost: a\r\n\r\n",
            "P / HTTP/1.1\r\nhost: a\n\n",
            "P / HTTP/1.1\r\nhost: a\r\n\n",
            "P  / HTTP/1.1\r\nhost: a\r\n\r\n",
            "P / HTTP/2.0\r\nhost: a\r\n\r\n",
            "P /\r\n\r\n",
            "\n\r\nP / HTTP/1.1\r\n\r\n",
        ] {
            assert!(read(head).is_err(), "{head:?}");
        }
    }

    #[test]
    fn a_connection_is_kept_as_the_version_and_the_client_say() {
        for (head, is_kept) in [
            ("HTTP/1.1\r\n", true),
            ("HTTP/1.1\r\nconnection: x, Close\r\n", false),
            ("HTTP/1.0\r\n", false),
            ("HTTP/1.0\r\nConnection: Keep-Alive\r\n", true),
        ] {
            let found = read(&format!("GET / {head}\r\n")).unwrap().unwrap();
            assert_eq!(found.is_kept, is_kept, "{head:?}");
        }
    }

    #[test]
    fn too_many_headers_and_too_long_a_target_are_told_apart() {
        let most = |count: usize| format!("GET / HTTP/1.1\r\n{}\r\n", "x: a\r\n".repeat(count));
        assert!(read(&most(100)).unwrap().is_some());
        assert_eq!(read(&most(101)).unwrap_err(), Unsound::TooLong);
        let head = Bytes::from(most(1_000));
        assert!(request_head(&head, Most { headers: 1_000, ..MOST }).unwrap().is_some());
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(LONGEST_TARGET));
        assert_eq!(read(&long).unwrap_err(), Unsound::Target);
    }

    #[test]
    fn a_head_that_is_too_long_is_so_however_it_is_cut() {
        let head = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(LONGEST_TARGET));
        for cut in [MOST.bytes, LONGEST_TARGET, 1_001] {
            let came = Bytes::from(head[..cut.min(head.len())].to_owned());
            let error = request_head(&came, Most { bytes: 1_000, ..MOST }).unwrap_err();
            assert_eq!(error, Unsound::TooLong, "{cut}");
        }
    }

    #[test]
    fn only_a_body_that_is_to_come_is_waited_for() {
        let head = |rest| format!("P / {rest}expect: 100-continue\r\n\r\n");
        let is_expectant = |rest| read(&head(rest)).unwrap().unwrap().is_expectant;
        assert!(is_expectant("HTTP/1.1\r\ncontent-length: 1\r\n"));
        assert!(!is_expectant("HTTP/1.1\r\ncontent-length: 0\r\n"));
        assert!(!is_expectant("HTTP/1.0\r\ncontent-length: 1\r\n"));
    }
}
