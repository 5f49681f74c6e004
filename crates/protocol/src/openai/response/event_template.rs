//! Recognizes an event that differs from an earlier event only in its text, so that the event needs no parsing.
//!
//! Most events of a stream equal their predecessor except for one string. Such an event has an equal [`Delta`],
//! and two comparisons of bytes recognize it.

use crate::json::is_string_content;
use crate::openai::{Delta, OutputKind};
use std::ops::Range;

/// The event with which later events are compared: the last parsed event, if it contains only output.
#[derive(Debug, Default)]
pub(super) struct EventTemplate {
    /// The data of the event. Empty if the data is longer than [`MAX_TEMPLATE_BYTES`] or did not
    /// arrive in one piece.
    data: Vec<u8>,
    /// Number of output texts in the data.
    text_count: usize,
    /// Byte range of the last output text in the data, without its quotes.
    text: Range<usize>,
    /// The content of the event. `None`: the event is not suitable as a template, or its end has not been read.
    recorded: Option<RecordedDelta>,
}

#[derive(Debug)]
/// The type and the content of the event that serves as the template.
struct RecordedDelta {
    event_type: Box<str>,
    delta: Delta,
}

/// Longest data of a template, in bytes. Long events, such as those with token ids or logprobs, differ in more
/// than their text.
const MAX_TEMPLATE_BYTES: usize = 1_024;

