//! How a request is made to ask for usage, or for a model by its replica's name: the fewest bytes
//! are put in or replaced, and the rest stays as its client wrote it.

use bytes::{Bytes, BytesMut};
use std::borrow::Cow;
use std::ops::Range;

/// One edit of a request body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Splice {
    /// The bytes that are replaced; an empty range is a place to insert.
    at: Range<usize>,
    with: Cow<'static, str>,
}

/// Where the name of the model stands in a body. Positions are byte offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Slot {
    /// A text of JSON, with its quotes.
    Json(Range<usize>),
    /// The value of a field of a form.
    Form(Range<usize>),
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
        let (at, with) = match options {
            StreamOptions::Absent => {
                let brace = body.iter().position(|byte| *byte == b'{')?;
                (brace + 1..brace + 1, r#""stream_options":{"include_usage":true},"#)
            }
            StreamOptions::Null(end) => (end - "null".len()..end, r#"{"include_usage":true}"#),
            StreamOptions::Object(at) if is_empty(at) => (at..at, r#""include_usage":true"#),
            StreamOptions::Object(at) => (at..at, r#""include_usage":true,"#),
            StreamOptions::Excluded { end, len } => (end - len..end, "true"),
            StreamOptions::LeaveAlone => return None,
        };
        Some(Self { at, with: with.into() })
    }

    /// The edit that puts another value in the place of one.
    pub fn replace(at: Range<usize>, with: impl Into<Cow<'static, str>>) -> Self {
        Self { at, with: with.into() }
    }

    /// The edit that gives a JSON object a member which it does not have. `member` is a name, a
    /// colon and a value. `None`: the body is no object.
    pub fn insert(body: &[u8], member: &str) -> Option<Self> {
        let at = body.iter().position(|byte| *byte == b'{')? + 1;
        let is_empty = body[at..].trim_ascii_start().starts_with(b"}");
        let comma = if is_empty { "" } else { "," };
        Some(Self { at: at..at, with: format!("{member}{comma}").into() })
    }

    /// The same edit for usage, extended: it also asks for the token counts of every event.
    pub fn with_continuous_usage(&self) -> Self {
        const INCLUDED: &str = "true";
        const CONTINUOUS: &str = r#","continuous_usage_stats":true"#;
        let mut with = self.with.clone().into_owned();
        if let Some(at) = with.find(INCLUDED) {
            with.insert_str(at + INCLUDED.len(), CONTINUOUS);
        }
        Self { at: self.at.clone(), with: with.into() }
    }

    /// The body with some edits, in one copy. They must be of this body and may not overlap.
    pub fn apply<'a>(edits: impl IntoIterator<Item = &'a Self>, body: &[u8]) -> Bytes {
        let mut edits: Vec<&Self> = edits.into_iter().collect();
        edits.sort_unstable_by_key(|edit| edit.at.start);
        let longer: usize = edits.iter().map(|edit| edit.with.len()).sum();
        let mut edited = BytesMut::with_capacity(body.len() + longer);
        let mut kept = 0;
        for Self { at, with } in edits {
            edited.extend_from_slice(&body[kept..at.start]);
            edited.extend_from_slice(with.as_bytes());
            kept = at.end;
        }
        edited.extend_from_slice(&body[kept..]);
        edited.freeze()
    }
}

// === impl Slot ===

impl Slot {
    /// The edit that puts another name there. In a form it must have no line breaks.
    pub fn renamed(&self, model: &str) -> Splice {
        match self {
            Self::Json(at) => {
                Splice { at: at.clone(), with: serde_json::Value::from(model).to_string().into() }
            }
            Self::Form(at) => Splice { at: at.clone(), with: model.to_owned().into() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Splice;
    use crate::openai::request::Peek;
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    fn edited(body: &str) -> Option<String> {
        let splice = Peek::of(body.as_bytes()).unwrap().usage_splice?;
        Some(applied(&[splice], body))
    }

    fn applied(edits: &[Splice], body: &str) -> String {
        String::from_utf8(Splice::apply(edits, body.as_bytes()).to_vec()).unwrap()
    }

    fn renamed(body: &str, model: &str) -> String {
        let slot = Peek::of(body.as_bytes()).unwrap().model_slot.unwrap();
        applied(&[slot.renamed(model)], body)
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
    fn the_edit_can_ask_for_the_counts_of_every_event_too() {
        for (body, expected) in [
            (
                r#"{"stream":true}"#,
                r#"{"stream_options":{"include_usage":true,"continuous_usage_stats":true},"stream":true}"#,
            ),
            (
                r#"{"stream":true,"stream_options":null}"#,
                r#"{"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#,
            ),
            (
                r#"{"stream_options":{"x":{}},"stream":true}"#,
                r#"{"stream_options":{"include_usage":true,"continuous_usage_stats":true,"x":{}},"stream":true}"#,
            ),
            (
                r#"{"stream_options":{"include_usage":false},"stream":true}"#,
                r#"{"stream_options":{"include_usage":true,"continuous_usage_stats":true},"stream":true}"#,
            ),
        ] {
            let splice = Peek::of(body.as_bytes()).unwrap().usage_splice.unwrap();
            assert_eq!(applied(&[splice.with_continuous_usage()], body), expected);
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

    #[test]
    fn only_the_name_of_the_model_is_replaced_and_it_is_escaped() {
        for (body, model, expected) in [
            (r#"{"model":"a"}"#, "longer", r#"{"model":"longer"}"#),
            (r#"{ "model" : "" , "x":1.0e5}"#, "b", r#"{ "model" : "b" , "x":1.0e5}"#),
            (r#"{"mod\u0065l":"\u0061","a":"model"}"#, "b", r#"{"mod\u0065l":"b","a":"model"}"#),
            (r#"{"x":{"model":"a"},"model":"a\"}"}"#, "b", r#"{"x":{"model":"a"},"model":"b"}"#),
            (r#"{"model":"a"}"#, "q\"\\é\u{1}", r#"{"model":"q\"\\é\u0001"}"#),
        ] {
            assert_eq!(renamed(body, model), expected);
        }
    }

    fn members(text: &str) -> Map<String, Value> {
        serde_json::from_str(text).unwrap()
    }

    proptest! {
        #[test]
        fn both_edits_fit_into_one_body(
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
            let peek = Peek::of(body.as_bytes()).unwrap();
            prop_assert_eq!(peek.model.as_deref(), Some(&*old));
            let edits = [peek.model_slot.unwrap().renamed(&new), peek.usage_splice.unwrap()];
            let mut expected = members(&edited(&body).unwrap());
            expected.insert("model".into(), json!(new));
            prop_assert_eq!(members(&applied(&edits, &body)), expected);
        }

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
