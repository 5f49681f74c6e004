//! Reads events that differ from the previous event only in the text and the token ids, as most events of a
//! stream do. Only these two are read. The other bytes are compared with those of the earlier event.
//!
//! The event template of `tokenweir_protocol` does the same for the content of an event. This module cannot use
//! that template, because it gets the event before the splicer removes the token ids, and must report the
//! offsets of the members.

use super::event::Event;
use std::ops::Range;
use tokenweir_protocol::json::find_string_end;

/// The last fully read event with which later events can be compared.
#[derive(Debug, Default)]
pub(super) struct Layout {
    bytes: Vec<u8>,
    /// The offsets of the JSON members of this event. The event has output text. Of the members in
    /// [`Event`], only the token ids may follow the text.
    event: Event,
}

/// Maximum length in bytes of an event that is kept for the comparison.
const MAX_KEPT_BYTES: usize = 1 << 10;

impl Layout {
    /// Reads an event, with the result of [`Event::read`]: `None` if the event has another form.
    pub(super) fn read(&mut self, is_chat: bool, bytes: &[u8]) -> Option<Event> {
        if let Some(event) = self.read_alike(bytes) {
            return Some(event);
        }
        let event = Event::read(is_chat, bytes)?;
        if is_comparable(&event) && bytes.len() <= MAX_KEPT_BYTES {
            self.bytes.clear();
            self.bytes.extend_from_slice(bytes);
            self.event = event.clone();
        }
        Some(event)
    }

    /// Reads an event by comparison with the earlier event. `None`: the events differ in more than
    /// the text and the token ids.
    fn read_alike(&self, bytes: &[u8]) -> Option<Event> {
        let kept = &self.bytes;
        let kept_text = self.event.text.as_ref()?;
        let rest = bytes.strip_prefix(&kept[..kept_text.start])?;
        let length = find_string_end(rest).filter(|length| *length > 0)?;
        let text = kept_text.start..kept_text.start + length;
        let Some(kept_ids) = &self.event.ids else {
            let is_alike = bytes[text.end..] == kept[kept_text.end..];
            return is_alike.then(|| Event {
                text: Some(text),
                ..self.event.clone()
            });
        };
        let start = text.end + kept_ids.start - kept_text.end;
        let between = &kept[kept_text.end..kept_ids.start];
        let array = bytes[text.end..]
            .strip_prefix(between)?
            .strip_prefix(b"[")?;
        let is_number = |byte: &&u8| byte.is_ascii_digit() || matches!(byte, b',' | b' ');
        let ids = start..start + array.iter().take_while(is_number).count() + 2;
        let is_alike = bytes.get(ids.end - 1..)? == &kept[kept_ids.end - 1..];
        is_alike.then(|| Event {
            text: Some(text),
            ids: Some(ids),
            ..self.event.clone()
        })
    }
}

/// Whether later events can be compared with this event. In a later event, only the text and the bytes
/// after the text may have other offsets.
fn is_comparable(event: &Event) -> bool {
    let Some(text) = &event.text else {
        return false;
    };
    let is_before =
        |part: &Option<Range<usize>>| part.as_ref().is_none_or(|part| part.end <= text.start);
    let are_missing = [&event.usage, &event.prompt_ids, &event.finish];
    event.head.iter().chain([&event.role]).all(is_before)
        && are_missing.into_iter().all(Option::is_none)
        && event.ids.as_ref().is_none_or(|ids| ids.start >= text.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAT: &str = r#"{"id":"c1","object":"o","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"TEXT"},"logprobs":null,"finish_reason":null,"token_ids":[IDS]}]}"#;
    const TEXT: &str =
        r#"{"id":"c1","choices":[{"index":0,"text":"TEXT","finish_reason":null}],"model":"m"}"#;

    /// Events of one stream. Most of them occur twice in succession.
    fn events() -> Vec<String> {
        let others = [
            CHAT.replace("[IDS]", "null"),
            CHAT.replace("content", "reasoning"),
            CHAT.replace("finish_reason\":null", "finish_reason\":\"stop\""),
            CHAT.replace("\"index\":0", "\"index\":1"),
            TEXT.to_owned(),
            TEXT.replace("c1", "c22"),
        ];
        let mut data = Vec::new();
        for text in ["Hi", "", "\\\"", "a\\\\", "}]", "größe", "end\\n"] {
            for ids in [
                "7",
                "7,8",
                " 7 , 8 ",
                "",
                "null",
                "[1]",
                "\"7\"",
                "7]}],\"usage\":{\"a\":[1",
            ] {
                data.push(CHAT.replace("TEXT", text).replace("IDS", ids));
            }
            data.extend(
                others
                    .iter()
                    .map(|it| it.replace("TEXT", text).replace("IDS", "9")),
            );
        }
        data.push("[DONE]".to_owned());
        let mut events: Vec<String> = data
            .iter()
            .flat_map(|data| [format!("data: {data}\n\n"), format!("data: {data}\n\n")])
            .collect();
        events.push(format!("{}x", events[0]));
        events.push(events[0].trim_end().to_owned());
        events
    }

    #[test]
    fn earlier_events_do_not_change_the_result() {
        let events = events();
        for before in &events {
            for (is_chat, event) in [true, false]
                .into_iter()
                .flat_map(|api| events.iter().map(move |event| (api, event)))
            {
                let mut layout = Layout::default();
                let _ = layout.read(is_chat, before.as_bytes());
                let read = layout.read(is_chat, event.as_bytes());
                assert_eq!(
                    read,
                    Event::read(is_chat, event.as_bytes()),
                    "{before}{event}"
                );
            }
        }
    }

    #[test]
    fn similar_events_are_read_by_comparison() {
        let event = |text, ids| {
            format!(
                "data: {}\n\n",
                CHAT.replace("TEXT", text).replace("IDS", ids)
            )
        };
        let mut layout = Layout::default();
        let _ = layout.read(true, event("Hi", "1").as_bytes());
        assert!(
            layout
                .read_alike(event(" there", "22,333").as_bytes())
                .is_some()
        );
        assert!(layout.read_alike(event("", "22").as_bytes()).is_none());
    }
}
