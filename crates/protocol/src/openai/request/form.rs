//! Reads the fields that the gateway needs from a `multipart/form-data` body, the format of audio requests: the
//! model, `stream`, and engine-control fields.
//!
//! Servers parse forms differently. For example, python-multipart accepts `NAME="model"` and control characters
//! in a part head, and multer decodes values by the charset of a part. So the gateway accepts only the syntax
//! that common clients write and that all servers parse alike, and rejects every other form. No crate offers
//! such a strict parser, or reports the byte range of a value, which the gateway needs to rename the model.

use super::engine_control::{self, UsedControl};
use super::request_body_error::RequestBodyError;
use super::request_fields::RequestFields;
use super::splice::ModelSpan;
use memchr::memmem;
use std::ops::Range;

/// Longest boundary, in bytes: RFC 2046 §5.1.1.
const MAX_BOUNDARY_BYTES: usize = 70;
const ASCII_CHARSETS: [&str; 3] = ["utf-8", "us-ascii", "iso-8859-1"];
const UTF_8: &str = "utf-8";

struct FormPart<'a> {
    name: &'a [u8],
    is_file: bool,
    media_type: Option<&'a [u8]>,
    value: &'a [u8],
}

/// Reads the fields of a complete form. Fails if the form has other syntax than the accepted one, or if `model`
/// or `stream` occurs twice.
pub fn peek(content_type: &[u8], body: &[u8]) -> Result<RequestFields, RequestBodyError> {
    let mut fields = RequestFields::default();
    let mut has_stream = false;
    let delimiter = [b"--", parse_boundary(content_type)?].concat();
    for range in split_parts(body, &delimiter)? {
        let part = FormPart::parse(&body[range.clone()])?;
        match part.name {
            b"model" if fields.model.is_some() => {
                return Err(RequestBodyError::DuplicateField("model"));
            }
            b"model" => {
                const INVALID: RequestBodyError =
                    RequestBodyError::Form("`model` must be UTF-8 text, not a file");
                fields.model = Some(part.text().ok_or(INVALID)?.into());
                fields.model_slot = Some(ModelSpan::Form(range.end - part.value.len()..range.end));
            }
            b"stream" if has_stream => return Err(RequestBodyError::DuplicateField("stream")),
            b"stream" => {
                has_stream = true;
                let is_true = |value: &str| value.eq_ignore_ascii_case("true") || value == "1";
                fields.stream = part.text().is_some_and(is_true);
            }
            name => {
                let mut controls = engine_control::FIELDS.iter();
                let control = controls.find(|control| control.name.as_bytes() == name);
                fields.controls.extend(control.map(|control| UsedControl {
                    control,
                    text: None,
                }));
            }
        }
    }
    Ok(fields)
}

/// The boundary in a `Content-Type`. The media type must be in lower case, as all clients write it:
/// early versions of python-multipart read no fields with any other spelling.
fn parse_boundary(content_type: &[u8]) -> Result<&[u8], RequestBodyError> {
    const INVALID: RequestBodyError = RequestBodyError::Form(
        "the Content-Type must be `multipart/form-data; boundary=...`, with one boundary",
    );
    let parameters = content_type
        .strip_prefix(b"multipart/form-data")
        .ok_or(INVALID)?;
    let mut boundary = None;
    for parameter in HeaderParameters(parameters) {
        match parameter.ok_or(INVALID)? {
            (b"boundary", value) if boundary.is_none() => boundary = Some(value),
            // Starlette decodes names and values by this charset, so only UTF-8 is accepted.
            (b"charset", value) if value.eq_ignore_ascii_case(UTF_8.as_bytes()) => {}
            _ => return Err(INVALID),
        }
    }
    let is_valid = |value: &&[u8]| {
        let is_mark = |byte: &u8| b"'()+_,-./:=?".contains(byte);
        (1..=MAX_BOUNDARY_BYTES).contains(&value.len())
            && value
                .iter()
                .all(|byte| byte.is_ascii_alphanumeric() || is_mark(byte))
    };
    boundary.filter(is_valid).ok_or(INVALID)
}

