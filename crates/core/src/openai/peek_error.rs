//! Why the body of a request is refused. The message names the cause, so that a client which sends
//! what its server would have read can be changed.

use serde::de::IgnoredAny;

/// Why a body cannot be peeked at. The client is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PeekError {
    /// There is no body.
    #[error("the request body is empty; a JSON object is needed")]
    Empty,
    /// JSON in an encoding that some servers read and others do not.
    #[error("the request body is not UTF-8 JSON: it {0}")]
    Encoding(&'static str),
    /// Not JSON.
    #[error("the request body is not JSON: line {line}, column {column}")]
    NotJson {
        /// Counted from 1.
        line: usize,
        /// Counted from 1, in bytes.
        column: usize,
    },
    /// A number that Python's parser reads, but that JSON does not have.
    #[error(
        "the request body is not JSON: line {line}, column {column}: `NaN` and `Infinity` are not \
         JSON numbers"
    )]
    NotFinite {
        /// Counted from 1.
        line: usize,
        /// Counted from 1, in bytes.
        column: usize,
    },
    /// JSON, but not an object.
    #[error("the request body is not a JSON object")]
    NotObject,
    /// Not a form, or one that servers read in different ways.
    #[error("the request body is not a form that all servers read alike: {0}")]
    Form(&'static str),
    /// A field stands twice: servers differ on which one counts.
    #[error("the field `{0}` stands twice in the request body")]
    Duplicate(&'static str),
    /// A field has a value that it cannot have.
    #[error("the field `{0}` of the request body has a wrong type")]
    WrongType(&'static str),
    /// A text that is not Unicode, such as half of a surrogate pair.
    #[error("the field `{0}` of the request body is not valid Unicode text")]
    NotText(&'static str),
}

impl PeekError {
    /// The reason why this body is not read as a JSON object. Python's `json.loads` reads a byte
    /// order mark, UTF-16, UTF-32, `NaN` and `Infinity`; the gateway does not.
    pub(super) fn of_json(body: &[u8]) -> Self {
        match body.trim_ascii() {
            [] => return Self::Empty,
            [0xef, 0xbb, 0xbf, ..] => {
                return Self::Encoding("starts with a byte order mark; send it without one");
            }
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, ..] | [_, 0, ..] => {
                return Self::Encoding("is UTF-16 or UTF-32; send UTF-8");
            }
            _ => {}
        }
        let Err(error) = serde_json::from_slice::<IgnoredAny>(body) else { return Self::NotObject };
        let (line, column) = (error.line(), error.column());
        let text = body.split(|byte| *byte == b'\n').nth(line.saturating_sub(1));
        let rest = text.and_then(|text| text.get(column.saturating_sub(1)..)).unwrap_or_default();
        let is_number = rest.starts_with(b"NaN") || rest.starts_with(b"Infinity");
        if is_number { Self::NotFinite { line, column } } else { Self::NotJson { line, column } }
    }
}

#[cfg(test)]
mod tests {
    use super::PeekError;
    use crate::openai::request::Peek;

    fn message(body: &[u8]) -> String {
        Peek::of(body).unwrap_err().to_string()
    }

    fn utf16(text: &str, bytes: fn(u16) -> [u8; 2]) -> Vec<u8> {
        text.encode_utf16().flat_map(bytes).collect()
    }

    fn utf32(text: &str, bytes: fn(u32) -> [u8; 4]) -> Vec<u8> {
        text.chars().flat_map(|char| bytes(char.into())).collect()
    }

    #[test]
    fn a_body_in_another_encoding_than_utf_8_is_refused_and_the_encoding_named() {
        let body = r#"{"model":"a"}"#;
        let with_mark = message(format!("\u{feff}{body}").as_bytes());
        assert!(with_mark.ends_with("it starts with a byte order mark; send it without one"));
        let marked = format!("\u{feff}{body}");
        for text in [body, &marked] {
            for encoded in [
                utf16(text, u16::to_le_bytes),
                utf16(text, u16::to_be_bytes),
                utf32(text, u32::to_le_bytes),
                utf32(text, u32::to_be_bytes),
            ] {
                let message = message(&encoded);
                assert!(message.ends_with("it is UTF-16 or UTF-32; send UTF-8"), "{message}");
            }
        }
    }

    #[test]
    fn a_number_that_only_python_reads_is_named_with_its_place() {
        for (body, line, column) in
            [("{\"a\":NaN}", 1, 6), ("{\n \"a\": Infinity}", 2, 7), ("{\"a\":-Infinity}", 1, 7)]
        {
            let error = Peek::of(body.as_bytes());
            assert_eq!(error, Err(PeekError::NotFinite { line, column }), "{body}");
        }
        assert!(message(b"{\"a\":NaN}").ends_with("`NaN` and `Infinity` are not JSON numbers"));
    }

    #[test]
    fn a_body_that_is_no_json_object_is_refused_with_the_place_of_the_mistake() {
        for body in ["", " \r\n"] {
            assert_eq!(Peek::of(body.as_bytes()), Err(PeekError::Empty));
        }
        for body in ["[]", "\"text\"", "12", "null"] {
            assert_eq!(Peek::of(body.as_bytes()), Err(PeekError::NotObject), "{body}");
        }
        for (body, line, column) in [
            ("not json", 1, 2),
            ("{\"model\":\"a\"", 1, 12),
            ("{\"a\":}", 1, 6),
            ("{}\n {}", 2, 2),
            ("{} // no", 1, 4),
        ] {
            let error = Peek::of(body.as_bytes());
            assert_eq!(error, Err(PeekError::NotJson { line, column }), "{body}");
        }
    }
}
