//! Parsing of client request heads, with a strict interpretation of the body length.
//!
//! Only CRLF ends a line. One `Content-Length` of digits only, or one `Transfer-Encoding: chunked`, states the
//! body length. The parser rejects a head that could be interpreted in two ways, because such heads allow
//! request smuggling.

use super::body_decoder::BodyDecoder;
use super::fields::{Http1ParseError, is_keep_alive, parse_digits, to_header_map};
use crate::headers::has_token;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING};
use http::uri::Uri;
use http::{HeaderMap, HeaderValue, Method, Request, Version};
use httparse::Status;
use memchr::memchr_iter;
use std::mem::MaybeUninit;

/// A parsed request head, with the framing of the body.
#[derive(Debug)]
pub struct RequestHead {
    /// Method, target and headers.
    pub request: Request<()>,
    /// Decoder of the body, which has not read any byte of the body yet.
    pub body: BodyDecoder,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub is_expectant: bool,
    /// Whether another request may follow on the connection.
    pub is_keep_alive: bool,
    /// Length of the head in bytes, including empty lines before the head.
    pub length: usize,
}

/// Limits above which a request head is rejected.
#[derive(Debug, Clone, Copy)]
pub struct HeadLimits {
    /// Maximum length in bytes, including empty lines before the head.
    pub max_bytes: usize,
    /// Maximum number of headers.
    pub max_headers: usize,
}

/// Maximum length of a request target in bytes: the limit of [`Uri`].
const MAX_TARGET_BYTES: usize = u16::MAX as usize - 1;
/// Number of header slots on the stack. If [`HeadLimits::max_headers`] is greater, the slots are on the heap.
const MAX_INLINE_HEADERS: usize = 128;

/// Parses the head of a request. `None`: the head is incomplete. The head is boxed, because several layers move it.
pub fn parse_request_head(
    bytes: &Bytes,
    limits: HeadLimits,
) -> Result<Option<Box<RequestHead>>, Http1ParseError> {
    let mut inline_slots = [const { MaybeUninit::uninit() }; MAX_INLINE_HEADERS];
    let mut allocated_slots = Vec::new();
    let header_slots = if let Some(slots) = inline_slots.get_mut(..limits.max_headers) {
        slots
    } else {
        allocated_slots.resize_with(limits.max_headers, MaybeUninit::uninit);
        &mut allocated_slots[..]
    };
    let mut parsed = httparse::Request::new(&mut []);
    let config = httparse::ParserConfig::default();
    let length = match config.parse_request_with_uninit_headers(&mut parsed, bytes, header_slots) {
        Ok(Status::Complete(length)) if length <= limits.max_bytes => length,
        Ok(Status::Partial) if bytes.len() <= limits.max_bytes => return Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => return Err(Http1ParseError::HeadTooLong),
        Err(_) => return Err(Http1ParseError::InvalidHead),
    };
    if !has_only_crlf_line_endings(&bytes[..length]) {
        return Err(Http1ParseError::InvalidHead);
    }
    let is_http10 = parsed.version == Some(0);
    // Header values are slices of the received bytes, so they are not copied.
    let shared_value = |value: &[u8]| HeaderValue::from_maybe_shared(bytes.slice_ref(value));
    let headers =
        to_header_map(parsed.headers, 0, shared_value).ok_or(Http1ParseError::InvalidHead)?;
    let body = request_body_framing(&headers, is_http10)?;
    let is_keep_alive = is_keep_alive(&headers, is_http10);
    let is_expectant =
        has_token(&headers, &EXPECT, "100-continue") && !is_http10 && !body.is_complete();
    let mut request = Request::new(());
    *request.method_mut() = parse_method(parsed.method)?;
    *request.uri_mut() = parse_target(bytes, parsed.path)?;
    *request.version_mut() = if is_http10 {
        Version::HTTP_10
    } else {
        Version::HTTP_11
    };
    *request.headers_mut() = headers;
    Ok(Some(Box::new(RequestHead {
        request,
        body,
        is_expectant,
        is_keep_alive,
        length,
    })))
}

/// Whether every line ends with CRLF. httparse also accepts a line feed without CR.
fn has_only_crlf_line_endings(head: &[u8]) -> bool {
    memchr_iter(b'\n', head).all(|offset| offset > 0 && head[offset - 1] == b'\r')
}

fn parse_method(name: Option<&str>) -> Result<Method, Http1ParseError> {
    Method::from_bytes(name.unwrap_or_default().as_bytes())
        .map_err(|_| Http1ParseError::InvalidHead)
}

