//! Peeks at a `multipart/form-data` request, which is how audio comes: the model and whether a
//! stream is wanted are fields of the form.
//!
//! Servers read forms in different ways: python-multipart takes `NAME="model"` and control characters
//! in a head, multer decodes by the charset of a part, others read a boundary that has only a line
//! feed before it. So the gateway reads only the syntax that common clients write and that all
//! servers read alike, and refuses every other form. No crate offers that, or tells where a value
//! stands, which the gateway must know to rename the model.

use super::control::{self, Used};
use super::peek_error::PeekError;
use super::request::Peek;
use super::splice::Slot;
use memchr::memmem;
use std::ops::Range;

/// Longest boundary: RFC 2046 §5.1.1.
const MAX_BOUNDARY: usize = 70;
/// What text of ASCII characters may say that it is written in.
const ASCII_CHARSETS: [&str; 3] = ["utf-8", "us-ascii", "iso-8859-1"];
const UTF_8: &str = "utf-8";

/// One field of a form.
struct Part<'a> {
    name: &'a [u8],
    is_file: bool,
    /// The value of its `Content-Type`.
    media_type: Option<&'a [u8]>,
    value: &'a [u8],
}

/// Peeks at a whole form.
pub fn peek(content_type: &[u8], body: &[u8]) -> Result<Peek, PeekError> {
    let (mut peek, mut has_stream) = (Peek::default(), false);
    let delimiter = [b"--", boundary(content_type)?].concat();
    for range in parts(body, &delimiter)? {
        let part = Part::of(&body[range.clone()])?;
        match part.name {
            b"model" if peek.model.is_some() => return Err(PeekError::Duplicate("model")),
            b"model" => {
                const WRONG: PeekError = PeekError::Form("`model` must be UTF-8 text, and no file");
                peek.model = Some(part.text().ok_or(WRONG)?.into());
                peek.model_slot = Some(Slot::Form(range.end - part.value.len()..range.end));
            }
            b"stream" if has_stream => return Err(PeekError::Duplicate("stream")),
            b"stream" => {
                has_stream = true;
                let is_yes = |value: &str| value.eq_ignore_ascii_case("true") || value == "1";
                peek.stream = part.text().is_some_and(is_yes);
            }
            name => {
                let control = std::str::from_utf8(name).ok().and_then(control::of_form);
                peek.controls.extend(control.map(|control| Used { control, text: None }));
            }
        }
    }
    Ok(peek)
}

/// The boundary that a `Content-Type` names. The media type is in lower case, as all clients write it:
/// early versions of python-multipart find no form in another.
fn boundary(content_type: &[u8]) -> Result<&[u8], PeekError> {
    const WRONG: PeekError = PeekError::Form(
        "its Content-Type must be `multipart/form-data; boundary=...`, with one boundary",
    );
    let parameters = content_type.strip_prefix(b"multipart/form-data").ok_or(WRONG)?;
    let mut boundary = None;
    for parameter in Parameters(parameters) {
        match parameter.ok_or(WRONG)? {
            (b"boundary", value) if boundary.is_none() => boundary = Some(value),
            // Starlette decodes names and values by it.
            (b"charset", value) if value.eq_ignore_ascii_case(UTF_8.as_bytes()) => {}
            _ => return Err(WRONG),
        }
    }
    let is_fit = |value: &&[u8]| {
        let is_mark = |byte: &u8| b"'()+_,-./:=?".contains(byte);
        (1..=MAX_BOUNDARY).contains(&value.len())
            && value.iter().all(|byte| byte.is_ascii_alphanumeric() || is_mark(byte))
    };
    boundary.filter(is_fit).ok_or(WRONG)
}

