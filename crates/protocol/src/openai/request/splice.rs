//! Edits of request bodies by byte ranges. An edit requests usage, renames the model, or removes or sets a
//! field.
//!
//! An edit replaces or inserts as few bytes as possible. All other bytes stay as the client sent them.

use crate::json::members::visit_members;
use bytes::{Bytes, BytesMut};
use std::borrow::Cow;
use std::ops::Range;

/// One edit (splice) of a request body: a byte range and its replacement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Splice {
    /// Byte range of the body that the replacement replaces. If the range is empty, the replacement is inserted
    /// there.
    range: Range<usize>,
    replacement: Cow<'static, str>,
}

/// Position of the model name in a body, in byte offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSpan {
    /// A JSON string, with its quotes.
    Json(Range<usize>),
    /// The bytes of a form value.
    Form(Range<usize>),
}

/// The state and position of `stream_options` in a body, as an edit needs it. Positions are byte
/// offsets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum StreamOptions {
    #[default]
    Absent,
    /// The value is a `null` that ends at this offset.
    Null(usize),
    /// The value is an object without `include_usage`. A new first member can be inserted at this offset.
    Object(usize),
    /// The value is an object whose `include_usage` is `false` or `null`. The literal has `len` bytes and ends
    /// at `end`.
    Excluded { end: usize, len: usize },
    /// The value is an object without `continuous_usage_stats`. Its `include_usage` is a `true` that ends at
    /// this offset.
    Included(usize),
    /// The gateway does not edit the body: it has `continuous_usage_stats`, or the backend will reject the
    /// value of `stream_options`.
    Unchanged,
}

/// The text that requests continuous usage (token counts in every event). The text is inserted after the member
/// `include_usage`, so it begins with a comma.
const CONTINUOUS_USAGE: &str = r#","continuous_usage_stats":true"#;