fn parse_target(bytes: &Bytes, target: Option<&str>) -> Result<Uri, Http1ParseError> {
    let target = target.unwrap_or_default();
    if target.len() > MAX_TARGET_BYTES {
        return Err(Http1ParseError::TargetTooLong);
    }
    Uri::from_maybe_shared(bytes.slice_ref(target.as_bytes()))
        .map_err(|_| Http1ParseError::InvalidHead)
}

/// The framing of a request body. The error is [`Http1ParseError::InvalidBodyLength`] if more than
/// one header states the framing.
fn request_body_framing(
    headers: &HeaderMap,
    is_http10: bool,
) -> Result<BodyDecoder, Http1ParseError> {
    let single_value = |name| {
        let mut values = headers.get_all(name).iter();
        let first = values.next();
        if values.next().is_some() {
            Err(Http1ParseError::InvalidBodyLength)
        } else {
            Ok(first)
        }
    };
    match (
        single_value(CONTENT_LENGTH)?,
        single_value(TRANSFER_ENCODING)?,
    ) {
        (None, None) => Ok(BodyDecoder::empty()),
        (Some(length), None) => parse_digits(length.as_bytes(), 10)
            .map(BodyDecoder::Length)
            .ok_or(Http1ParseError::InvalidBodyLength),
        (None, Some(coding))
            if !is_http10 && coding.as_bytes().eq_ignore_ascii_case(b"chunked") =>
        {
            Ok(BodyDecoder::chunked_strict())
        }
        _ => Err(Http1ParseError::InvalidBodyLength),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits = HeadLimits {
        max_bytes: 1 << 20,
        max_headers: 100,
    };

    fn parse(text: &str) -> Result<Option<Box<RequestHead>>, Http1ParseError> {
        parse_request_head(&Bytes::copy_from_slice(text.as_bytes()), LIMITS)
    }

    #[test]
    fn keep_alive_follows_version_and_connection_header() {
        for (head, is_keep_alive) in [
            ("HTTP/1.1\r\n", true),
            ("HTTP/1.1\r\nconnection: x, Close\r\n", false),
            ("HTTP/1.0\r\n", false),
            ("HTTP/1.0\r\nConnection: Keep-Alive\r\n", true),
        ] {
            let parsed = parse(&format!("GET / {head}\r\n")).unwrap().unwrap();
            assert_eq!(parsed.is_keep_alive, is_keep_alive, "{head:?}");
        }
    }

    #[test]
    fn long_targets_and_many_headers_are_different_errors() {
        let head_with_headers =
            |count: usize| format!("GET / HTTP/1.1\r\n{}\r\n", "x: a\r\n".repeat(count));
        assert!(parse(&head_with_headers(100)).unwrap().is_some());
        assert_eq!(
            parse(&head_with_headers(101)).unwrap_err(),
            Http1ParseError::HeadTooLong
        );
        let head = Bytes::from(head_with_headers(1_000));
        assert!(
            parse_request_head(
                &head,
                HeadLimits {
                    max_headers: 1_000,
                    ..LIMITS
                }
            )
            .unwrap()
            .is_some()
        );
        let head_with_long_target =
            format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(MAX_TARGET_BYTES));
        assert_eq!(
            parse(&head_with_long_target).unwrap_err(),
            Http1ParseError::TargetTooLong
        );
    }

    #[test]
    fn too_long_heads_are_rejected_at_any_time() {
        let head = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(MAX_TARGET_BYTES));
        for cut in [LIMITS.max_bytes, MAX_TARGET_BYTES, 1_001] {
            let received = Bytes::from(head[..cut.min(head.len())].to_owned());
            let limits = HeadLimits {
                max_bytes: 1_000,
                ..LIMITS
            };
            let error = parse_request_head(&received, limits).unwrap_err();
            assert_eq!(error, Http1ParseError::HeadTooLong, "{cut}");
        }
    }

    #[test]
    fn only_http_1_1_bodies_wait_for_continue() {
        let is_expectant = |head: &str| {
            let head = format!("P / {head}\r\n\r\n");
            parse(&head).unwrap().unwrap().is_expectant
        };
        let expect = "HTTP/1.1\r\nexpect: 100-continue";
        assert!(is_expectant(&format!("{expect}\r\ncontent-length: 1")));
        assert!(is_expectant(&format!(
            "{expect}\r\ntransfer-encoding: chunked"
        )));
        assert!(is_expectant(
            "HTTP/1.1\r\nexpect: x, 100-continue\r\ncontent-length: 1"
        ));
        assert!(!is_expectant(&format!("{expect}\r\ncontent-length: 0")));
        assert!(!is_expectant(&format!("{expect}d\r\ncontent-length: 1")));
        assert!(!is_expectant(
            "HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 1"
        ));
    }
}
