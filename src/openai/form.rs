//! Peeks at a `multipart/form-data` request, which is how audio comes: the model and whether a
//! stream is wanted are fields of the form.

use super::request::Peek;
use bytes::Bytes;
use futures_util::stream;
use multer::Multipart;
use std::convert::Infallible;

/// Longest value that is read, in bytes.
const MAX_VALUE: u64 = 256;

/// Peeks at a whole form. What is no form, or not one that can be read, says nothing.
pub async fn peek(content_type: &str, body: &Bytes) -> Peek {
    let mut peek = Peek::default();
    let Ok(boundary) = multer::parse_boundary(content_type) else { return peek };
    let limits =
        multer::SizeLimit::new().for_field("model", MAX_VALUE).for_field("stream", MAX_VALUE);
    let whole = stream::iter([Ok::<_, Infallible>(body.clone())]);
    let constraints = multer::Constraints::new().size_limit(limits);
    let mut form = Multipart::with_constraints(whole, boundary, constraints);
    while let Ok(Some(field)) = form.next_field().await {
        let is_model = field.name() == Some("model");
        if is_model || field.name() == Some("stream") {
            let Ok(value) = field.text().await else { continue };
            if is_model {
                peek.model = Some(value.into());
            } else {
                peek.stream = value.eq_ignore_ascii_case("true") || value == "1";
            }
        }
    }
    peek
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn peeked(body: &str) -> Peek {
        let content_type = "multipart/form-data; boundary=B";
        peek(content_type, &Bytes::copy_from_slice(body.as_bytes())).now_or_never().unwrap()
    }

    #[test]
    fn model_and_stream_are_found_behind_the_file() {
        let body = "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n\
            name=\"model\"\r\n--B\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n\
            --B\r\nContent-Disposition: form-data; name=\"stream\"\r\n\r\ntrue\r\n--B--\r\n";
        let found = peeked(body);
        assert_eq!((found.model.as_deref(), found.stream), (Some("whisper"), true));
    }

    #[test]
    fn what_is_no_form_says_nothing() {
        for body in ["", "--B", "no form", "--B\r\n\r\n--B--", "--C\r\n\r\nx"] {
            assert_eq!(peeked(body), Peek::default(), "{body:?}");
        }
    }
}
