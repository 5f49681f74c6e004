//! The errors of request bodies. The gateway rejects some bodies that a backend would accept, so each message
//! names the cause for the author of the client.

use serde::de::IgnoredAny;

/// Why the gateway cannot read the fields of a body. All causes are faults of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestBodyError {
    /// The body is empty or has only whitespace.
    #[error("the request body is empty; send a JSON object")]
    Empty,
    /// The body begins with a byte order mark, or is UTF-16 or UTF-32. Only some servers accept such JSON.
    #[error("the request body is not UTF-8 JSON: it {0}")]
    UnsupportedEncoding(&'static str),
    /// The body is not valid JSON.
    #[error("the request body is not JSON: line {line}, column {column}")]
    NotJson {
        /// Line of the error, counted from 1.
        line: usize,
        /// Column of the error in bytes, counted from 1.
        column: usize,
    },
    /// The body has `NaN` or `Infinity`, which Python's JSON parser accepts although JSON does not
    /// define them.
    #[error(
        "the request body is not JSON: line {line}, column {column}: `NaN` and `Infinity` are not \
         JSON numbers"
    )]
    NotFinite {
        /// Line of the error, counted from 1.
        line: usize,
        /// Column of the error in bytes, counted from 1.
        column: usize,
    },
    /// The body is JSON, but not an object.
    #[error("the request body is not a JSON object")]
    NotObject,
    /// The body is not a form, or it is a form that servers may parse in different ways.
    #[error("the request body is not a form that all servers parse alike: {0}")]
    Form(&'static str),
    /// A field occurs twice. Some servers use the first one, others the last one.
    #[error("the field `{0}` occurs twice in the request body; send it once")]
    DuplicateField(&'static str),
    /// A field that must be a string has another type.
    #[error("the field `{0}` of the request body must be a string")]
    WrongType(&'static str),
    /// A string is not valid Unicode, for example because it has one half of a surrogate pair.
    #[error("the field `{0}` of the request body is not valid Unicode text")]
    InvalidUnicode(&'static str),
}

impl RequestBodyError {
    /// The error of a body that is not a JSON object. Python's `json.loads` accepts a byte order
    /// mark, UTF-16, UTF-32, `NaN` and `Infinity`; the gateway does not.
    pub(super) fn from_invalid_json(body: &[u8]) -> Self {
        match body.trim_ascii() {
            [] => return Self::Empty,
            [0xef, 0xbb, 0xbf, ..] => {
                return Self::UnsupportedEncoding(
                    "starts with a byte order mark; send it without one",
                );
            }
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, ..] | [_, 0, ..] => {
                return Self::UnsupportedEncoding("is UTF-16 or UTF-32; send UTF-8");
            }
            _ => {}
        }
        let Err(error) = serde_json::from_slice::<IgnoredAny>(body) else {
            return Self::NotObject;
        };
        let line = error.line();
        let column = error.column();
        let text = body
            .split(|byte| *byte == b'\n')
            .nth(line.saturating_sub(1));
        let at_error = text.and_then(|text| text.get(column.saturating_sub(1)..));
        let at_error = at_error.unwrap_or_default();
        let is_constant = at_error.starts_with(b"NaN") || at_error.starts_with(b"Infinity");
        if is_constant {
            Self::NotFinite { line, column }
        } else {
            Self::NotJson { line, column }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RequestBodyError;
    use crate::openai::request_fields::RequestFields;

    fn message(body: &[u8]) -> String {
        RequestFields::parse(body).unwrap_err().to_string()
    }

    #[test]
    fn other_encodings_than_utf_8_are_rejected() {
        let body = r#"{"model":"a"}"#;
        let marked = format!("\u{feff}{body}");
        let with_mark = message(marked.as_bytes());
        assert!(with_mark.ends_with("it starts with a byte order mark; send it without one"));
        for text in [body, &marked] {
            let utf16 = |bytes: fn(u16) -> [u8; 2]| -> Vec<u8> {
                text.encode_utf16().flat_map(bytes).collect()
            };
            let utf32 = |bytes: fn(u32) -> [u8; 4]| -> Vec<u8> {
                text.chars().flat_map(|char| bytes(char.into())).collect()
            };
            for encoded in [
                utf16(u16::to_le_bytes),
                utf16(u16::to_be_bytes),
                utf32(u32::to_le_bytes),
                utf32(u32::to_be_bytes),
            ] {
                let message = message(&encoded);
                assert!(
                    message.ends_with("it is UTF-16 or UTF-32; send UTF-8"),
                    "{message}"
                );
            }
        }
    }

    #[test]
    fn errors_have_the_field_or_the_position() {
        use RequestBodyError::{DuplicateField, Empty, InvalidUnicode, NotObject, WrongType};
        let not_json = |line, column| RequestBodyError::NotJson { line, column };
        let not_finite = |line, column| RequestBodyError::NotFinite { line, column };
        for (body, error) in [
            (&b""[..], Empty),
            (b" \r\n", Empty),
            (b"[]", NotObject),
            (b"\"text\"", NotObject),
            (b"12", NotObject),
            (b"null", NotObject),
            (b"not json", not_json(1, 2)),
            (b"{\"model\":\"a\"", not_json(1, 12)),
            (b"{\"a\":}", not_json(1, 6)),
            (b"{}\n {}", not_json(2, 2)),
            (b"{} // no", not_json(1, 4)),
            (b"{\"a\":NaN}", not_finite(1, 6)),
            (b"{\n \"a\": Infinity}", not_finite(2, 7)),
            (b"{\"a\":-Infinity}", not_finite(1, 7)),
            (br#"{"model":"a","model":"b"}"#, DuplicateField("model")),
            (
                br#"{"stream":false,"str\u0065am":true}"#,
                DuplicateField("stream"),
            ),
            (br#"{"model":{"a":1}}"#, WrongType("model")),
            // Python's JSON parser accepts each of these as a string that is not empty.
            (br#"{"model":"\ud800"}"#, InvalidUnicode("model")),
            (br#"{"model":"a\udc00"}"#, InvalidUnicode("model")),
            (br#"{"model":"\ud800\u0041"}"#, InvalidUnicode("model")),
            (b"{\"model\":\"\xed\xa0\x80\"}", InvalidUnicode("model")),
        ] {
            assert_eq!(
                RequestFields::parse(body),
                Err(error),
                "{}",
                body.escape_ascii()
            );
        }
        assert!(message(b"{\"a\":NaN}").ends_with("`NaN` and `Infinity` are not JSON numbers"));
    }
}
