//! The bytes in the prompt fields of a Messages request that the engine leaves out of the prompt. These bytes
//! differ between requests with a common prefix of the prompt, so the hash of a prompt must not depend on them.

use super::prompt::{PromptPart, PromptSpans};
use crate::json::members::{length_until_closed, visit_elements, visit_members};
use memchr::memmem::{self, Finder};
use std::ops::Range;
use std::sync::LazyLock;

/// The byte ranges of a body that are not part of the prompt, in the order of the body. The ranges can overlap.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LeftOut(Vec<Range<usize>>);

/// A piece of one prompt part, between bytes that are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptPiece<'a> {
    /// The bytes of the piece, possibly empty.
    pub bytes: &'a [u8],
    /// Whether the piece ends its part. `false`: the next piece continues the part.
    pub ends_part: bool,
}

/// The beginning of the text of an attribution block: Claude Code states its version and a checksum of the
/// request in it. Since its pull request 36829, vLLM leaves such blocks out of the system prompt.
const ATTRIBUTION: &[u8] = b"x-anthropic-billing-header";
static ATTRIBUTION_FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(ATTRIBUTION));
static CACHE_MARK_FINDER: LazyLock<Finder<'static>> =
    LazyLock::new(|| Finder::new(br#""cache_control""#));
/// Maximum number of ranges. Bytes after the last range count as prompt.
const MAX_RANGES: usize = 256;

impl LeftOut {
    /// The ranges in a request to the Messages API. `drops_attribution` tells whether the engine leaves
    /// attribution blocks out; it is called only if the body can have such a block.
    pub fn of_messages(
        spans: &PromptSpans,
        body: &[u8],
        drops_attribution: impl FnOnce() -> bool,
    ) -> Self {
        let mut left_out = Self::default();
        let messages = spans.span(PromptPart::Messages);
        left_out.add_cache_marks(body, messages.clone());
        if ATTRIBUTION_FINDER.find(body).is_some() && drops_attribution() {
            left_out.add_blocks(body, spans.span(PromptPart::System));
            left_out.add_system_messages(body, messages);
        }
        left_out.0.sort_unstable_by_key(|range| range.start);
        left_out
    }

    /// Adds the attribution blocks in an array of content blocks.
    fn add_blocks(&mut self, body: &[u8], blocks: Range<usize>) {
        let array = body.get(blocks.clone()).unwrap_or_default();
        visit_elements(array, |block| {
            if is_attribution(&array[block.clone()]) {
                self.add(block.start + blocks.start..block.end + blocks.start);
            }
        });
    }

    /// Adds the attribution blocks in the messages of the role `system`.
    fn add_system_messages(&mut self, body: &[u8], messages: Range<usize>) {
        let array = body.get(messages.clone()).unwrap_or_default();
        visit_elements(array, |message| {
            let start = messages.start + message.start;
            let message = &array[message];
            let mut is_system = false;
            let mut content = 0..0;
            visit_members(message, |member| match &message[member.name] {
                b"role" => is_system = &message[member.value] == b"\"system\"",
                b"content" => content = member.value,
                _ => {}
            });
            if is_system {
                self.add_blocks(body, start + content.start..start + content.end);
            }
        });
    }

    /// Adds the `cache_control` members. Clients move them from message to message, and engines do not read
    /// them.
    fn add_cache_marks(&mut self, body: &[u8], messages: Range<usize>) {
        let array = body.get(messages.clone()).unwrap_or_default();
        let mut from = 0;
        while self.0.len() < MAX_RANGES
            && let Some(at) = CACHE_MARK_FINDER.find(&array[from..])
        {
            let name = from + at..from + at + CACHE_MARK_FINDER.needle().len();
            from = name.end;
            if let Some(mark) = cache_mark(array, name) {
                from = mark.end;
                self.add(mark.start + messages.start..mark.end + messages.start);
            }
        }
    }

    fn add(&mut self, range: Range<usize>) {
        if self.0.len() < MAX_RANGES {
            self.0.push(range);
        }
    }
}

impl PromptSpans {
    /// The pieces of the prompt parts in the body, in prompt order, without the bytes of `left_out`.
    pub fn pieces<'a>(
        &self,
        body: &'a [u8],
        left_out: &LeftOut,
    ) -> impl Iterator<Item = PromptPiece<'a>> {
        self.spans().flat_map(move |span| {
            let mut at = span.start;
            let first = left_out.0.partition_point(|cut| cut.end <= span.start);
            let mut cuts = left_out.0[first..]
                .iter()
                .take_while(move |cut| cut.end < span.end);
            std::iter::from_fn(move || {
                if at >= span.end {
                    return None;
                }
                let cut = cuts.next();
                let bytes = body.get(at..cut.map_or(span.end, |cut| cut.start.max(at)))?;
                at = cut.map_or(span.end, |cut| cut.end.max(at));
                Some(PromptPiece {
                    bytes,
                    ends_part: at >= span.end,
                })
            })
        })
    }
}

impl<'a> From<&'a [u8]> for PromptPiece<'a> {
    /// A part that consists of one piece.
    fn from(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            ends_part: true,
        }
    }
}

/// Whether a content block is a text that begins with [`ATTRIBUTION`].
fn is_attribution(block: &[u8]) -> bool {
    let mut is_text = false;
    let mut has_attribution = false;
    visit_members(block, |member| match &block[member.name] {
        b"type" => is_text = &block[member.value] == b"\"text\"",
        b"text" => {
            has_attribution = block[member.value.start + 1..].starts_with(ATTRIBUTION);
        }
        _ => {}
    });
    is_text && has_attribution
}

