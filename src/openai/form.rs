//! Peeks at a `multipart/form-data` request, which is how audio comes: the model and whether a
//! stream is wanted are fields of the form.

use super::control::{self, Used};
use super::request::{Peek, PeekError};
use super::splice::Slot;
use bytes::Bytes;
use futures_util::stream;
use memchr::memmem;
use multer::Multipart;
use std::convert::Infallible;
use std::ops::Range;

/// Longest value that is read, in bytes.
const MAX_VALUE: u64 = 256;

/// Peeks at a whole form. What is no form, or not one that can be read, says nothing.
pub async fn peek(content_type: &str, body: &Bytes) -> Result<Peek, PeekError> {
    let mut peek = Peek::default();
    let Ok(boundary) = multer::parse_boundary(content_type) else { return Ok(peek) };
    let mut values = Values::of(body, &boundary);
    let limits =
        multer::SizeLimit::new().for_field("model", MAX_VALUE).for_field("stream", MAX_VALUE);
    let whole = stream::iter([Ok::<_, Infallible>(body.clone())]);
    let constraints = multer::Constraints::new().size_limit(limits);
    let mut form = Multipart::with_constraints(whole, boundary, constraints);
    while let Ok(Some(field)) = form.next_field().await {
        let at = values.next();
        if field.name() == Some("model") {
            if peek.model_slot.is_some() {
                return Err(PeekError::Duplicate("model"));
            }
            let value = field.bytes().await.unwrap_or_default();
            // Both readings of the form must agree, or its bytes may not be touched.
            let at = at.filter(|at| body[at.clone()] == value);
            let text = std::str::from_utf8(&value).ok().zip(at);
            let (model, at) = text.ok_or(PeekError::WrongType("model"))?;
            (peek.model, peek.model_slot) = (Some(model.into()), Some(Slot::Form(at)));
        } else if field.name() == Some("stream") {
            let Ok(value) = field.text().await else { continue };
            peek.stream = value.eq_ignore_ascii_case("true") || value == "1";
        } else if let Some(control) = field.name().and_then(control::of_form) {
            peek.controls.push(Used { control, text: None });
        }
    }
    Ok(peek)
}

/// Where the values of a form stand in its body, in order: the form is read for its structure a
/// second time, because its reader tells no positions.
struct Values<'a> {
    body: &'a [u8],
    /// Behind the boundary before the next part.
    at: usize,
    /// As it stands behind a value.
    boundary: memmem::Finder<'static>,
}

impl<'a> Values<'a> {
    fn of(body: &'a [u8], boundary: &str) -> Self {
        let opening = format!("--{boundary}");
        let at = memmem::find(body, opening.as_bytes()).map_or(body.len(), |at| at + opening.len());
        let boundary = memmem::Finder::new(&format!("\r\n{opening}")).into_owned();
        Self { body, at, boundary }
    }
}

impl Iterator for Values<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        const BLANK_LINE: &[u8] = b"\r\n\r\n";
        let start = self.at + memmem::find(&self.body[self.at..], BLANK_LINE)? + BLANK_LINE.len();
        let end = start + self.boundary.find(&self.body[start..])?;
        self.at = end + self.boundary.needle().len();
        Some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::Splice;
    use futures_util::FutureExt;
    use proptest::prelude::*;

    fn peeked(body: &[u8]) -> Result<Peek, PeekError> {
        let content_type = "multipart/form-data; boundary=B";
        peek(content_type, &Bytes::copy_from_slice(body)).now_or_never().unwrap()
    }

    fn part(head: &str, value: &[u8]) -> Vec<u8> {
        let head = format!("--B\r\nContent-Disposition: form-data; {head}\r\n\r\n");
        [head.as_bytes(), value, b"\r\n"].concat()
    }

    fn model(value: &[u8]) -> Vec<u8> {
        part("name=\"model\"", value)
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
    fn what_is_no_form_says_nothing() {
        for body in ["", "--B", "no form", "--B\r\n\r\n--B--", "--C\r\n\r\nx"] {
            assert_eq!(peeked(body.as_bytes()), Ok(Peek::default()), "{body:?}");
        }
    }

    #[test]
    fn a_model_that_cannot_be_read_or_stands_twice_is_refused() {
        for value in [&b"\xff\xfe"[..], "x".repeat(300).as_bytes()] {
            let body = [&model(value)[..], b"--B--\r\n"].concat();
            assert_eq!(peeked(&body), Err(PeekError::WrongType("model")));
        }
        let body = [&model(b"a")[..], &model(b"a"), b"--B--\r\n"].concat();
        assert_eq!(peeked(&body), Err(PeekError::Duplicate("model")));
    }

    proptest! {
        #[test]
        fn a_renamed_model_changes_no_byte_around_it(
            preamble in "([a-z\r\n-]{0,8}\r\n)?",
            padding in "[ \t]{0,3}",
            before in proptest::collection::vec(any::<u8>(), 0..60),
            old in "[!-~]{0,12}",
            after in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let file = |bytes: &[u8]| part("name=\"file\"; filename=\"model\"", bytes);
            let whole = |name: &[u8]| {
                let model = part("name=\"model\"\r\nX-Note: --B", name);
                let padded = [b"--B", padding.as_bytes(), &model[3..]].concat();
                [preamble.as_bytes(), &file(&before), &padded, &file(&after), b"--B--\r\n"].concat()
            };
            let body = whole(old.as_bytes());
            let peek = peeked(&body).unwrap();
            prop_assert_eq!(peek.model.as_deref(), Some(&*old));
            let renamed = Splice::apply([&peek.model_slot.unwrap().renamed("new/name")], &body);
            prop_assert_eq!(renamed, whole(b"new/name"));
        }
    }
}
