//! Streams repeat themselves: most events are the one before with another text in one place. Such an
//! event says the same as that one did, and two comparisons of bytes show it, so it is not read again.

use super::Delta;
use crate::json::is_within_text;
use std::ops::Range;

/// An event to which others are compared: the last one that was read, if all it says is that there
/// was output.
#[derive(Debug, Default)]
pub(super) struct Likeness {
    /// Its data, if that came in one piece.
    data: Vec<u8>,
    /// Where its texts of output stand in its data, without their quotes: how many, and the last.
    texts: usize,
    text: Range<usize>,
    /// What it said. `None`: nothing is compared to it.
    said: Option<Said>,
}

#[derive(Debug)]
struct Said {
    event_type: Box<str>,
    delta: Delta,
}

/// Longest data that is kept, in bytes. Events with token ids or logprobs do not repeat anyway.
const MAX_KEPT: usize = 1_024;

impl Likeness {
    /// Whether this is the data of the example, with another text that is not empty.
    pub(super) fn is_like(&self, data: &[u8]) -> bool {
        if self.said.is_none() {
            return false;
        }
        let (before, after) = (&self.data[..self.text.start], &self.data[self.text.end..]);
        let rest = data.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        rest.is_some_and(|text| !text.is_empty() && is_within_text(text))
    }

    /// What an event said whose data [is like](Self::is_like) that of the example.
    pub(super) fn said(&self, event_type: &str) -> Option<Delta> {
        let said = self.said.as_ref().filter(|said| *said.event_type == *event_type);
        said.map(|said| said.delta.clone())
    }

    /// An event begins that is no repetition: it may become the example.
    pub(super) fn begin(&mut self, piece: &[u8]) {
        (self.said, self.texts) = (None, 0);
        self.data.clear();
        if piece.len() <= MAX_KEPT {
            if self.data.capacity() == 0 {
                // The last events of a stream are longer than the others.
                self.data.reserve(2 * piece.len());
            }
            self.data.extend_from_slice(piece);
        }
    }

    /// The event that is being read does not come in one piece. Gives its data so far, if that was
    /// kept: of a repetition, what it repeats.
    pub(super) fn give_up(&mut self) -> Vec<u8> {
        self.said = None;
        std::mem::take(&mut self.data)
    }

    /// A text of output with so many bytes ends here, behind its quote.
    pub(super) fn on_text(&mut self, length: usize, end: usize) {
        self.texts += 1;
        self.text = (end - 1).saturating_sub(length)..end - 1;
    }

    /// The event has been read.
    pub(super) fn end(&mut self, event_type: &str, delta: &Delta) {
        let says_output = Delta {
            output: delta.output,
            tokens: delta.tokens,
            choice: delta.choice,
            ..Delta::default()
        };
        let is_example = !self.data.is_empty() && self.texts == 1 && !self.text.is_empty();
        if is_example && delta.output.is_some() && *delta == says_output {
            self.said = Some(Said { event_type: event_type.into(), delta: says_output });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::openai::{Api, Delta, Reader};
    use proptest::prelude::*;

    const CHAT: &str = r#"{"id":"a","choices":[{"index":0,"delta":{"content":"one"}}]}"#;

    /// What each event says, read in pieces of so many bytes: repetitions are seen only in whole ones.
    fn read(api: Api, events: &[(String, String)], piece: usize) -> (Vec<Delta>, String) {
        let mut reader = Reader::new(api);
        let deltas = events.iter().map(|(event_type, data)| {
            data.as_bytes().chunks(piece).for_each(|piece| reader.data(piece));
            reader.end_event(event_type)
        });
        (deltas.collect(), format!("{:?}", reader.answer()))
    }

    fn untyped(data: impl Into<String>) -> (String, String) {
        (String::new(), data.into())
    }

    /// Whether the last of these was seen to repeat the one before.
    fn is_repetition(events: &[String]) -> bool {
        let mut reader = Reader::new(Api::Chat);
        let [before @ .., last] = events else { return false };
        for event in before {
            reader.data(event.as_bytes());
            reader.end_event("");
        }
        reader.data(last.as_bytes());
        reader.is_repeating()
    }

    #[test]
    fn an_event_with_another_text_repeats_the_one_before() {
        let with = |text: &str| CHAT.replace("one", text);
        let events = |last: String| [with("role"), with("one"), last];
        assert!(is_repetition(&events(with("two"))));
        assert!(is_repetition(&events(with(r#"a \"quoted\" one \\"#))));
        assert!(!is_repetition(&events(with(""))));
        assert!(!is_repetition(&events(with(r#"two","content":"three"#))));
        assert!(!is_repetition(&events(with(r"\"))), "the quote behind it is escaped");
        assert!(!is_repetition(&events(with("two").replace(":0", ":1"))));
    }

    #[test]
    fn what_comes_behind_a_repetition_is_read_with_it() {
        let events = ["role", "one", "two"].map(|text| CHAT.replace("one", text));
        for (behind, is_malformed) in [("\n", false), ("\n{}", true)] {
            let mut reader = Reader::new(Api::Chat);
            let mut last = Delta::default();
            for (number, event) in events.iter().enumerate() {
                reader.data(event.as_bytes());
                if number == 2 {
                    assert!(reader.is_repeating());
                    reader.data(behind.as_bytes());
                }
                last = reader.end_event("");
            }
            assert_eq!((last.malformed, last.output.is_some()), (is_malformed, !is_malformed));
        }
    }

    fn event() -> impl Strategy<Value = (String, String)> {
        let text = prop_oneof![
            Just(String::new()),
            "[ab ]{1,6}".prop_map(String::from),
            Just(r"\\".to_owned()),
            Just(r#"\""#.to_owned()),
            Just(r#"x","content":"y"#.to_owned()),
        ];
        let chat = (0..2, text.clone(), 0..6).prop_map(|(index, text, kind)| {
            let rest = match kind {
                0 => r#","finish_reason":"stop""#,
                1 => r#","token_ids":[1,2]"#,
                2 => r#","error":{"code":500}"#,
                _ => "",
            };
            let role = if kind == 3 { r#""role":"assistant","# } else { "" };
            untyped(format!(
                r#"{{"id":"a","choices":[{{"index":{index},"delta":{{{role}"content":"{text}"}}{rest}}}]}}"#
            ))
        });
        let messages = (text, any::<bool>()).prop_map(|(text, is_typed)| {
            let kind = if is_typed { "content_block_delta" } else { "ping" };
            let data = format!(
                r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"{text}"}}}}"#
            );
            (kind.to_owned(), data)
        });
        let odd = prop_oneof![Just("[DONE]"), Just("{"), Just("{}"), Just(CHAT)].prop_map(untyped);
        prop_oneof![5 => chat, 3 => messages, 1 => odd]
    }

    proptest! {
        #[test]
        fn a_repetition_says_what_it_says_when_it_is_read(
            events in proptest::collection::vec(event(), 0..16),
            times in 1_usize..4,
            api in prop_oneof![Just(Api::Chat), Just(Api::Messages), Just(Api::Completions)],
        ) {
            let again = |event| std::iter::repeat_n(event, times);
            let events: Vec<_> = events.into_iter().flat_map(again).collect();
            prop_assert_eq!(read(api, &events, usize::MAX), read(api, &events, 5));
        }
    }
}
