//! Redacts private data in a text that is part of a JSON document.
//!
//! The patterns are applied twice: to the text as written, and to the text with its JSON escapes
//! decoded. In `\nsk-…` a key begins after an escape. In `a\u0040b.c` an escape is part of the
//! address. In tool arguments, escapes are themselves escaped. A path such as `C:\notes` contains a
//! backslash that is not an escape. Everything that either pass finds is redacted.

use super::patterns::{PATTERNS, PatternMatch, RedactionKind, RedactionPattern};
use std::ops::Range;

/// A text with its escapes decoded, and the source offset of each byte.
struct UnescapedText {
    text: String,
    /// For each byte of `text`: the offset, in the source text, of the character or escape from which
    /// the byte came. The last element is the length of the source text.
    source_offsets: Vec<usize>,
}

/// Replaces private data of these kinds by placeholders: the kind in brackets. Returns the redacted text and
/// the number of replaced passages.
pub(super) fn redact(text: &str, kinds: &[RedactionKind]) -> (String, u64) {
    let mut matches = find_matches(text, kinds);
    for (_, range) in &mut matches {
        // The letter of an escape such as `\n` is not part of the private data that follows it.
        let starts_in_escape = text[..range.start].ends_with('\\')
            && text[range.start..].starts_with(['n', 'r', 't', 'b', 'f']);
        range.start += usize::from(starts_in_escape);
    }
    let unescaped = UnescapedText::new(text);
    let offsets = &unescaped.source_offsets;
    matches.extend(
        find_matches(&unescaped.text, kinds)
            .into_iter()
            .map(|(kind, range)| (kind, offsets[range.start]..offsets[range.end])),
    );
    matches.sort_by_key(|(_, range)| (range.start, range.end));
    let mut redacted = String::with_capacity(text.len());
    let mut end = 0;
    let mut count = 0;
    for (kind, range) in matches {
        if range.start >= end {
            redacted.push_str(&text[end..range.start]);
            redacted.extend(["[", kind.as_str(), "]"]);
            count += 1;
        }
        end = end.max(range.end);
    }
    redacted.push_str(&text[end..]);
    (redacted, count)
}

fn find_matches(text: &str, kinds: &[RedactionKind]) -> Vec<(RedactionKind, Range<usize>)> {
    let patterns = PATTERNS
        .iter()
        .filter(|pattern| kinds.contains(&pattern.kind));
    patterns
        .flat_map(|pattern| find_pattern_matches(text, pattern))
        .collect()
}

/// Finds all matches of one pattern that the pattern accepts as private data. After a rejected
/// match the search continues at the second character of that match, because another match may
/// start inside it.
fn find_pattern_matches(
    text: &str,
    pattern: &RedactionPattern,
) -> Vec<(RedactionKind, Range<usize>)> {
    let mut matches = Vec::new();
    let mut position = 0;
    while let Some(groups) = pattern.regex.captures_at(text, position) {
        let Some(candidate) = groups.get(1).or(groups.get(0)) else {
            break;
        };
        let text_before = &text[..candidate.start()];
        let text_after = &text[candidate.end()..];
        let length = (pattern.matched_length)(&PatternMatch {
            text: candidate.as_str(),
            char_before: text_before.chars().next_back(),
            char_after: text_after.chars().next(),
        });
        let start = candidate.start();
        position = match length {
            Some(length) => {
                matches.push((pattern.kind, start..start + length));
                start + length
            }
            // If the expression has a capture group, the rejected text of the group is skipped completely.
            None if groups.get(1).is_some() => candidate.end(),
            None => start + text[start..].chars().next().map_or(1, char::len_utf8),
        };
    }
    matches
}

impl UnescapedText {
    fn new(text: &str) -> Self {
        let source_offsets = Vec::new();
        let mut unescaped = Self {
            text: String::with_capacity(text.len()),
            source_offsets,
        };
        let mut position = 0;
        while let Some(c) = text[position..].chars().next() {
            let (decoded, length) = match c {
                '\\' => decode_escape(&text[position..]),
                _ => (c, c.len_utf8()),
            };
            unescaped.text.push(decoded);
            unescaped
                .source_offsets
                .resize(unescaped.text.len(), position);
            position += length;
        }
        unescaped.source_offsets.push(text.len());
        unescaped
    }
}

/// Decodes the JSON escape at the start of `text`. Its backslash may itself be escaped once or
/// several times. Returns the decoded character and the length of the escape in bytes.
fn decode_escape(text: &str) -> (char, usize) {
    let backslashes = text.bytes().take_while(|byte| *byte == b'\\').count();
    let escape_code = &text[backslashes..];
    let decoded = match escape_code.bytes().next() {
        Some(b'n' | b'r') => '\n',
        Some(b't' | b'b' | b'f') => '\t',
        Some(quote @ (b'"' | b'/')) => char::from(quote),
        Some(b'u') => {
            let digits = escape_code
                .get(1..5)
                .and_then(|digits| u32::from_str_radix(digits, 16).ok());
            match digits {
                // Half of a surrogate pair is replaced by a letter, because it is no character.
                Some(code) => return (char::from_u32(code).unwrap_or('a'), backslashes + 5),
                None => return ('\\', backslashes),
            }
        }
        _ => return ('\\', backslashes),
    };
    (decoded, backslashes + 1)
}

#[cfg(test)]
mod tests;