/// Where the parts of a form stand, each with its head. The delimiter may stand nowhere else, and
/// nothing else than a line break before the first or behind the last.
fn parts(body: &[u8], delimiter: &[u8]) -> Result<Vec<Range<usize>>, PeekError> {
    const STRAY: PeekError = PeekError::Form("a boundary in it is not alone on its line");
    let finder = memmem::Finder::new(delimiter);
    let mut at = if body.starts_with(b"\r\n") { 2 } else { 0 };
    if !body[at..].starts_with(delimiter) {
        return Err(PeekError::Form("it does not begin with its boundary"));
    }
    let mut parts = Vec::new();
    loop {
        at += delimiter.len();
        match &body[at..] {
            b"--" | b"--\r\n" => return Ok(parts),
            [b'\r', b'\n', ..] => at += 2,
            [] | [b'-'] => return Err(PeekError::Form("its last boundary is missing")),
            _ => return Err(STRAY),
        }
        let next = finder.find(&body[at..]);
        let next = at + next.ok_or(PeekError::Form("its last boundary is missing"))?;
        let part = body[at..next].strip_suffix(b"\r\n").ok_or(STRAY)?;
        parts.push(at..at + part.len());
        at = next;
    }
}

// === impl Part ===

impl<'a> Part<'a> {
    /// Reads the head of a part.
    fn of(part: &'a [u8]) -> Result<Self, PeekError> {
        const WRONG: PeekError = PeekError::Form(
            "each part needs `Content-Disposition: form-data; name=...`, and plain header lines",
        );
        const BLANK_LINE: &[u8] = b"\r\n\r\n";
        let head = memmem::find(part, BLANK_LINE).ok_or(WRONG)?;
        let (mut disposition, mut media_type) = (None, None);
        let mut lines = &part[..head];
        while !lines.is_empty() {
            let end = memmem::find(lines, b"\r\n");
            let (name, value) = header(&lines[..end.unwrap_or(lines.len())]).ok_or(WRONG)?;
            lines = end.map_or(&[], |end| &lines[end + 2..]);
            match &*name.to_ascii_lowercase() {
                b"content-disposition" if disposition.is_none() => {
                    disposition = Some(self::disposition(value).ok_or(WRONG)?);
                }
                b"content-type" if media_type.is_none() => media_type = Some(value),
                b"content-transfer-encoding" if is_as_it_stands(value) => {}
                b"content-disposition" | b"content-type" | b"content-transfer-encoding" => {
                    return Err(WRONG);
                }
                _ => {}
            }
        }
        let (name, is_file) = disposition.ok_or(WRONG)?;
        Ok(Self { name, is_file, media_type, value: &part[head + BLANK_LINE.len()..] })
    }

    /// The value, if all servers read the same text: no file, in UTF-8 without a byte order mark.
    fn text(&self) -> Option<&'a str> {
        let text = std::str::from_utf8(self.value).ok()?;
        let media_type = self.media_type.unwrap_or_default().to_ascii_lowercase();
        let charset = memmem::find(&media_type, b"charset").map(|at| &media_type[at..]);
        let is_fit = charset.is_none_or(|charset| {
            ASCII_CHARSETS.iter().any(|known| {
                let named = [format!("charset={known}"), format!("charset=\"{known}\"")];
                let is_named = named.iter().any(|named| charset == named.as_bytes());
                is_named && (*known == UTF_8 || text.is_ascii())
            })
        });
        (is_fit && !self.is_file && !text.starts_with('\u{feff}')).then_some(text)
    }
}

/// The name and the value of a header line. Control characters are in neither.
fn header(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = memchr::memchr(b':', line)?;
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    let is_fit = |byte: &u8| *byte == b'\t' || !byte.is_ascii_control();
    (token(name) == name.len() && colon > 0 && value.iter().all(is_fit)).then_some((name, value))
}

/// Whether a `Content-Transfer-Encoding` leaves the value as it is.
fn is_as_it_stands(encoding: &[u8]) -> bool {
    [&b"7bit"[..], b"8bit", b"binary"].iter().any(|known| encoding.eq_ignore_ascii_case(known))
}