impl Splice {
    /// The edit that sets `stream_options.include_usage`. `None` if the body must not be edited.
    pub(super) fn include_usage(body: &[u8], options: StreamOptions) -> Option<Self> {
        let first_member = |at: usize| body.get(at..).map(<[u8]>::trim_ascii_start);
        let is_empty = |at: usize| first_member(at).is_some_and(|rest| rest.starts_with(b"}"));
        let (range, replacement) = match options {
            StreamOptions::Absent => {
                let brace = body.iter().position(|byte| *byte == b'{')?;
                (
                    brace + 1..brace + 1,
                    r#""stream_options":{"include_usage":true},"#,
                )
            }
            StreamOptions::Null(end) => (end - "null".len()..end, r#"{"include_usage":true}"#),
            StreamOptions::Object(at) if is_empty(at) => (at..at, r#""include_usage":true"#),
            StreamOptions::Object(at) => (at..at, r#""include_usage":true,"#),
            StreamOptions::Excluded { end, len } => (end - len..end, "true"),
            StreamOptions::Included(_) | StreamOptions::Unchanged => return None,
        };
        Some(Self {
            range,
            replacement: replacement.into(),
        })
    }

    /// The edit that requests continuous usage in a request that has `include_usage`. `None`: the body must not
    /// be edited in this way.
    pub(super) fn continuous_usage(options: StreamOptions) -> Option<Self> {
        let StreamOptions::Included(end) = options else {
            return None;
        };
        Some(Self {
            range: end..end,
            replacement: CONTINUOUS_USAGE.into(),
        })
    }

    /// The edit that replaces a byte range.
    pub fn replace(range: Range<usize>, replacement: impl Into<Cow<'static, str>>) -> Self {
        Self {
            range,
            replacement: replacement.into(),
        }
    }

    /// The edit that inserts a member at the beginning of a JSON object. The object must not have
    /// the member yet. `member` is a quoted name, a colon and a value. `None`: the body has no `{`.
    pub fn insert(body: &[u8], member: &str) -> Option<Self> {
        let at = body.iter().position(|byte| *byte == b'{')? + 1;
        let is_empty = body[at..].trim_ascii_start().starts_with(b"}");
        let comma = if is_empty { "" } else { "," };
        Some(Self {
            range: at..at,
            replacement: format!("{member}{comma}").into(),
        })
    }

    /// The edit that sets the member `name` of a JSON object to a JSON value. Engines read the last of several
    /// members with one name, so the edit sets the last one. `None`: the body is not a JSON object.
    pub fn set(body: &[u8], name: &str, value: &str) -> Option<Self> {
        let mut range = None;
        visit_members(body, |member| {
            if body[member.name] == *name.as_bytes() {
                range = Some(member.value);
            }
        })?;
        match range {
            Some(range) => Some(Self::replace(range, value.to_owned())),
            None => Self::insert(body, &format!(r#""{name}":{value}"#)),
        }
    }

    /// Extends this edit, which requests usage, so that it also requests continuous usage.
    pub fn with_continuous_usage(&self) -> Self {
        const INCLUDED: &str = "true";
        let mut replacement = self.replacement.clone().into_owned();
        if let Some(start) = replacement.find(INCLUDED) {
            replacement.insert_str(start + INCLUDED.len(), CONTINUOUS_USAGE);
        }
        Self {
            range: self.range.clone(),
            replacement: replacement.into(),
        }
    }

    /// A copy of the body with the edits applied. The edits must be made for this body and must not
    /// overlap.
    pub fn apply<'a>(edits: impl IntoIterator<Item = &'a Self>, body: &[u8]) -> Bytes {
        let mut edits: Vec<&Self> = edits.into_iter().collect();
        edits.sort_unstable_by_key(|edit| edit.range.start);
        let added: usize = edits.iter().map(|edit| edit.replacement.len()).sum();
        let mut edited = BytesMut::with_capacity(body.len() + added);
        let mut copied_until = 0;
        for Self { range, replacement } in edits {
            edited.extend_from_slice(&body[copied_until..range.start]);
            edited.extend_from_slice(replacement.as_bytes());
            copied_until = range.end;
        }
        edited.extend_from_slice(&body[copied_until..]);
        edited.freeze()
    }
}

impl ModelSpan {
    /// The edit that replaces the model name. The name is escaped in a JSON string. It is not escaped in a
    /// form, so it must not have line breaks there.
    pub fn renamed(&self, model: &str) -> Splice {
        match self {
            Self::Json(range) => {
                Splice::replace(range.clone(), serde_json::Value::from(model).to_string())
            }
            Self::Form(range) => Splice::replace(range.clone(), model.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Splice;
    use crate::openai::request_fields::RequestFields;
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    fn usage_splice(body: &str) -> Option<Splice> {
        RequestFields::parse(body.as_bytes()).unwrap().usage_splice
    }

    fn with_usage_requested(body: &str) -> String {
        apply(&[usage_splice(body).unwrap()], body)
    }

    fn apply(edits: &[Splice], body: &str) -> String {
        String::from_utf8(Splice::apply(edits, body.as_bytes()).to_vec()).unwrap()
    }

    #[test]
    fn include_usage_is_added_by_a_minimal_edit() {
        let check = |body: &str, expected: &str| {
            assert_eq!(with_usage_requested(body), expected, "{body}");
            let continuous = usage_splice(body).unwrap().with_continuous_usage();
            let expected = expected.replace(
                r#""include_usage":true"#,
                r#""include_usage":true,"continuous_usage_stats":true"#,
            );
            assert_eq!(apply(&[continuous], body), expected, "{body}");
        };
        check(
            r#"{"stream":true}"#,
            r#"{"stream_options":{"include_usage":true},"stream":true}"#,
        );
        check(
            r#" { "stream": true}"#,
            r#" {"stream_options":{"include_usage":true}, "stream": true}"#,
        );
        for (options, expected) in [
            ("null", r#"{"include_usage":true}"#),
            ("{ }", r#"{"include_usage":true }"#),
            (r#"{"x":{}}"#, r#"{"include_usage":true,"x":{}}"#),
            (r#"{"include_usage":false}"#, r#"{"include_usage":true}"#),
            (
                r#"{"include_usage":null,"y":1}"#,
                r#"{"include_usage":true,"y":1}"#,
            ),
        ] {
            for body in [
                r#"{"stream":true,"stream_options":OPTIONS}"#,
                r#"{"stream_options":OPTIONS,"stream":true}"#,
            ] {
                check(
                    &body.replace("OPTIONS", options),
                    &body.replace("OPTIONS", expected),
                );
            }
        }
    }

    #[test]
    fn continuous_usage_needs_requested_usage() {
        let splice = |options: &str| {
            let body = format!(r#"{{"stream":true,"stream_options":{options},"model":"a"}}"#);
            let edit = RequestFields::parse(body.as_bytes())
                .unwrap()
                .continuous_usage_splice?;
            Some(apply(&[edit], &body).replace(r#","model":"a"}"#, ""))
        };
        for options in [
            r#"{"include_usage":true}"#,
            r#"{"x":1, "include_usage" : true , "y":{}}"#,
        ] {
            let expected = options.replace("true", r#"true,"continuous_usage_stats":true"#);
            let expected = format!(r#"{{"stream":true,"stream_options":{expected}"#);
            assert_eq!(splice(options), Some(expected));
        }
        for options in [
            r#"{"include_usage":true,"continuous_usage_stats":true}"#,
            r#"{"include_usage":true,"continuous_usage_stats":false}"#,
            r#"{"continuous_usage_stats":null,"include_usage":true}"#,
            r#"{"include_usage":false}"#,
            r#"{"include_usage":1}"#,
            "{}",
            "null",
        ] {
            assert_eq!(splice(options), None, "{options}");
        }
    }

    #[test]
    fn requested_usage_and_invalid_options_stay() {
        for body in [
            "{}",
            r#"{"stream":false}"#,
            r#"{"stream":"true"}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":"yes"}}"#,
            r#"{"stream":true,"stream_options":"none"}"#,
            r#"{"stream":true,"stream_options":[]}"#,
            // `continuous_usage_stats` has no effect without `include_usage`, so adding `include_usage` would
            // put usage into every event.
            r#"{"stream":true,"stream_options":{"continuous_usage_stats":true}}"#,
        ] {
            assert_eq!(usage_splice(body), None, "{body}");
        }
    }

    #[test]
    fn renaming_a_model_replaces_only_its_name() {
        for (body, model, expected) in [
            (r#"{"model":"a"}"#, "longer", r#"{"model":"longer"}"#),
            (
                r#"{ "model" : "" , "x":1.0e5}"#,
                "b",
                r#"{ "model" : "b" , "x":1.0e5}"#,
            ),
            (
                r#"{"mod\u0065l":"\u0061","a":"model"}"#,
                "b",
                r#"{"mod\u0065l":"b","a":"model"}"#,
            ),
            (
                r#"{"x":{"model":"a"},"model":"a\"}"}"#,
                "b",
                r#"{"x":{"model":"a"},"model":"b"}"#,
            ),
            (
                r#"{"model":"a"}"#,
                "q\"\\é\u{1}",
                r#"{"model":"q\"\\é\u0001"}"#,
            ),
        ] {
            let span = RequestFields::parse(body.as_bytes())
                .unwrap()
                .model_slot
                .unwrap();
            assert_eq!(apply(&[span.renamed(model)], body), expected);
        }
    }

    fn members(text: &str) -> Map<String, Value> {
        serde_json::from_str(text).unwrap()
    }

    proptest! {
        #[test]
        fn usage_and_rename_edits_apply_to_one_body(
            is_model_first in any::<bool>(),
            options in prop_oneof![
                Just("null"), Just("{}"), Just(r#"{"include_usage":false}"#), Just(r#"{"a":"model"}"#),
            ],
            old in "[ -~\u{e9}\u{4e16}]{0,20}",
            new in "[ -~\u{e9}\u{4e16}\t]{1,20}",
        ) {
            let model = format!(r#""model": {}"#, json!(old));
            let options = format!(r#""stream_options":{options},"stream":true"#);
            let body = if is_model_first {
                format!("{{ {model},{options} }}")
            } else {
                format!("{{{options},{model}}}")
            };
            let fields = RequestFields::parse(body.as_bytes()).unwrap();
            prop_assert_eq!(fields.model.as_deref(), Some(&*old));
            let edits = [fields.model_slot.unwrap().renamed(&new), fields.usage_splice.unwrap()];
            let mut expected = members(&with_usage_requested(&body));
            expected.insert("model".into(), json!(new));
            prop_assert_eq!(members(&apply(&edits, &body)), expected);
        }

        #[test]
        fn the_usage_edit_changes_only_include_usage(
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
            let edited = with_usage_requested(&text);
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