impl EventTemplate {
    /// The text in `data`, if `data` equals the data of the template except for the text. `None` also for an
    /// empty text.
    pub(super) fn matched_text<'a>(&self, data: &'a [u8]) -> Option<&'a [u8]> {
        self.recorded.as_ref()?;
        let before = &self.data[..self.text.start];
        let after = &self.data[self.text.end..];
        let text = data
            .strip_prefix(before)
            .and_then(|suffix| suffix.strip_suffix(after));
        text.filter(|text| !text.is_empty() && is_string_content(text))
    }

    pub(super) fn has_answer_text(&self) -> bool {
        let recorded = self.recorded.as_ref();
        recorded.is_some_and(|recorded| recorded.delta.output.has(OutputKind::Text))
    }

    /// The content of an event whose data [matches](Self::matched_text) the template. `None`: the event
    /// has another type than the template.
    pub(super) fn delta_for(&self, event_type: &str) -> Option<Delta> {
        let recorded = self
            .recorded
            .as_ref()
            .filter(|recorded| *recorded.event_type == *event_type);
        recorded.map(|recorded| recorded.delta.clone())
    }

    /// Starts an event that does not match the template. `piece` is the first piece of its data.
    /// The event may become the next template.
    pub(super) fn begin(&mut self, piece: &[u8]) {
        (self.recorded, self.text_count) = (None, 0);
        self.data.clear();
        if piece.len() <= MAX_TEMPLATE_BYTES {
            if self.data.capacity() == 0 {
                // The last events of a stream are the longest, so the buffer gets twice the required size.
                self.data.reserve(2 * piece.len());
            }
            self.data.extend_from_slice(piece);
        }
    }

    /// Discards the template and returns the stored data: that of the template, if the current event matched
    /// the template so far, or else the first piece of the current event.
    pub(super) fn discard(&mut self) -> Vec<u8> {
        self.recorded = None;
        std::mem::take(&mut self.data)
    }

    /// Records the position of an output text of `length` bytes whose closing quote ends at `end`.
    pub(super) fn on_text(&mut self, length: usize, end: usize) {
        self.text_count += 1;
        self.text = (end - 1).saturating_sub(length)..end - 1;
    }

    /// Finishes an event that was parsed. The event becomes the template if it contains exactly one output text
    /// and no other content.
    pub(super) fn end(&mut self, event_type: &str, delta: &Delta) {
        let output_only = Delta {
            output: delta.output,
            tokens: delta.tokens,
            choice: delta.choice,
            has_null_usage: delta.has_null_usage,
            ..Delta::default()
        };
        let is_template = !self.data.is_empty() && self.text_count == 1 && !self.text.is_empty();
        if is_template && !delta.output.is_empty() && *delta == output_only {
            self.recorded = Some(RecordedDelta {
                event_type: event_type.into(),
                delta: output_only,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::openai::{Api, Delta, OutputKind, ResponseReader};
    use proptest::prelude::*;

    const CHAT: &str = r#"{"id":"a","choices":[{"index":0,"delta":{"content":"one"}}]}"#;

    /// The deltas of the events, and the summary as text. The data of each event arrives in pieces of
    /// `piece_bytes` bytes. The reader compares data with the template only if the data arrives in one piece.
    fn read_events(
        api: Api,
        events: &[(String, String)],
        piece_bytes: usize,
    ) -> (Vec<Delta>, String) {
        let mut reader = ResponseReader::new(api);
        let deltas = events.iter().map(|(event_type, data)| {
            data.as_bytes()
                .chunks(piece_bytes)
                .for_each(|piece| reader.data(piece));
            reader.finish_event(event_type)
        });
        (deltas.collect(), format!("{:?}", reader.answer()))
    }

    fn untyped(data: impl Into<String>) -> (String, String) {
        (String::new(), data.into())
    }

    /// Whether the last event matches the template that the earlier events produce.
    fn is_repetition(events: &[String]) -> bool {
        let mut reader = ResponseReader::new(Api::Chat);
        let [before @ .., last] = events else {
            return false;
        };
        for event in before {
            reader.data(event.as_bytes());
            reader.finish_event("");
        }
        reader.data(last.as_bytes());
        reader.is_matching_template()
    }

    #[test]
    fn an_event_with_other_text_matches() {
        let event_with = |text: &str| CHAT.replace("one", text);
        let events = |last: String| [event_with("role"), event_with("one"), last];
        assert!(is_repetition(&events(event_with("two"))));
        assert!(is_repetition(&events(event_with(r#"a \"quoted\" one \\"#))));
        assert!(!is_repetition(&events(event_with(""))));
        assert!(!is_repetition(&events(event_with(
            r#"two","content":"three"#
        ))));
        assert!(
            !is_repetition(&events(event_with(r"\"))),
            "the closing quote is escaped"
        );
        assert!(!is_repetition(&events(
            event_with("two").replace(":0", ":1")
        )));
    }

    #[test]
    fn a_mismatch_after_a_match_is_parsed_whole() {
        let events = ["role", "one", "two"].map(|text| CHAT.replace("one", text));
        for (rest, is_malformed) in [("\n", false), ("\n{}", true)] {
            let mut reader = ResponseReader::new(Api::Chat);
            let mut last = Delta::default();
            for (number, event) in events.iter().enumerate() {
                reader.data(event.as_bytes());
                if number == 2 {
                    assert!(reader.is_matching_template());
                    reader.data(rest.as_bytes());
                }
                last = reader.finish_event("");
            }
            let is_unknown = last.output == OutputKind::Unknown.into();
            assert_eq!((last.malformed, is_unknown), (is_malformed, is_malformed));
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
        let other_event =
            prop_oneof![Just("[DONE]"), Just("{"), Just("{}"), Just(CHAT)].prop_map(untyped);
        prop_oneof![5 => chat, 3 => messages, 1 => other_event]
    }

    proptest! {
        #[test]
        fn a_match_has_the_delta_of_parsing(
            events in proptest::collection::vec(event(), 0..16),
            times in 1_usize..4,
            api in prop_oneof![Just(Api::Chat), Just(Api::Messages), Just(Api::Completions)],
        ) {
            let repeated = |event| std::iter::repeat_n(event, times);
            let events: Vec<_> = events.into_iter().flat_map(repeated).collect();
            prop_assert_eq!(
                read_events(api, &events, usize::MAX),
                read_events(api, &events, 5)
            );
        }
    }
}
