//! The byte ranges of the prompt in a request body: the values that become the model's input, in
//! the order in which chat templates place them.

use crate::json::JsonValue;
use crate::json::members::{visit_elements, visit_members};
use memchr::{memchr, memmem};
use std::ops::Range;

/// The byte ranges of the prompt parts in a body, and the cache salt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptSpans {
    /// Byte range of each part, indexed by [`PromptPart`]. An empty range: the body does not have
    /// the part.
    spans: [Range<usize>; PROMPT_PART_COUNT],
    /// `cache_salt`: two prompts share cached prefixes only if their salts are equal. `None`: the request has
    /// no salt.
    pub salt: Option<Box<str>>,
}

/// A field whose value is a part of the prompt. The variants have the order of the parts in the prompt.
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
            JsonValue::End { .. } => span.end = end,
            JsonValue::Null | JsonValue::Bool(_) | JsonValue::Number(_) => {}
        }
    }

    /// The bytes of the prompt parts in the body, in prompt order.
    pub fn parts<'a>(&self, body: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.spans()
            .filter_map(|span| body.get(span))
            .filter(|part| !part.is_empty())
    }

    /// The part of the prompt that identifies a conversation. All turns of a conversation begin with one first
    /// user message, so this message is the part. Without a user message, the part is the whole prompt.
    #[must_use]
    pub fn opening(&self, body: &[u8]) -> Self {
        for part in [PromptPart::Messages, PromptPart::Input] {
            let span = self.span(part);
            let messages = body.get(span.clone()).unwrap_or_default();
            let mut first = None;
            visit_elements(messages, |message| {
                if first.is_none() && is_of_user(&messages[message.clone()]) {
                    first = Some(message);
                }
            });
            if let Some(first) = first {
                let mut opening = Self::default();
                opening.spans[part as usize] = span.start + first.start..span.start + first.end;
                return opening;
            }
        }
        self.clone()
    }

    /// Whether the list `tools` has an element.
    pub fn has_tools(&self) -> bool {
        // An empty array has two bytes.
        self.span(PromptPart::Tools).len() > 2
    }

    /// The byte range of each part, in prompt order.
    pub(super) fn spans(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        self.spans.clone().into_iter()
    }

    /// The byte range of a part. Empty: the body does not have the part.
    pub(super) fn span(&self, part: PromptPart) -> Range<usize> {
        self.spans[part as usize].clone()
    }
}

fn is_of_user(message: &[u8]) -> bool {
    let mut is_user = false;
    visit_members(message, |member| {
        if &message[member.name] == b"role" {
            is_user = &message[member.value] == b"\"user\"";
        }
    });
    is_user
}

/// Numbers of bytes in a request body that can become the prompt of a model. The gateway estimates the prompt
/// tokens from them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PromptBytes {
    /// Bytes of the fields that are always prompt, such as `messages` and `tools`, including media in them.
    pub parts: u64,
    /// Bytes of all fields that can be text of the prompt, without media.
    pub text: u64,
    /// Bytes of images, audio and video in Base64. In a form, all bytes count as media.
    pub media: u64,
}

/// Assumed tokens per byte of text until an engine reports usage: the ratio in English chat messages.
pub const TOKENS_PER_BYTE: f64 = 0.25;
/// Assumed tokens per byte of media: an image of a megabyte has about a thousand tokens.
pub const TOKENS_PER_MEDIA_BYTE: f64 = 1.0 / 1024.0;
/// Assumed bytes of the names and values in a body that are not prompt.
const OTHER_FIELDS_BYTES: usize = 1024;
/// Bodies shorter than this number of bytes are not searched for media.
const MIN_MEDIA_BODY_BYTES: usize = 4096;
/// The texts that precede media in Base64: the end of the head of a data URL, and the name of the field with
/// audio data.
const MEDIA_MARKERS: [&[u8]; 2] = [b";base64,", b"\"data\""];
/// Length in bytes of the shortest Base64 text that counts as media.
const MIN_MEDIA_BYTES: usize = 64;

impl PromptBytes {
    /// Counts the bytes of a JSON body. Unknown fields, such as `documents` of a chat template, can be prompt
    /// too. So all bytes except media count as text, minus `OTHER_FIELDS_BYTES`.
    pub fn of_json(spans: &PromptSpans, body: &[u8]) -> Self {
        let parts = spans.parts(body).map(<[u8]>::len).sum::<usize>();
        let media = media_bytes(body);
        let text = parts.saturating_sub(media);
        let text = text.max(body.len().saturating_sub(media + OTHER_FIELDS_BYTES));
        Self {
            parts: parts as u64,
            text: text as u64,
            media: media as u64,
        }
    }
}

/// Number of bytes of media in Base64 in `body`. 0 for a body of less than [`MIN_MEDIA_BODY_BYTES`].
fn media_bytes(body: &[u8]) -> usize {
    if body.len() < MIN_MEDIA_BODY_BYTES {
        return 0;
    }
    MEDIA_MARKERS
        .iter()
        .map(|marker| media_bytes_after(marker, body))
        .sum()
}