/// The byte ranges of the parts of a form, each with its head. The delimiter must not occur inside a
/// part. Before the first and after the last delimiter only a line break is allowed.
fn split_parts(body: &[u8], delimiter: &[u8]) -> Result<Vec<Range<usize>>, RequestBodyError> {
    const STRAY_BOUNDARY: RequestBodyError =
        RequestBodyError::Form("a boundary is not alone on its line");
    const MISSING_BOUNDARY: RequestBodyError =
        RequestBodyError::Form("the last boundary is missing");
    let finder = memmem::Finder::new(delimiter);
    let mut position = if body.starts_with(b"\r\n") { 2 } else { 0 };
    if !body[position..].starts_with(delimiter) {
        return Err(RequestBodyError::Form(
            "the body does not begin with the boundary",
        ));
    }
    let mut parts = Vec::new();
    loop {
        position += delimiter.len();
        match &body[position..] {
            b"--" | b"--\r\n" => return Ok(parts),
            [b'\r', b'\n', ..] => position += 2,
            [] | [b'-'] => return Err(MISSING_BOUNDARY),
            _ => return Err(STRAY_BOUNDARY),
        }
        let next = position + finder.find(&body[position..]).ok_or(MISSING_BOUNDARY)?;
        let part = body[position..next]
            .strip_suffix(b"\r\n")
            .ok_or(STRAY_BOUNDARY)?;
        parts.push(position..position + part.len());
        position = next;
    }
}

impl<'a> FormPart<'a> {
    fn parse(part: &'a [u8]) -> Result<Self, RequestBodyError> {
        const INVALID: RequestBodyError = RequestBodyError::Form(
            "each part needs `Content-Disposition: form-data; name=...`, and plain header lines",
        );
        const BLANK_LINE: &[u8] = b"\r\n\r\n";
        let head = memmem::find(part, BLANK_LINE).ok_or(INVALID)?;
        let mut disposition = None;
        let mut media_type = None;
        let mut lines = &part[..head];
        while !lines.is_empty() {
            let end = memmem::find(lines, b"\r\n");
            let (name, value) =
                parse_header(&lines[..end.unwrap_or(lines.len())]).ok_or(INVALID)?;
            lines = end.map_or(&[], |end| &lines[end + 2..]);
            match &*name.to_ascii_lowercase() {
                b"content-disposition" if disposition.is_none() => {
                    disposition = Some(parse_disposition(value).ok_or(INVALID)?);
                }
                b"content-type" if media_type.is_none() => media_type = Some(value),
                b"content-transfer-encoding" if is_identity_encoding(value) => {}
                b"content-disposition" | b"content-type" | b"content-transfer-encoding" => {
                    return Err(INVALID);
                }
                _ => {}
            }
        }
        let (name, is_file) = disposition.ok_or(INVALID)?;
        Ok(Self {
            name,
            is_file,
            media_type,
            value: &part[head + BLANK_LINE.len()..],
        })
    }

    /// The value as text. `None`: servers may decode the value differently. The reason is that the part is a
    /// file, is not UTF-8, declares another charset, or begins with a byte order mark.
    fn text(&self) -> Option<&'a str> {
        let text = std::str::from_utf8(self.value).ok()?;
        let media_type = self.media_type.unwrap_or_default().to_ascii_lowercase();
        let charset = memmem::find(&media_type, b"charset").map(|at| &media_type[at..]);
        let is_unambiguous = charset.is_none_or(|charset| {
            ASCII_CHARSETS.iter().any(|name| {
                let spellings = [format!("charset={name}"), format!("charset=\"{name}\"")];
                let is_declared = spellings
                    .iter()
                    .any(|spelling| charset == spelling.as_bytes());
                is_declared && (*name == UTF_8 || text.is_ascii())
            })
        });
        (is_unambiguous && !self.is_file && !text.starts_with('\u{feff}')).then_some(text)
    }
}

/// The name and the value of a header line. `None`: the line has no valid name, or its value has
/// control characters.
fn parse_header(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = memchr::memchr(b':', line)?;
    let name = &line[..colon];
    let value = line[colon + 1..].trim_ascii();
    let is_allowed = |byte: &u8| *byte == b'\t' || !byte.is_ascii_control();
    let is_valid = token_length(name) == name.len() && colon > 0 && value.iter().all(is_allowed);
    is_valid.then_some((name, value))
}

/// Whether a `Content-Transfer-Encoding` leaves the value unchanged.
fn is_identity_encoding(encoding: &[u8]) -> bool {
    [&b"7bit"[..], b"8bit", b"binary"]
        .iter()
        .any(|identity| encoding.eq_ignore_ascii_case(identity))
}

/// The field name in a `Content-Disposition`, and whether the part is a file. The name must be the first
/// parameter: after a file name, multer could read a `name=` inside the file name. `None`: the value is invalid
/// or ambiguous.
fn parse_disposition(value: &[u8]) -> Option<(&[u8], bool)> {
    let mut parameters = HeaderParameters(value.strip_prefix(b"form-data")?);
    let (b"name", name) = parameters.next()?? else {
        return None;
    };
    let is_allowed = |byte: &u8| byte.is_ascii_graphic() && !b"\\;".contains(byte);
    if !name.iter().all(is_allowed) {
        return None;
    }
    let mut is_file = false;
    for parameter in parameters {
        let (b"filename" | b"filename*", _) = parameter? else {
            return None;
        };
        is_file = true;
    }
    Some((name, is_file))
}

