//! The beginning of a text that comes in pieces, for the few requests whose text is kept.

use std::fmt;

/// The first bytes of a text, as JSON writes it. It does not show itself: see [`Excerpt::bytes`].
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Excerpt {
    bytes: Vec<u8>,
    room: usize,
    is_cut: bool,
    /// What is sure to belong to the text, and whether there was more of that.
    /// Invariant: `sure.0 <= bytes.len()`.
    sure: (usize, bool),
}

impl Excerpt {
    /// Nothing yet, of a text of which `room` bytes are kept.
    pub fn new(room: usize) -> Self {
        Self { room, ..Self::default() }
    }

    /// More of the text.
    pub fn push(&mut self, piece: &[u8]) {
        let kept = piece.len().min(self.room - self.bytes.len());
        self.bytes.extend_from_slice(&piece[..kept]);
        self.is_cut |= kept < piece.len();
    }

    /// What was kept.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How much is kept at most.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Whether there was more.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// What came since the last time belongs to the text, or does not.
    pub(super) fn settle(&mut self, belongs: bool) {
        if !belongs {
            self.bytes.truncate(self.sure.0);
            self.is_cut = self.sure.1;
        }
        self.sure = (self.bytes.len(), self.is_cut);
    }
}

impl fmt::Debug for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Excerpt({} bytes)", self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::{Api, Reader};

    /// What is kept of an answer of these events, each of which comes in pieces of so many bytes.
    fn kept(api: Api, events: &[&str], piece: usize) -> String {
        let mut reader = Reader::new(api);
        reader.keep_text(Excerpt::new(2_000));
        for event in events {
            event.as_bytes().chunks(piece).for_each(|piece| reader.data(piece));
            reader.end_event("");
        }
        String::from_utf8(reader.take_text().unwrap().bytes().to_vec()).unwrap()
    }

    fn whole(api: Api, document: &str, piece: usize) -> String {
        let mut reader = Reader::new(api);
        reader.keep_text(Excerpt::new(2_000));
        document.as_bytes().chunks(piece).for_each(|piece| reader.data(piece));
        reader.end_whole();
        String::from_utf8(reader.take_text().unwrap().bytes().to_vec()).unwrap()
    }

    #[test]
    fn of_a_stream_the_text_of_the_first_choice_is_kept_without_thoughts_and_tools() {
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
                assert_eq!(kept(api, events, piece), r#"one \"two\""#, "{api:?} by {piece}");
            }
        }
    }

    #[test]
    fn of_a_whole_answer_a_long_text_is_kept_however_it_is_cut() {
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
            assert_eq!(whole(Api::Chat, &chat, piece), long, "{piece}");
            assert_eq!(whole(Api::Completions, &completion, piece), long, "{piece}");
            assert_eq!(whole(Api::Responses, &responses, piece), long, "{piece}");
            assert_eq!(whole(Api::Messages, &messages, piece), long, "{piece}");
        }
    }

    #[test]
    fn an_event_that_is_not_whole_says_nothing() {
        let events = [
            r#"{"choices":[{"index":0,"delta":{"content":"one"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"two""#,
        ];
        assert_eq!(kept(Api::Chat, &events, 5), "one");
    }

    #[test]
    fn a_text_is_kept_up_to_its_room_and_without_what_does_not_belong() {
        let mut excerpt = Excerpt::new(8);
        excerpt.push(b"abc");
        excerpt.settle(true);
        excerpt.push(b"not");
        excerpt.settle(false);
        excerpt.push(b"def");
        assert_eq!((excerpt.bytes(), excerpt.is_cut()), (&b"abcdef"[..], false));
        excerpt.push(b"ghi");
        assert_eq!((excerpt.bytes(), excerpt.is_cut()), (&b"abcdefgh"[..], true));
        assert_eq!(format!("{excerpt:?}"), "Excerpt(8 bytes)");
    }
}