/// Number of bytes of the media that follow each `marker`. Media end with their string.
fn media_bytes_after(marker: &[u8], mut rest: &[u8]) -> usize {
    let mut bytes = 0;
    while let Some(start) = memmem::find(rest, marker) {
        rest = rest.get(start + marker.len()..).unwrap_or_default();
        if marker.ends_with(b"\"") {
            // The name of the field also precedes data URLs, which are found by their own marker.
            let value = rest
                .trim_ascii_start()
                .strip_prefix(b":")
                .map(<[u8]>::trim_ascii_start);
            let value = value.and_then(|value| value.strip_prefix(b"\""));
            let Some(value) = value.filter(|value| !value.starts_with(b"data:")) else {
                continue;
            };
            rest = value;
        }
        let length = memchr(b'"', rest).unwrap_or(rest.len());
        let is_base64 = |byte: &u8| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=' | b'-' | b'_' | b'\\')
        };
        let begin = rest.get(..MIN_MEDIA_BYTES.min(length)).unwrap_or_default();
        if begin.len() == MIN_MEDIA_BYTES && begin.iter().all(is_base64) {
            bytes += length;
        }
        rest = rest.get(length..).unwrap_or_default();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::PromptBytes;
    use crate::openai::request_fields::RequestFields;

    fn parts(body: &str) -> Vec<String> {
        let fields = RequestFields::parse(body.as_bytes()).unwrap();
        let parts = fields.prompt.parts(body.as_bytes());
        parts
            .map(|part| String::from_utf8(part.to_vec()).unwrap())
            .collect()
    }

    #[test]
    fn prompt_parts_are_found_in_model_order() {
        let body = r#"{"messages":[{"role":"user","content":"a ] \" b"}],"model":"m",
            "tools": [{"type":"function","function":{"name":"f"}}] ,"n":1}"#;
        let expected = [
            r#"[{"type":"function","function":{"name":"f"}}]"#,
            r#"[{"role":"user","content":"a ] \" b"}]"#,
        ];
        assert_eq!(parts(body), expected);
    }

    #[test]
    fn an_empty_list_of_tools_contains_no_tools() {
        let has_tools = |tools: &str| {
            let body = format!(r#"{{"tools":{tools},"messages":[]}}"#);
            RequestFields::parse(body.as_bytes())
                .unwrap()
                .prompt
                .has_tools()
        };
        assert!(!has_tools("[]") && has_tools("[{}]"));
    }

    #[test]
    fn all_turns_of_a_conversation_begin_equally() {
        let opening = |body: &str| {
            let fields = RequestFields::parse(body.as_bytes()).unwrap();
            let opening = fields.prompt.opening(body.as_bytes());
            let parts = opening.parts(body.as_bytes());
            parts
                .map(|part| str::from_utf8(part).unwrap())
                .collect::<String>()
        };
        let asked = r#"{"role":"user","content":"\"role\": [a]"}"#;
        for field in ["messages", "input"] {
            for body in [
                format!(r#"{{"system":"b","tools":[],"{field}":[{asked}]}}"#),
                format!(r#"{{"{field}":[{{"role":"system","content":"x"}}, {asked} ,{asked}]}}"#),
                format!(r#"{{"{field}":[{asked},{{"role":"assistant"}},{{"role":"user"}}]}}"#),
            ] {
                assert_eq!(opening(&body), asked, "{body}");
            }
        }
        for (body, whole) in [
            (r#"{"prompt":"a b"}"#, r#""a b""#),
            (r#"{"input":"a b"}"#, r#""a b""#),
            (
                r#"{"messages":["a",{"role":1},3]}"#,
                r#"["a",{"role":1},3]"#,
            ),
            ("{}", ""),
        ] {
            assert_eq!(opening(body), whole);
        }
    }

    #[test]
    fn all_text_is_prompt_and_media_are_not() {
        let text = "word ".repeat(2_000);
        let media = "QUJD".repeat(5_000);
        let bytes = |body: &str| {
            let fields = RequestFields::parse(body.as_bytes()).unwrap();
            PromptBytes::of_json(&fields.prompt, body.as_bytes())
        };
        let near = |value: u64, expected: usize| value.abs_diff(expected as u64) < 1_200;
        for body in [
            format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#),
            format!(r#"{{"messages":[],"documents":[{{"text":"{text}"}}]}}"#),
            format!(r#"{{"messages":[],"chat_template_kwargs":{{"a":"{text}"}}}}"#),
            format!(r#"{{"text_1":"{text}"}}"#),
            format!(
                r#"{{"messages":[{{"role":"user","content":[{{"type":"text","text":"{text}"}},
                {{"type":"image_url","image_url":{{"url":"data:image/png;base64,{media}"}}}}]}}]}}"#
            ),
            format!(
                r#"{{"messages":[{{"role":"user","content":[{{"type":"input_audio",
                "input_audio":{{"data" : "{media}","format":"wav"}}}},{{"text":"{text}"}}]}}]}}"#
            ),
            format!(r#"{{"data":"data:a/b;base64,{media}","messages":["{text}"]}}"#),
        ] {
            let PromptBytes {
                text: counted,
                media: counted_media,
                ..
            } = bytes(&body);
            assert!(near(counted, text.len()), "{counted}: {}", &body[..60]);
            let has_media = body.contains(&media);
            assert_eq!(
                counted_media,
                if has_media { media.len() as u64 } else { 0 }
            );
        }
        let short = bytes(r#"{"model":"m","messages":["a"],"n":1}"#);
        assert_eq!(
            short,
            PromptBytes {
                parts: 5,
                text: 5,
                media: 0
            }
        );
        let unclosed = format!("{{\"a\":\"{}", ";base64,".repeat(100_000));
        assert!(super::media_bytes(unclosed.as_bytes()) <= unclosed.len());
    }

    #[test]
    fn every_field_and_type_of_prompt_is_found() {
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
