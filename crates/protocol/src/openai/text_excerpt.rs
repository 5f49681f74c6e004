//! Captures the beginning of a prompt or response that arrives in pieces. The gateway does this for requests
//! whose payload is sampled.

use std::fmt;

/// The first bytes of a text, escaped as in JSON. `Debug` prints only the length, so that logs do not show the
/// text. [`TextExcerpt::bytes`] returns the text.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TextExcerpt {
    bytes: Vec<u8>,
    /// Maximum length of the excerpt, in bytes.
    capacity: usize,
    is_truncated: bool,
    /// Length of the committed part of `bytes`, which certainly belongs to the text, and whether this part is
    /// truncated. Invariant: `committed.0 <= bytes.len()`.
    committed: (usize, bool),
}

impl TextExcerpt {
    /// An empty excerpt for up to `capacity` bytes.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            ..Self::default()
        }
    }

    /// Appends the next piece of the text, up to the capacity.
    pub fn push(&mut self, piece: &[u8]) {
        let length = piece.len().min(self.capacity - self.bytes.len());
        self.bytes.extend_from_slice(&piece[..length]);
        self.is_truncated |= length < piece.len();
    }

    /// The committed and uncommitted bytes so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Maximum length of the excerpt, in bytes.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether the text was longer than the capacity.
    pub fn is_cut(&self) -> bool {
        self.is_truncated
    }

    /// Commits the bytes that were appended since the last call, or discards them if they do not belong to the
    /// captured text.
    pub(super) fn commit_or_discard(&mut self, should_commit: bool) {
        if !should_commit {
            self.bytes.truncate(self.committed.0);
            self.is_truncated = self.committed.1;
        }
        self.committed = (self.bytes.len(), self.is_truncated);
    }
}

impl fmt::Debug for TextExcerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TextExcerpt({} bytes)", self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::{Api, ResponseReader};

    /// The text captured from these events, whose data arrives in pieces of `piece_bytes` bytes.
    fn captured_from_events(api: Api, events: &[&str], piece_bytes: usize) -> String {
        let mut reader = ResponseReader::new(api);
        reader.capture_text(TextExcerpt::new(2_000));
        for event in events {
            event
                .as_bytes()
                .chunks(piece_bytes)
                .for_each(|piece| reader.data(piece));
            reader.finish_event("");
        }
        String::from_utf8(reader.take_text_excerpt().unwrap().bytes().to_vec()).unwrap()
    }

    /// The text captured from a complete response, which arrives in pieces of `piece_bytes` bytes.
    fn captured_from_document(api: Api, document: &str, piece_bytes: usize) -> String {
        let mut reader = ResponseReader::new(api);
        reader.capture_text(TextExcerpt::new(2_000));
        document
            .as_bytes()
            .chunks(piece_bytes)
            .for_each(|piece| reader.data(piece));
        reader.end_whole();
        String::from_utf8(reader.take_text_excerpt().unwrap().bytes().to_vec()).unwrap()
    }

    #[test]
    fn reasoning_and_tools_are_not_captured() {
        let chat = [
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"reasoning_content":"secret"}}]}"#,
            r#"{"choices":[{"index":1,"delta":{"content":"secret"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"one "}},{"delta":{"content":"secret"},"index":1}]}"#,
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"function":{"arguments":"secret"}}]}}]}"#,
            r#"{"choices":[{"delta":{"content":"\"two\""},"index":0}]}"#,
            "[DONE]",
        ];
        let responses = [
            r#"{"type":"response.reasoning_text.delta","delta":"secret"}"#,
            r#"{"delta":"one ","type":"response.output_text.delta"}"#,
            r#"{"type":"response.function_call_arguments.delta","delta":"secret"}"#,
            r#"{"type":"response.output_text.delta","delta":"\"two\""}"#,
            r#"{"type":"response.output_text.done","text":"secret"}"#,
            r#"{"type":"response.completed","response":{"id":"r","status":"completed"}}"#,
        ];
        let messages = [
            r#"{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"secret"}}"#,
            r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"one "}}"#,
            r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"secret"}}"#,
            r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"\"two\""}}"#,
            r#"{"type":"message_stop"}"#,
        ];
        for piece in [1, 3, 17, 4_096] {
            for (api, events) in [
                (Api::Chat, &chat[..]),
                (Api::Responses, &responses[..]),
                (Api::Messages, &messages[..]),
            ] {
                assert_eq!(
                    captured_from_events(api, events, piece),
                    r#"one \"two\""#,
                    "{api:?} by {piece}"
                );
            }
        }
    }

    #[test]
    fn long_text_is_captured_across_chunks() {
        let long = "0123456789".repeat(100);
        let chat = format!(
            r#"{{"choices":[{{"index":0,"message":{{"reasoning":"secret","content":"{long}","tool_calls":[{{"a":"secret"}}]}}}},
                {{"index":1,"message":{{"content":"secret"}}}}]}}"#
        );
        let completion = format!(r#"{{"choices":[{{"index":0,"text":"{long}"}}]}}"#);
        let responses = format!(
            r#"{{"output":[{{"type":"reasoning","content":[{{"text":"secret","type":"reasoning_text"}}]}},
                {{"type":"message","content":[{{"type":"output_text","text":"{long}"}}]}},
                {{"type":"function_call","arguments":"secret"}}],"status":"completed"}}"#
        );
        let messages = format!(
            r#"{{"content":[{{"type":"thinking","thinking":"secret"}},{{"type":"text","text":"{long}"}},
                {{"type":"tool_use","input":{{"a":"secret"}}}}]}}"#
        );
        for piece in [7, 300, 100_000] {
            assert_eq!(
                captured_from_document(Api::Chat, &chat, piece),
                long,
                "{piece}"
            );
            let captured = captured_from_document(Api::Completions, &completion, piece);
            assert_eq!(captured, long, "{piece}");
            assert_eq!(
                captured_from_document(Api::Responses, &responses, piece),
                long,
                "{piece}"
            );
            assert_eq!(
                captured_from_document(Api::Messages, &messages, piece),
                long,
                "{piece}"
            );
        }
    }

    #[test]
    fn an_incomplete_event_is_not_captured() {
        let events = [
            r#"{"choices":[{"index":0,"delta":{"content":"one"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"two""#,
        ];
        assert_eq!(captured_from_events(Api::Chat, &events, 5), "one");
    }

    #[test]
    fn capture_stops_at_its_capacity() {
        let mut excerpt = TextExcerpt::new(8);
        excerpt.push(b"abc");
        excerpt.commit_or_discard(true);
        excerpt.push(b"not");
        excerpt.commit_or_discard(false);
        excerpt.push(b"def");
        assert_eq!((excerpt.bytes(), excerpt.is_cut()), (&b"abcdef"[..], false));
        excerpt.push(b"ghi");
        assert_eq!(
            (excerpt.bytes(), excerpt.is_cut()),
            (&b"abcdefgh"[..], true)
        );
        assert_eq!(format!("{excerpt:?}"), "TextExcerpt(8 bytes)");
    }
}
