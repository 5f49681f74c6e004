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
/// counted the output of the earlier streams of this response as prompt. `earlier`: number of output tokens
/// of the earlier streams. `prompt_tokens`: number of prompt tokens of the first request, if known.
/// `drops_details`: whether `completion_tokens_details` becomes `null`, because an engine counts its own output
/// there, without that of earlier streams.
pub(super) fn add_usage(
    event: &[u8],
    range: &Range<usize>,
    earlier: u64,
    prompt_tokens: Option<u64>,
    drops_details: bool,
    edits: &mut Vec<Edit>,
) {
    let mut counts = [None, None, None, None];
    let mut on_count = |name: Range<usize>, value: Range<usize>| {
        let index = match &event[name] {
            b"prompt_tokens" => 0,
            b"completion_tokens" => 1,
            b"total_tokens" => 2,
            b"cached_tokens" => 3,
            _ => return,
        };
        counts[index] = Some((number::<u64>(&event[value.clone()]), value));
    };
    let _ = members(event, range.clone(), |name, value| match &event[name.clone()] {
        b"prompt_tokens_details" => drop(members(event, value, &mut on_count)),
        b"completion_tokens_details" if drops_details => edits.push((value, NULL.into())),
        _ => on_count(name, value),
    });
    let value = |index: usize| counts[index].as_ref().and_then(|(count, _)| *count);
    let prompt = prompt_tokens.or_else(|| value(0)?.checked_sub(earlier));
    // A sum that overflows is not that of an engine, so its count stays as it is.
    let completion = value(1).and_then(|completion| completion.checked_add(earlier));
    let total = prompt.zip(completion);
    let total = total.and_then(|(prompt, completion)| prompt.checked_add(completion));
    // The backend may also have had tokens of the earlier output in its cache, so the cached tokens are
    // limited to the tokens of the prompt.
    let cached = value(3).zip(prompt).map(|(cached, prompt)| cached.min(prompt));
    for (slot, count) in counts.into_iter().zip([prompt, completion, total, cached]) {
        if let (Some((_, range)), Some(count)) = (slot, count) {
            edits.push((range, count.to_string().into_bytes().into()));
        }
    }
}
