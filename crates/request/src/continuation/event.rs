//! The JSON members of one event of a stream of chat completions or completions.

use memchr::{memchr, memchr2};
use std::ops::Range;
use tokenweir_protocol::json::members::{visit_elements, visit_members};

/// The JSON members of one event. Ranges are the offsets of JSON values in the bytes of the event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Event {
    pub is_done: bool,
    pub is_error: bool,
    /// The values of the members named in [`HEAD`].
    pub head: [Option<Range<usize>>; HEAD.len()],
    pub usage: Option<Range<usize>>,
    /// The array of the token ids of the prompt.
    pub prompt_ids: Option<Range<usize>>,
    pub choices: usize,
    /// Whether the first choice of the event has another index than 0.
    pub is_other_choice: bool,
    /// The array of the token ids of the output.
    pub ids: Option<Range<usize>>,
    /// The offsets of the text, without its quotes. `None`: the event has no text, or an empty
    /// text.
    pub text: Option<Range<usize>>,
    pub is_reasoning: bool,
    /// Whether the event has a part of a tool call, or output of an unknown kind.
    pub has_other_output: bool,
    /// The member `role` of the delta, with the comma after it.
    pub role: Option<Range<usize>>,
    /// Whether the `delta` object has no member.
    pub is_empty_delta: bool,
    /// The finish reason, without its quotes.
    pub finish: Option<Range<usize>>,
    pub has_logprobs: bool,
}

/// The names of the members that all events of a stream repeat.
pub(super) const HEAD: [&str; 4] = ["id", "object", "created", "model"];

/// Returns the offset after the blank line that ends the event at `at`. `None`: the event is incomplete.
pub(super) fn event_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += memchr2(b'\n', b'\r', bytes.get(at..)?)? + 1;
        match bytes.get(at - 1..)? {
            [b'\n', b'\n', ..] | [b'\r', b'\r', ..] => return Some(at + 1),
            [b'\n', b'\r', b'\n', ..] => return Some(at + 2),
            _ => {}
        }
    }
}

/// The elements of a JSON array of numbers. An element that is no number is `None`. Returns `None` if
/// the text is no array.
pub(super) fn numbers(array: &[u8]) -> Option<impl Iterator<Item = Option<u32>>> {
    let inner = array.strip_prefix(b"[")?.strip_suffix(b"]")?.trim_ascii();
    let number = |part: &[u8]| std::str::from_utf8(part.trim_ascii()).ok()?.parse().ok();
    // `split` returns one part of an empty array.
    let parts = (!inner.is_empty()).then(|| inner.split(|byte| *byte == b','));
    Some(parts.into_iter().flatten().map(number))
}

impl Event {
    /// Reads an event with exactly one `data` line. `None`: the event has another form.
    pub(super) fn read(is_chat: bool, bytes: &[u8]) -> Option<Self> {
        let line_end = memchr(b'\n', bytes)?;
        if !bytes.get(line_end..)?.trim_ascii().is_empty() {
            return None;
        }
        let line = bytes.get(..line_end)?.trim_ascii_end();
        let data = line.strip_prefix(b"data:")?;
        let data = data.strip_prefix(b" ").unwrap_or(data);
        let data = line.len() - data.len()..line.len();
        let mut event = Self::default();
        if &bytes[data.clone()] == b"[DONE]" {
            event.is_done = true;
            return Some(event);
        }
        event.read_members(is_chat, bytes, data)?;
        Some(event)
    }

    fn read_members(&mut self, is_chat: bool, bytes: &[u8], data: Range<usize>) -> Option<()> {
        let mut choices = None;
        members(bytes, data, |name, value| match &bytes[name] {
            b"usage" if bytes[value.start] == b'{' => self.usage = Some(value),
            b"prompt_token_ids" if bytes[value.start] == b'[' => self.prompt_ids = Some(value),
            b"error" => self.is_error = bytes[value] != *b"null",
            b"choices" => choices = Some(value),
            name => {
                if let Some(index) = HEAD.iter().position(|head| head.as_bytes() == name) {
                    self.head[index] = Some(value);
                }
            }
        })?;
        let Some(choices) = choices else {
            return Some(());
        };
        let mut first = None;
        visit_elements(&bytes[choices.clone()], |choice| {
            self.choices += 1;
            first.get_or_insert(shifted(choices.start, &choice));
        })?;
        first.map_or(Some(()), |choice| self.read_choice(is_chat, bytes, choice))
    }

    fn read_choice(&mut self, is_chat: bool, bytes: &[u8], choice: Range<usize>) -> Option<()> {
        let mut delta = None;
        members(bytes, choice, |name, value| match &bytes[name] {
            b"index" => self.is_other_choice = bytes[value] != *b"0",
            b"delta" if is_chat => delta = Some(value),
            b"text" if !is_chat => self.text = string(bytes, &value),
            b"finish_reason" => self.finish = string(bytes, &value),
            b"token_ids" if bytes[value.start] == b'[' => self.ids = Some(value),
            b"prompt_token_ids" if bytes[value.start] == b'[' => self.prompt_ids = Some(value),
            b"logprobs" => self.has_logprobs = bytes[value] != *b"null",
            _ => {}
        })?;
        delta.map_or(Some(()), |delta| self.read_delta(bytes, delta))
    }

    fn read_delta(&mut self, bytes: &[u8], delta: Range<usize>) -> Option<()> {
        self.is_empty_delta = true;
        members(bytes, delta, |name, value| {
            self.is_empty_delta = false;
            let is_null = bytes[value.clone()] == *b"null";
            match &bytes[name.clone()] {
                b"role" => {
                    let comma = bytes[value.end..]
                        .iter()
                        .take_while(|byte| **byte == b',')
                        .count();
                    self.role = Some(name.start - 1..value.end + comma);
                }
                b"content" => {
                    let text = string(bytes, &value);
                    self.has_other_output |= self.is_reasoning && text.is_some();
                    self.text = self.text.take().or(text);
                }
                b"reasoning" | b"reasoning_content" => {
                    let text = string(bytes, &value);
                    let is_content = self.text.is_some() && !self.is_reasoning;
                    self.has_other_output |= is_content && text.is_some();
                    self.is_reasoning |= text.is_some();
                    // Some versions of vLLM write both members, of which the first counts.
                    self.text = self.text.take().or(text);
                }
                b"tool_calls" if bytes[value.clone()] == *b"[]" => {}
                _ => self.has_other_output |= !is_null,
            }
        })
    }
}

/// Calls `visit` with the offsets of the name and the value of each member of the JSON object at `object`.
/// Returns `None` if this value is no object.
pub(super) fn members(
    bytes: &[u8],
    object: Range<usize>,
    mut visit: impl FnMut(Range<usize>, Range<usize>),
) -> Option<()> {
    let start = object.start;
    visit_members(&bytes[object], |member| {
        visit(shifted(start, &member.name), shifted(start, &member.value));
    })
}

fn shifted(by: usize, range: &Range<usize>) -> Range<usize> {
    range.start + by..range.end + by
}

/// The offsets of the contents of a JSON string. `None`: the value is no string, or an empty one.
fn string(bytes: &[u8], value: &Range<usize>) -> Option<Range<usize>> {
    let is_string = bytes[value.start] == b'"' && value.len() > 2;
    is_string.then(|| value.start + 1..value.end - 1)
}