/// The name of a field, and whether it is a file. The name comes first, because multer would take one
/// out of a file's name before it.
fn disposition(value: &[u8]) -> Option<(&[u8], bool)> {
    let mut parameters = Parameters(value.strip_prefix(b"form-data")?);
    let (b"name", name) = parameters.next()?? else { return None };
    let is_fit = |byte: &u8| byte.is_ascii_graphic() && !b"\\;".contains(byte);
    if !name.iter().all(is_fit) {
        return None;
    }
    let mut is_file = false;
    for parameter in parameters {
        let (b"filename" | b"filename*", _) = parameter? else { return None };
        is_file = true;
    }
    Some((name, is_file))
}

/// The parameters behind a value, each a name and a value without quotes. An item is `None` if they
/// cannot be read, or not by all servers alike.
struct Parameters<'a>(&'a [u8]);

impl<'a> Iterator for Parameters<'a> {
    type Item = Option<(&'a [u8], &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = std::mem::take(&mut self.0);
        (!rest.is_empty()).then(|| self.read(rest))
    }
}

impl<'a> Parameters<'a> {
    fn read(&mut self, rest: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let rest = rest.strip_prefix(b";")?.trim_ascii_start();
        let (name, rest) = rest.split_at(token(rest));
        let rest = rest.strip_prefix(b"=")?;
        let (value, rest) = match rest.strip_prefix(b"\"") {
            Some(quoted) => {
                let end = memchr::memchr(b'"', quoted)?;
                // Servers differ on whether a backslash makes the quote a part of the value.
                (!quoted[..end].ends_with(b"\\")).then_some((&quoted[..end], &quoted[end + 1..]))?
            }
            None => Some(rest.split_at(token(rest))).filter(|(value, _)| !value.is_empty())?,
        };
        self.0 = rest;
        Some((name, value))
    }
}

