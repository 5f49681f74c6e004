//! Parsing of backend response heads, and the framing of response bodies.

use super::body_decoder::BodyDecoder;
use super::fields::{Http1ParseError, is_keep_alive, parse_digits, to_header_map};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Version};
use httparse::Status;
use memchr::memmem;
use std::mem::MaybeUninit;

/// A parsed response head, with the framing of the body.
#[derive(Debug)]
pub struct ResponseHead {
    /// Status and headers, without interim responses.
    pub response: Response<()>,
    /// Decoder of the body, which has not read any byte of the body yet.
    pub body: BodyDecoder,
    /// Whether another request may follow on the connection.
    pub is_keep_alive: bool,
    /// Length of the head in bytes, including interim (1xx) responses before the final response.
    pub length: usize,
}

const MAX_RESPONSE_HEADERS: usize = 256;

/// Whether the last `count` bytes of `bytes` contain the end of a blank line, which ends a head.
pub fn has_blank_line(bytes: &[u8], count: usize) -> bool {
    let tail = &bytes[bytes.len().saturating_sub(count + 2)..];
    memmem::find(tail, b"\n\r\n").is_some() || memmem::find(tail, b"\n\n").is_some()
}

/// Parses the head of the response to a request with this method. `None`: the head is incomplete. `is_upgrade`:
/// whether the request asked for another protocol. A response with status 101 is valid only in this case.
pub fn parse_response_head(
    method: &Method,
    is_upgrade: bool,
    bytes: &[u8],
) -> Result<Option<ResponseHead>, Http1ParseError> {
    let mut start = 0;
    loop {
        let mut header_slots = [const { MaybeUninit::uninit() }; MAX_RESPONSE_HEADERS];
        let mut parsed = httparse::Response::new(&mut []);
        let result = httparse::ParserConfig::default().parse_response_with_uninit_headers(
            &mut parsed,
            &bytes[start..],
            &mut header_slots,
        );
        let Status::Complete(length) = result.map_err(|_| Http1ParseError::InvalidHead)? else {
            return Ok(None);
        };
        start += length;
        let status = StatusCode::from_u16(parsed.code.unwrap_or(0))
            .map_err(|_| Http1ParseError::InvalidHead)?;
        match status {
            StatusCode::SWITCHING_PROTOCOLS if is_upgrade => {
                let head = finish_response_head(method, status, &parsed, start)?;
                let body = BodyDecoder::UntilClose;
                return Ok(Some(ResponseHead {
                    body,
                    is_keep_alive: false,
                    ..head
                }));
            }
            // A backend must not switch protocols if the request did not ask for it.
            StatusCode::SWITCHING_PROTOCOLS => return Err(Http1ParseError::InvalidHead),
            status if status.is_informational() => {}
            status => return finish_response_head(method, status, &parsed, start).map(Some),
        }
    }
}

/// Maximum number of headers that the gateway adds to most responses.
const ADDED_HEADERS: usize = 4;

/// The head of a final (not 1xx) response that httparse parsed.
fn finish_response_head(
    method: &Method,
    status: StatusCode,
    parsed: &httparse::Response<'_, '_>,
    length: usize,
) -> Result<ResponseHead, Http1ParseError> {
    let is_http10 = parsed.version == Some(0);
    let mut headers = to_header_map(parsed.headers, ADDED_HEADERS, HeaderValue::from_bytes)
        .ok_or(Http1ParseError::InvalidHead)?;
    let has_body = *method != Method::HEAD
        && !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let body = response_body_framing(&mut headers, is_http10)?;
    let is_keep_alive = is_keep_alive(&headers, is_http10);
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.version_mut() = if is_http10 {
        Version::HTTP_10
    } else {
        Version::HTTP_11
    };
    *response.headers_mut() = headers;
    let body = if has_body { body } else { BodyDecoder::empty() };
    Ok(ResponseHead {
        response,
        is_keep_alive: is_keep_alive && body != BodyDecoder::UntilClose,
        body,
        length,
    })
}

/// The framing of a response body (RFC 9112, section 6.3). Removes `content-length` from the
/// headers of a chunked response.
fn response_body_framing(
    headers: &mut HeaderMap,
    is_http10: bool,
) -> Result<BodyDecoder, Http1ParseError> {
    if headers.contains_key(TRANSFER_ENCODING) {
        let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
        let coding = codings.next();
        let others = codings.next();
        let is_chunked =
            coding.is_some_and(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"));
        if is_http10 || !is_chunked || others.is_some() {
            return Err(Http1ParseError::InvalidBodyLength);
        }
        headers.remove(CONTENT_LENGTH);
        return Ok(BodyDecoder::chunked());
    }
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(length) = lengths.next() else {
        return Ok(BodyDecoder::UntilClose);
    };
    if lengths.any(|other| other != length) {
        return Err(Http1ParseError::InvalidBodyLength);
    }
    parse_digits(length.as_bytes(), 10)
        .map(BodyDecoder::Length)
        .ok_or(Http1ParseError::InvalidBodyLength)
}
