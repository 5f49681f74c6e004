//! The head of an answer, and what it says of the body.

use super::body::Body;
use super::{Unsound, fields, is_kept, number};
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Version};
use httparse::Status;
use memchr::memmem;
use std::mem::MaybeUninit;

/// The head of an answer.
#[derive(Debug)]
pub struct Head {
    /// Status and headers.
    pub response: Response<()>,
    /// The body, of which nothing has been read.
    pub body: Body,
    /// Another request may follow on the connection.
    pub is_kept: bool,
    /// How many bytes the head was, with the interim answers before it.
    pub length: usize,
}

/// Most header fields.
const MOST_FIELDS: usize = 256;

/// Whether a blank line, which ends a head, ends among the last `count` of these bytes.
pub fn has_blank_line(bytes: &[u8], count: usize) -> bool {
    let new = &bytes[bytes.len().saturating_sub(count + 2)..];
    memmem::find(new, b"\n\r\n").is_some() || memmem::find(new, b"\n\n").is_some()
}

/// Reads the head of the answer to a request with this method. `None`: more of it must come.
pub fn head(method: &Method, bytes: &[u8]) -> Result<Option<Head>, Unsound> {
    let mut begin = 0;
    loop {
        let mut space = [const { MaybeUninit::uninit() }; MOST_FIELDS];
        let mut parsed = httparse::Response::new(&mut []);
        let result = httparse::ParserConfig::default().parse_response_with_uninit_headers(
            &mut parsed,
            &bytes[begin..],
            &mut space,
        );
        let Status::Complete(length) = result.map_err(|_| Unsound::Head)? else {
            return Ok(None);
        };
        begin += length;
        let status = StatusCode::from_u16(parsed.code.unwrap_or(0)).map_err(|_| Unsound::Head)?;
        match status {
            // Nobody has asked for it.
            StatusCode::SWITCHING_PROTOCOLS => return Err(Unsound::Head),
            status if status.is_informational() => {}
            status => return complete(method, status, &parsed, begin).map(Some),
        }
    }
}

fn complete(
    method: &Method,
    status: StatusCode,
    parsed: &httparse::Response<'_, '_>,
    length: usize,
) -> Result<Head, Unsound> {
    let is_old = parsed.version == Some(0);
    let mut headers = fields(parsed.headers, HeaderValue::from_bytes).ok_or(Unsound::Head)?;
    let has_body = *method != Method::HEAD
        && !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let body = framing(&mut headers, is_old)?;
    let is_kept = is_kept(&headers, is_old);
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.version_mut() = if is_old { Version::HTTP_10 } else { Version::HTTP_11 };
    *response.headers_mut() = headers;
    let body = if has_body { body } else { Body::empty() };
    Ok(Head { response, is_kept: is_kept && body != Body::UntilClose, body, length })
}

/// How a body is framed: RFC 9112, section 6.3.
fn framing(headers: &mut HeaderMap, is_old: bool) -> Result<Body, Unsound> {
    if headers.contains_key(TRANSFER_ENCODING) {
        let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
        let (coding, others) = (codings.next(), codings.next());
        let is_chunked =
            coding.is_some_and(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"));
        if is_old || !is_chunked || others.is_some() {
            return Err(Unsound::Length);
        }
        headers.remove(CONTENT_LENGTH);
        return Ok(Body::chunked());
    }
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(length) = lengths.next() else { return Ok(Body::UntilClose) };
    if lengths.any(|other| other != length) {
        return Err(Unsound::Length);
    }
    number(length.as_bytes(), 10).map(Body::Length).ok_or(Unsound::Length)
}
