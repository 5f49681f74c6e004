//! The byte ranges of the prompt in a request body: the values that become the model's input, in
//! the order in which chat templates place them.

use crate::json::JsonValue;
use std::ops::Range;

/// The byte ranges of the prompt parts in a body, and the cache salt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptSpans {
    /// Byte range of each part, indexed by [`PromptPart`]. An empty range: the body does not have
    /// the part.
    spans: [Range<usize>; PROMPT_PART_COUNT],
    /// `cache_salt`: prompts share a prefix cache only if their salts are equal.
    pub salt: Option<Box<str>>,
}

/// A field whose value is part of the prompt, in prompt order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PromptPart {
    Tools,
    System,
    Instructions,
    Messages,
    Prompt,
    Input,
}

const PROMPT_PART_COUNT: usize = 6;

impl PromptSpans {
    /// Records a value of the prompt. `end` is the offset after a string, or after the opening or
    /// closing bracket of an object or array.
    pub(super) fn read(&mut self, part: PromptPart, value: JsonValue<'_>, end: usize) {
        let span = &mut self.spans[part as usize];
        match value {
            JsonValue::Text(text) => *span = end.saturating_sub(text.len() + 2)..end,
            JsonValue::Object | JsonValue::Array => *span = end.saturating_sub(1)..end,
            JsonValue::End => span.end = end,
            JsonValue::Null | JsonValue::Bool(_) | JsonValue::Number(_) => {}
        }
    }

    /// The bytes of the prompt parts in the body, in prompt order.
    pub fn parts<'a>(&self, body: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let spans = self.spans.clone().into_iter();
        spans.filter_map(|span| body.get(span)).filter(|part| !part.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use crate::openai::request_fields::RequestFields;

    fn parts(body: &str) -> Vec<String> {
        let fields = RequestFields::parse(body.as_bytes()).unwrap();
        let parts = fields.prompt.parts(body.as_bytes());
        parts.map(|part| String::from_utf8(part.to_vec()).unwrap()).collect()
    }

    #[test]
    fn the_prompt_is_found_in_the_order_in_which_a_model_reads_it() {
        let body = r#"{"messages":[{"role":"user","content":"a ] \" b"}],"model":"m",
            "tools": [{"type":"function","function":{"name":"f"}}] ,"n":1}"#;
        let expected = [
            r#"[{"type":"function","function":{"name":"f"}}]"#,
            r#"[{"role":"user","content":"a ] \" b"}]"#,
        ];
        assert_eq!(parts(body), expected);
    }

    #[test]
    fn every_form_of_prompt_is_found() {
        let long = "x".repeat(1_000);
        for (field, value) in [
            ("prompt", format!("\"{long}\"")),
            ("prompt", "[1,2,3]".to_owned()),
            ("input", r#"["a","b"]"#.to_owned()),
            ("input", r#"[{"role":"user","content":[]}]"#.to_owned()),
            ("instructions", r#""be brief""#.to_owned()),
            ("system", r#"[{"type":"text","text":"t"}]"#.to_owned()),
        ] {
            assert_eq!(parts(&format!(r#"{{"n":1,"{field}":{value}}}"#)), [value]);
        }
        assert_eq!(parts(r#"{"prompt":null,"input":7}"#), Vec::<String>::new());
    }
}