/// The range of a `cache_control` member and one comma. `name`: the range of its name, with quotes. `None`: the
/// bytes are not a member, or the value is neither `null` nor a cache mark of Anthropic's API.
fn cache_mark(array: &[u8], name: Range<usize>) -> Option<Range<usize>> {
    let before = array[..name.start].trim_ascii_end();
    let value = array[name.end..]
        .trim_ascii_start()
        .strip_prefix(b":")?
        .trim_ascii_start();
    let value_start = array.len() - value.len();
    let length = match value.strip_prefix(b"{") {
        Some(members) => length_until_closed(members)? + 1,
        None => value.starts_with(b"null").then_some(b"null".len())?,
    };
    let is_mark =
        |value: &[u8]| value == b"null" || memmem::find(value, b"\"ephemeral\"").is_some();
    if !is_mark(&value[..length]) {
        return None;
    }
    let end = value_start + length;
    match before.last()? {
        b',' => Some(before.len() - 1..end),
        b'{' => {
            let after = array[end..].trim_ascii_start();
            let after_comma = after.strip_prefix(b",").unwrap_or(after);
            Some(name.start..array.len() - after_comma.len())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::LeftOut;
    use crate::openai::request_fields::RequestFields;

    /// The parts of a prompt as the engine sees them. `drops_attribution`: the engine leaves attribution blocks
    /// out.
    fn prompt(body: &str, drops_attribution: bool) -> String {
        let fields = RequestFields::parse(body.as_bytes()).unwrap();
        let spans = &fields.prompt;
        let left_out = LeftOut::of_messages(spans, body.as_bytes(), || drops_attribution);
        let mut text = String::new();
        for piece in spans.pieces(body.as_bytes(), &left_out) {
            text.push_str(str::from_utf8(piece.bytes).unwrap());
            text.push_str(if piece.ends_part { "\n" } else { "" });
        }
        text
    }

    fn attribution(checksum: &str) -> String {
        format!(r#"{{"type":"text","text":"x-anthropic-billing-header: v; cch={checksum};"}}"#)
    }

    const RULES: &str = r#"{"type":"text","text":"rules"}"#;
    const TURN: &str = r#"{"role":"user","content":[{"type":"text","text":"a"}]}"#;

    #[test]
    fn attribution_blocks_are_no_prompt() {
        for form in [
            r#"{"system":[A,R],"messages":[T]}"#,
            r#"{"system":[R,A],"messages":[T]}"#,
            r#"{"messages":[T],"system":[ A , R ]}"#,
            r#"{"system":[R],"messages":[{"role":"system","content":[A]},T]}"#,
            r#"{"system":[A,R,A],"messages":[T,{"content":[R,A],"role":"system"},T]}"#,
        ] {
            let form = form.replace('R', RULES).replace('T', TURN);
            let body = |checksum: &str| form.replace('A', &attribution(checksum));
            let first = prompt(&body("1"), true);
            assert_eq!(first, prompt(&body("2"), true), "{form}");
            assert!(
                first.contains("rules") && first.contains(r#""text":"a""#),
                "{first}"
            );
            assert!(!first.contains("billing"), "{first}");
            assert_ne!(prompt(&body("1"), false), prompt(&body("2"), false));
        }
    }

    #[test]
    fn attribution_that_the_engine_keeps_counts_as_prompt() {
        for form in [
            r#"{"system":"x-anthropic-billing-header: v; cch=1;","messages":[]}"#,
            r#"{"messages":[{"role":"user","content":[A]}]}"#,
            r#"{"messages":[{"role":"system","content":"x-anthropic-billing-header: 1"}]}"#,
            r#"{"system":[{"type":"text","text":" x-anthropic-billing-header: 1"}],"messages":[]}"#,
            r#"{"system":[{"type":"other","text":"x-anthropic-billing-header: 1"}],"messages":[]}"#,
            r#"{"system":[{"type":"text","text":"\"text\":\"x-anthropic-billing-header: 1"}]}"#,
        ] {
            let body = form.replace('A', &attribution("1"));
            assert!(
                prompt(&body, true).contains("x-anthropic-billing-header"),
                "{form}"
            );
        }
    }

    #[test]
    fn a_cache_mark_is_no_prompt() {
        let without =
            r#"{"system":"s","messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}"#;
        let mark = r#""cache_control":{"type":"ephemeral","ttl":"1h"}"#;
        for member in [
            format!(r#","text":"a",{mark}}}"#),
            r#","text":"a", "cache_control" : null}"#.to_owned(),
            format!(r#",{mark},"text":"a"}}"#),
        ] {
            let body = without.replace(r#","text":"a"}"#, &member);
            assert_eq!(prompt(&body, true), prompt(without, true), "{body}");
        }
        let first = format!(r#"{{"messages":[{{{mark}, "role":"user","content":"a"}}]}}"#);
        assert_eq!(
            prompt(&first, true),
            "[{ \"role\":\"user\",\"content\":\"a\"}]\n"
        );
        for kept in [
            r#"{"messages":["\"cache_control\":{\"type\":\"ephemeral\"}"]}"#,
            r#"{"messages":[{"input":{"cache_control":{"max_age":1}}}]}"#,
            r#"{"messages":["cache_control","ephemeral"]}"#,
        ] {
            assert!(prompt(kept, true).contains("cache_control"), "{kept}");
        }
    }

    #[test]
    fn the_number_of_ranges_is_bounded() {
        let mark = r#"{"a":1,"cache_control":null}"#;
        let body = format!(
            r#"{{"messages":[{}{mark}]}}"#,
            format!("{mark},").repeat(100_000)
        );
        let expected = format!(",{mark}").repeat(100_001 - super::MAX_RANGES);
        assert!(prompt(&body, true).ends_with(&format!("{expected}]\n")));
    }
}