/// Iterates over the parameters of a header value. An item has the name of a parameter and its value without
/// quotes. An item is `None` if the parameter is invalid or servers parse it differently.
struct HeaderParameters<'a>(&'a [u8]);

impl<'a> Iterator for HeaderParameters<'a> {
    type Item = Option<(&'a [u8], &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        let text = std::mem::take(&mut self.0);
        (!text.is_empty()).then(|| self.parse_next(text))
    }
}

impl<'a> HeaderParameters<'a> {
    fn parse_next(&mut self, text: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let rest = text.strip_prefix(b";")?.trim_ascii_start();
        let (name, rest) = rest.split_at(token_length(rest));
        let rest = rest.strip_prefix(b"=")?;
        let (value, rest) = match rest.strip_prefix(b"\"") {
            Some(quoted) => {
                let end = memchr::memchr(b'"', quoted)?;
                // Some servers read a backslash before a quote as an escape, and others do not.
                (!quoted[..end].ends_with(b"\\")).then_some((&quoted[..end], &quoted[end + 1..]))?
            }
            None => {
                Some(rest.split_at(token_length(rest))).filter(|(value, _)| !value.is_empty())?
            }
        };
        self.0 = rest;
        Some((name, value))
    }
}

/// Length in bytes of the token at the beginning of `text`, as defined in RFC 9110 §5.6.2.
fn token_length(text: &[u8]) -> usize {
    let is_mark = |byte: &u8| b"!#$%&'*+-.^_`|~".contains(byte);
    let is_other = |byte: &u8| !byte.is_ascii_alphanumeric() && !is_mark(byte);
    text.iter().position(is_other).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::Splice;
    use proptest::prelude::*;

    const CONTENT_TYPE: &str = "multipart/form-data; boundary=B";

    fn parse_form(body: &[u8]) -> Result<RequestFields, RequestBodyError> {
        peek(CONTENT_TYPE.as_bytes(), body)
    }

    fn encode_part(head: &str, value: &[u8]) -> Vec<u8> {
        let head = format!("--B\r\nContent-Disposition: form-data; {head}\r\n\r\n");
        [head.as_bytes(), value, b"\r\n"].concat()
    }

    fn model_part(value: &[u8]) -> Vec<u8> {
        encode_part("name=\"model\"", value)
    }

    fn is_rejected(body: &[u8]) -> bool {
        matches!(parse_form(body), Err(RequestBodyError::Form(_)))
    }

    fn form_with(head: &str) -> Vec<u8> {
        format!("--B\r\n{head}\r\n\r\na\r\n--B--\r\n").into()
    }

    #[test]
    fn heads_of_common_clients_are_parsed() {
        for head in [
            // Heads as curl, browsers, undici, .NET, aiohttp, Apache HttpClient and OkHttp write them.
            "Content-Disposition: form-data; name=\"model\"",
            "content-disposition: form-data; name=\"model\"",
            "Content-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name=model",
            "Content-Type: text/plain; charset=\"UTF-8\"\r\nContent-Disposition: form-data; name=\"model\"",
            "Content-Disposition: form-data; name=\"model\"\r\nContent-Type: text/plain; \
             charset=ISO-8859-1\r\nContent-Transfer-Encoding: 8bit",
            "Content-Disposition: form-data; name=\"model\"\r\nContent-Length: 1",
        ] {
            let model = parse_form(&form_with(head)).map(|fields| fields.model);
            assert_eq!(model, Ok(Some("a".into())), "{head}");
        }
        for name in [
            "a b;c.wav\"",
            "\"",
            "\u{e9}.wav\"; filename*=utf-8''%C3%A9.wav",
        ] {
            let file = form_with(&format!(
                "Content-Disposition: form-data; name=file; filename=\"{name}"
            ));
            assert_eq!(parse_form(&file), Ok(RequestFields::default()), "{name}");
        }
        for body in ["--B--", "--B--\r\n", "\r\n--B--\r\n"] {
            assert_eq!(
                parse_form(body.as_bytes()),
                Ok(RequestFields::default()),
                "{body:?}"
            );
        }
    }

    #[test]
    fn an_ambiguous_part_head_is_rejected() {
        for head in [
            "Content-Disposition: form-data; NAME=\"model\"",
            "Content-Disposition: form-data; name*=utf-8''model",
            "Content-Disposition: form-data; name=\"x\"; name=\"model\"",
            "Content-Disposition: form-data; name = \"model\"",
            "Content-Disposition: form-data; name=\"mod\\el\"",
            "Content-Disposition: form-data; filename=\"a\\\"; name=\"model\"; x=\"\"",
            "Content-Disposition: form-data; filename=\"; name=model \"; name=\"file\"",
            "Content-Disposition: form-data; name=\"model\"; filename=\"a\"",
            "Content-Disposition: form-data; name=\"model",
            "Content-Disposition: form-data",
            "Content-Disposition: attachment; name=\"model\"",
            "Content-Disposition: form-data; name=\"model\"\r\nContent-Disposition: form-data; name=x",
            "Content-Disposition: form-data;\r\n name=\"model\"",
            "Content-Disposition: form-data; name=\"model\"\r\nX: \u{1}",
            "Content-Disposition : form-data; name=\"model\"",
            "Content-Disposition: form-data; name=\"model\"\r\nContent-Transfer-Encoding: base64",
            "Content-Disposition: form-data; name=\"model\"\r\nContent-Type: text/plain; charset=utf-16",
            "X: y",
            "",
        ] {
            assert!(is_rejected(&form_with(head)), "{head}");
        }
    }

    #[test]
    fn an_incomplete_or_malformed_form_is_rejected() {
        let form = [&model_part(b"a")[..], b"--B--\r\n"].concat();
        for cut in 0..form.len() - "--\r\n".len() {
            assert!(is_rejected(&form[..cut]), "{cut}");
        }
        for body in [
            &b"no form"[..],
            b"--C\r\n\r\nx",
            b"preamble\r\n--B--",
            b"--B \r\n--B--",
            b"--B\n--B--",
            b"--B--epilogue",
            &[&model_part(b"a\n--B\r\n")[..], b"--B--"].concat(),
            &[&model_part(b"a\r\n--BC")[..], b"--B--"].concat(),
            &[&form[..], &form].concat(),
        ] {
            assert!(is_rejected(body), "{}", body.escape_ascii());
        }
    }

    #[test]
    fn the_content_type_needs_exactly_one_boundary() {
        let body = [&model_part(b"a")[..], b"--B--\r\n"].concat();
        for valid in [
            CONTENT_TYPE,
            "multipart/form-data;boundary=\"B\"; charset=UTF-8",
        ] {
            assert!(peek(valid.as_bytes(), &body).is_ok(), "{valid}");
        }
        for invalid in [
            "",
            "application/json",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "multipart/form-data; boundary=\"\"",
            "multipart/form-data; boundary=B; boundary=C",
            "multipart/form-data; boundary=B; charset=utf-7",
            "multipart/form-data; boundary*=utf-8''B",
            "multipart/form-data, boundary=B",
            "multipart/mixed; boundary=B",
            // Early versions of python-multipart read no fields with this spelling.
            "Multipart/Form-Data; boundary=B",
        ] {
            let result = peek(invalid.as_bytes(), &body);
            assert!(
                matches!(result, Err(RequestBodyError::Form(_))),
                "{invalid}"
            );
        }
    }

    #[test]
    fn invalid_or_duplicate_models_are_rejected() {
        for value in [&b"\xff\xfe"[..], "\u{feff}a".as_bytes()] {
            assert!(is_rejected(
                &[&model_part(value)[..], b"--B--\r\n"].concat()
            ));
        }
        let body = [&model_part(b"a")[..], &model_part(b"a"), b"--B--\r\n"].concat();
        assert_eq!(
            parse_form(&body),
            Err(RequestBodyError::DuplicateField("model"))
        );
    }

    /// File contents that can contain text like a part of the form.
    fn file_bytes() -> impl Strategy<Value = Vec<u8>> {
        let part = Just(b"name=\"model\"\r\n\r\nno\r\n--A".to_vec());
        prop_oneof![1 => part, 9 => proptest::collection::vec(any::<u8>(), 0..60)]
    }

    proptest! {
        #[test]
        fn renaming_the_model_changes_no_other_byte(
            before in file_bytes(),
            old in "[!-~]{0,12}",
            after in file_bytes(),
            stream: bool,
        ) {
            let file = |bytes: &[u8]| encode_part("name=\"file\"; filename=\"model\"", bytes);
            let form_with_model = |name: &[u8]| {
                let model = encode_part("name=\"model\"\r\nX-Note: -B", name);
                let stream = encode_part("name=\"stream\"", stream.to_string().as_bytes());
                [&file(&before)[..], &model, &file(&after), &stream, b"--B--\r\n"].concat()
            };
            let body = form_with_model(old.as_bytes());
            prop_assume!(memmem::find_iter(&body, b"--B").count() == 5);
            let fields = parse_form(&body).unwrap();
            prop_assert_eq!((fields.model.as_deref(), fields.stream), (Some(&*old), stream));
            let renamed = Splice::apply([&fields.model_slot.unwrap().renamed("new/name")], &body);
            prop_assert_eq!(renamed, form_with_model(b"new/name"));
        }
    }
}
