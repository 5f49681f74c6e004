//! Edits of one event of a stream: byte ranges and their replacements.

use super::event::members;
use bytes::BytesMut;
use std::borrow::Cow;
use std::ops::Range;
use tokenweir_protocol::json::members::number;

pub(super) const NULL: &[u8] = b"null";

/// The bytes of the event that are replaced, and their replacement.
pub(super) type Edit = (Range<usize>, Cow<'static, [u8]>);

/// Appends `event` to `edited` with these edits, which do not overlap, and empties `edits`.
pub(super) fn apply(edits: &mut Vec<Edit>, event: &[u8], edited: &mut BytesMut) {
    edits.sort_unstable_by_key(|(range, _)| range.start);
    let mut at = 0;
    for (range, replacement) in edits.drain(..) {
        edited.extend_from_slice(&event[at..range.start]);
        edited.extend_from_slice(&replacement);
        at = range.end;
    }
    edited.extend_from_slice(&event[at..]);
}

/// Adds the edits that correct the counts of the `usage` object at `range`. The backend that wrote the object
/// counted the output of earlier streams of this response as prompt. `earlier`: number of output tokens of the
/// earlier streams. `prompt_tokens`: number of prompt tokens of the first request, if known. `drops_details`:
/// whether `completion_tokens_details` becomes `null`, because the engine counted only its own output there.
pub(super) fn add_usage(
    event: &[u8],
    range: &Range<usize>,
    earlier: u64,
    prompt_tokens: Option<u64>,
    drops_details: bool,
    edits: &mut Vec<Edit>,
) {
    let mut counts = UsageCounts::default();
    let _ = members(event, range.clone(), |name, value| {
        match &event[name.clone()] {
            b"prompt_tokens_details" => {
                let _ = members(event, value, |name, value| counts.read(event, name, value));
            }
            b"completion_tokens_details" if drops_details => edits.push((value, NULL.into())),
            _ => counts.read(event, name, value),
        }
    });
    let UsageCounts {
        prompt,
        completion,
        total,
        cached,
    } = counts;
    let new_prompt = prompt_tokens.or_else(|| prompt.as_ref()?.number?.checked_sub(earlier));
    // No engine reports counts whose sum overflows, so the count stays unchanged.
    let new_completion = completion
        .as_ref()
        .and_then(|count| count.number?.checked_add(earlier));
    if let Some(new_prompt) = new_prompt {
        let new_total = new_completion.and_then(|completion| new_prompt.checked_add(completion));
        // The backend may also have cached tokens of the earlier output, so the cached tokens are limited to
        // the prompt tokens.
        let cached_number = cached.as_ref().and_then(|count| count.number);
        let new_cached = cached_number.map(|cached| cached.min(new_prompt));
        replace(edits, total, new_total);
        replace(edits, cached, new_cached);
    }
    replace(edits, prompt, new_prompt);
    replace(edits, completion, new_completion);
}

/// The counts of a `usage` object. `None`: the object lacks the count.
#[derive(Default)]
struct UsageCounts {
    prompt: Option<Count>,
    completion: Option<Count>,
    total: Option<Count>,
    cached: Option<Count>,
}

/// A count, and the range of its value in the event.
struct Count {
    /// The number. `None`: the value is no count.
    number: Option<u64>,
    range: Range<usize>,
}

impl UsageCounts {
    fn read(&mut self, event: &[u8], name: Range<usize>, value: Range<usize>) {
        let slot = match &event[name] {
            b"prompt_tokens" => &mut self.prompt,
            b"completion_tokens" => &mut self.completion,
            b"total_tokens" => &mut self.total,
            b"cached_tokens" => &mut self.cached,
            _ => return,
        };
        *slot = Some(Count {
            number: number(&event[value.clone()]),
            range: value,
        });
    }
}

/// Adds the edit that replaces a count, if both an old and a new count exist.
fn replace(edits: &mut Vec<Edit>, old: Option<Count>, new: Option<u64>) {
    if let (Some(old), Some(new)) = (old, new) {
        edits.push((old.range, new.to_string().into_bytes().into()));
    }
}
