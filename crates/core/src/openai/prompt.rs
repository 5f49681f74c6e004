//! Where the prompt of a request stands in its body: the values that become what the model reads,
//! in the order in which chat templates put them.

use crate::json::Value;
use std::ops::Range;

/// The places of a prompt. A request has few of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptSpans {
    spans: [Range<usize>; PARTS],
    /// `cache_salt`: prompts share a cache only if theirs are equal.
    pub salt: Option<Box<str>>,
}

/// A value that is part of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Tools,
    System,
    Instructions,
    Messages,
    Prompt,
    Input,
}

const PARTS: usize = 6;

impl PromptSpans {
    /// A value of the prompt begins or ends in the body at `end`.
    pub(super) fn read(&mut self, part: Part, value: Value<'_>, end: usize) {
        let span = &mut self.spans[part as usize];
        match value {
            Value::Text(text) => *span = end.saturating_sub(text.len() + 2)..end,
            Value::Object | Value::Array => *span = end.saturating_sub(1)..end,
            Value::End => span.end = end,
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// The parts of the prompt, as they stand in their body.
    pub fn parts<'a>(&self, body: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let spans = self.spans.clone().into_iter();
        spans.filter_map(|span| body.get(span)).filter(|part| !part.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use crate::openai::request::Peek;

    fn parts(body: &str) -> Vec<String> {
        let peek = Peek::of(body.as_bytes()).unwrap();
        let parts = peek.prompt.parts(body.as_bytes());
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
    fn every_shape_of_prompt_is_found() {
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