/// How many bytes at the beginning are a token of RFC 9110 §5.6.2.
fn token(text: &[u8]) -> usize {
    let is_mark = |byte: &u8| b"!#$%&'*+-.^_`|~".contains(byte);
    let is_other = |byte: &u8| !byte.is_ascii_alphanumeric() && !is_mark(byte);
    text.iter().position(is_other).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::Splice;
    use proptest::prelude::*;

    const TYPE: &str = "multipart/form-data; boundary=B";

    fn peeked(body: &[u8]) -> Result<Peek, PeekError> {
        peek(TYPE.as_bytes(), body)
    }

    fn part(head: &str, value: &[u8]) -> Vec<u8> {
        let head = format!("--B\r\nContent-Disposition: form-data; {head}\r\n\r\n");
        [head.as_bytes(), value, b"\r\n"].concat()
    }

    fn model(value: &[u8]) -> Vec<u8> {
        part("name=\"model\"", value)
    }

    fn is_refused(body: &[u8]) -> bool {
        matches!(peeked(body), Err(PeekError::Form(_)))
    }

    /// A form of one field with this head.
    fn headed(head: &str) -> Vec<u8> {
        format!("--B\r\n{head}\r\n\r\na\r\n--B--\r\n").into()
    }

    #[test]
    fn model_and_stream_are_found_behind_the_file() {
        let file = part("name=\"file\"; filename=\"a.wav\"", b"name=\"model\"\r\n\r\nno\r\n--A");
        let stream = part("name=\"stream\"", b"true");
        let body = [&file[..], &model(b"whisper"), &stream, b"--B--\r\n"].concat();
        let found = peeked(&body).unwrap();
        assert_eq!((found.model.as_deref(), found.stream), (Some("whisper"), true));
        let Some(Slot::Form(at)) = found.model_slot else { panic!("{found:?}") };
        assert_eq!(&body[at], b"whisper");
    }

    #[test]
    fn the_heads_that_common_clients_write_are_read() {
        for head in [
            // curl and browsers, undici, .NET, aiohttp, Apache HttpClient, OkHttp.
            "Content-Disposition: form-data; name=\"model\"",
            "content-disposition: form-data; name=\"model\"",
            "Content-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name=model",
            "Content-Type: text/plain; charset=\"UTF-8\"\r\nContent-Disposition: form-data; name=\"model\"",
            "Content-Disposition: form-data; name=\"model\"\r\nContent-Type: text/plain; \
             charset=ISO-8859-1\r\nContent-Transfer-Encoding: 8bit",
            "Content-Disposition: form-data; name=\"model\"\r\nContent-Length: 1",
        ] {
            let found = peeked(&headed(head)).map(|peek| peek.model);
            assert_eq!(found, Ok(Some("a".into())), "{head}");
        }
        for name in ["a b;c.wav\"", "\"", "\u{e9}.wav\"; filename*=utf-8''%C3%A9.wav"] {
            let file =
                headed(&format!("Content-Disposition: form-data; name=file; filename=\"{name}"));
            assert_eq!(peeked(&file), Ok(Peek::default()), "{name}");
        }
        for body in ["--B--", "--B--\r\n", "\r\n--B--\r\n"] {
            assert_eq!(peeked(body.as_bytes()), Ok(Peek::default()), "{body:?}");
        }
    }

    #[test]
    fn a_head_that_servers_read_in_different_ways_is_refused() {
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
            assert!(is_refused(&headed(head)), "{head}");
        }
    }

    #[test]
    fn a_body_that_is_not_one_whole_form_is_refused() {
        let whole = [&model(b"a")[..], b"--B--\r\n"].concat();
        for cut in 0..whole.len() - "--\r\n".len() {
            assert!(is_refused(&whole[..cut]), "{cut}");
        }
        for body in [
            &b"no form"[..],
            b"--C\r\n\r\nx",
            b"preamble\r\n--B--",
            b"--B \r\n--B--",
            b"--B\n--B--",
            b"--B--epilogue",
            &[&model(b"a\n--B\r\n")[..], b"--B--"].concat(),
            &[&model(b"a\r\n--BC")[..], b"--B--"].concat(),
            &[&whole[..], &whole].concat(),
        ] {
            assert!(is_refused(body), "{}", body.escape_ascii());
        }
    }

    #[test]
    fn a_content_type_that_names_no_boundary_or_two_is_refused() {
        let body = [&model(b"a")[..], b"--B--\r\n"].concat();
        for fit in [TYPE, "multipart/form-data;boundary=\"B\"; charset=UTF-8"] {
            assert!(peek(fit.as_bytes(), &body).is_ok(), "{fit}");
        }
        for unfit in [
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
            // Early versions of python-multipart read no field of it.
            "Multipart/Form-Data; boundary=B",
        ] {
            let refused = matches!(peek(unfit.as_bytes(), &body), Err(PeekError::Form(_)));
            assert!(refused, "{unfit}");
        }
    }

    #[test]
    fn a_model_that_is_no_plain_text_or_stands_twice_is_refused() {
        for value in [&b"\xff\xfe"[..], "\u{feff}a".as_bytes()] {
            assert!(is_refused(&[&model(value)[..], b"--B--\r\n"].concat()));
        }
        let body = [&model(b"a")[..], &model(b"a"), b"--B--\r\n"].concat();
        assert_eq!(peeked(&body), Err(PeekError::Duplicate("model")));
    }

    proptest! {
        #[test]
        fn a_renamed_model_changes_no_byte_around_it(
            before in proptest::collection::vec(any::<u8>(), 0..60),
            old in "[!-~]{0,12}",
            after in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let file = |bytes: &[u8]| part("name=\"file\"; filename=\"model\"", bytes);
            let whole = |name: &[u8]| {
                let model = part("name=\"model\"\r\nX-Note: -B", name);
                [&file(&before)[..], &model, &file(&after), b"--B--\r\n"].concat()
            };
            let body = whole(old.as_bytes());
            prop_assume!(memmem::find_iter(&body, b"--B").count() == 4);
            let peek = peeked(&body).unwrap();
            prop_assert_eq!(peek.model.as_deref(), Some(&*old));
            let renamed = Splice::apply([&peek.model_slot.unwrap().renamed("new/name")], &body);
            prop_assert_eq!(renamed, whole(b"new/name"));
        }
    }
}
