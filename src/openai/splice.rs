//! How a request is made to ask for usage: the fewest bytes are put in or replaced, and the rest
//! stays as its client wrote it.

use bytes::{Bytes, BytesMut};
use std::ops::Range;

/// One edit of a request body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Splice {
    /// The bytes that are replaced; an empty range is a place to insert.
    at: Range<usize>,
    with: &'static str,
}

/// Where `stream_options` stand in a body, as far as an edit needs to know. Positions are byte
/// offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamOptions {
    /// Nowhere.
    Absent,
    /// A `null` ends here.
    Null(usize),
    /// An object whose first member would stand here, without `include_usage`.
    Object(usize),
    /// An object whose `include_usage` is a `false` or a `null` that ends here.
    Excluded { end: usize, len: usize },
    /// Something that is to be left alone: usage is asked for, or the server will refuse it.
    LeaveAlone,
}

// === impl Splice ===

impl Splice {
    /// The edit that makes a body ask for usage, or `None` if it is to be left alone.
    pub(super) fn of(body: &[u8], options: StreamOptions) -> Option<Self> {
        let first_member = |at: usize| body.get(at..).map(<[u8]>::trim_ascii_start);
        let is_empty = |at: usize| first_member(at).is_some_and(|rest| rest.starts_with(b"}"));
        Some(match options {
            StreamOptions::Absent => {
                let brace = body.iter().position(|byte| *byte == b'{')?;
                let with = r#""stream_options":{"include_usage":true},"#;
                Self { at: brace + 1..brace + 1, with }
            }
            StreamOptions::Null(end) => {
                Self { at: end - "null".len()..end, with: r#"{"include_usage":true}"# }
            }
            StreamOptions::Object(at) if is_empty(at) => {
                Self { at: at..at, with: r#""include_usage":true"# }
            }
            StreamOptions::Object(at) => Self { at: at..at, with: r#""include_usage":true,"# },
            StreamOptions::Excluded { end, len } => Self { at: end - len..end, with: "true" },
            StreamOptions::LeaveAlone => return None,
        })
    }

    /// The body with the edit.
    pub fn apply(&self, body: &[u8]) -> Bytes {
        let mut edited = BytesMut::with_capacity(body.len() + self.with.len());
        edited.extend_from_slice(&body[..self.at.start]);
        edited.extend_from_slice(self.with.as_bytes());
        edited.extend_from_slice(&body[self.at.end..]);
        edited.freeze()
    }
}

#[cfg(test)]
mod tests {
    use crate::openai::request::Peek;
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    fn edited(body: &str) -> Option<String> {
        let splice = Peek::of(body.as_bytes()).unwrap().usage_splice?;
        Some(String::from_utf8(splice.apply(body.as_bytes()).to_vec()).unwrap())
    }

    #[test]
    fn the_fewest_bytes_are_put_in_or_replaced() {
        for (body, expected) in [
            (
                r#" { "stream": true}"#,
                r#" {"stream_options":{"include_usage":true}, "stream": true}"#,
            ),
            (
                r#"{"stream":true,"stream_options":null}"#,
                r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
            ),
            (
                r#"{"stream":true,"stream_options":{ }}"#,
                r#"{"stream":true,"stream_options":{"include_usage":true }}"#,
            ),
            (
                r#"{"stream_options":{"x":{}},"stream":true}"#,
                r#"{"stream_options":{"include_usage":true,"x":{}},"stream":true}"#,
            ),
            (
                r#"{"stream_options":{"include_usage":false},"stream":true}"#,
                r#"{"stream_options":{"include_usage":true},"stream":true}"#,
            ),
            (
                r#"{"stream_options":{"include_usage":null,"y":1},"stream":true}"#,
                r#"{"stream_options":{"include_usage":true,"y":1},"stream":true}"#,
            ),
        ] {
            assert_eq!(edited(body).as_deref(), Some(expected));
        }
    }

    #[test]
    fn what_asks_already_or_will_be_refused_is_left_alone() {
        for body in [
            "{}",
            r#"{"stream":false}"#,
            r#"{"stream":"true"}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":"yes"}}"#,
            r#"{"stream":true,"stream_options":"none"}"#,
            r#"{"stream":true,"stream_options":[]}"#,
            // Without include_usage it does nothing; with it, every event would change.
            r#"{"stream":true,"stream_options":{"continuous_usage_stats":true}}"#,
        ] {
            assert_eq!(edited(body), None, "{body}");
        }
    }

    fn members(text: &str) -> Map<String, Value> {
        serde_json::from_str(text).unwrap()
    }

    proptest! {
        #[test]
        fn only_include_usage_differs_in_the_edited_body(
            options in prop_oneof![
                Just(json!(null)), Just(json!({})), Just(json!({"include_usage": false})),
                Just(json!({"a": [1, "{"]})), Just(json!({"a": "}", "include_usage": null})),
            ],
            has_options in any::<bool>(),
            text in "[ -~\u{e9}\u{4e16}]{0,30}",
            is_pretty in any::<bool>(),
        ) {
            let mut body = Map::new();
            body.insert("messages".into(), json!([{"role": "user", "content": text}]));
            if has_options {
                body.insert("stream_options".into(), options);
            }
            body.insert("stream".into(), json!(true));
            body.insert("z".into(), json!({"stream_options": 1, "stream": text}));
            let text = if is_pretty {
                serde_json::to_string_pretty(&body).unwrap()
            } else {
                serde_json::to_string(&body).unwrap()
            };
            let edited = edited(&text).unwrap();
            let mut expected = body.clone();
            let options = expected.entry("stream_options").or_insert(Value::Null);
            if options.is_null() {
                *options = json!({});
            }
            options["include_usage"] = json!(true);
            prop_assert_eq!(members(&edited), expected);
            prop_assert_eq!(edited.matches("\"stream_options\"").count(), 2);
            prop_assert!(edited.len() <= text.len() + 42);
        }
    }
}
