//! Takes what is private out of a text that stands in a JSON document.
//!
//! It is looked at twice: as it stands, and as it reads. In `\nsk-…` the key begins behind an
//! escape, in `a\u0040b.c` an escape is part of it, and in the arguments of a tool escapes are
//! escaped again; but a path such as `C:\notes` has none. What either view finds is taken out.

use super::patterns::{Found, PATTERNS, Pattern};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// What can be taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Addresses of mail.
    Email,
    /// Telephone numbers.
    Phone,
    /// Numbers of payment cards.
    Card,
    /// Keys, tokens and passwords.
    Key,
}

/// A text as it reads, and where each of its bytes stands.
struct View {
    text: String,
    /// For each byte the beginning of what it stands for; at the end, the end.
    places: Vec<usize>,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Email, Self::Phone, Self::Card, Self::Key];

    /// What stands in its place.
    const fn placeholder(self) -> &'static str {
        match self {
            Self::Email => "[email]",
            Self::Phone => "[phone]",
            Self::Card => "[card]",
            Self::Key => "[key]",
        }
    }
}

/// The text without these, and how many were taken out.
pub(super) fn redact(text: &str, kinds: &[Kind]) -> (String, u64) {
    let mut found = find(text, kinds);
    for (_, range) in &mut found {
        // The letter of an escape is not the first one of a name.
        let is_escape = text[..range.start].ends_with('\\')
            && text[range.start..].starts_with(['n', 'r', 't', 'b', 'f']);
        range.start += usize::from(is_escape);
    }
    let view = View::of(text);
    found.extend(
        find(&view.text, kinds)
            .into_iter()
            .map(|(kind, range)| (kind, view.places[range.start]..view.places[range.end])),
    );
    found.sort_by_key(|(_, range)| (range.start, range.end));
    let (mut clean, mut at, mut count) = (String::with_capacity(text.len()), 0, 0);
    for (kind, range) in found {
        if range.start >= at {
            clean.push_str(&text[at..range.start]);
            clean.push_str(kind.placeholder());
            count += 1;
        }
        at = at.max(range.end);
    }
    clean.push_str(&text[at..]);
    (clean, count)
}

fn find(text: &str, kinds: &[Kind]) -> Vec<(Kind, Range<usize>)> {
    let wanted = PATTERNS.iter().filter(|pattern| kinds.contains(&pattern.kind));
    wanted.flat_map(|pattern| find_one(text, pattern)).collect()
}

/// What only looks like it may begin before what is it.
fn find_one(text: &str, pattern: &Pattern) -> Vec<(Kind, Range<usize>)> {
    let (mut all, mut at) = (Vec::new(), 0);
    while let Some(groups) = pattern.looks.captures_at(text, at) {
        let Some(found) = groups.get(1).or(groups.get(0)) else { break };
        let (before, after) = (&text[..found.start()], &text[found.end()..]);
        let fits = (pattern.fits)(&Found {
            text: found.as_str(),
            before: before.chars().next_back(),
            after: after.chars().next(),
        });
        let start = found.start();
        at = match fits {
            Some(length) => {
                all.push((pattern.kind, start..start + length));
                start + length
            }
            // A value as a whole is none.
            None if groups.get(1).is_some() => found.end(),
            None => start + text[start..].chars().next().map_or(1, char::len_utf8),
        };
    }
    all
}

// === impl View ===

impl View {
    fn of(text: &str) -> Self {
        let mut view = Self { text: String::with_capacity(text.len()), places: Vec::new() };
        let mut at = 0;
        while let Some(c) = text[at..].chars().next() {
            let (read, length) = match c {
                '\\' => escape(&text[at..]),
                _ => (c, c.len_utf8()),
            };
            view.text.push(read);
            view.places.resize(view.text.len(), at);
            at += length;
        }
        view.places.push(text.len());
        view
    }
}

/// What an escape reads as, however often its backslash was escaped itself, and its length.
fn escape(text: &str) -> (char, usize) {
    let backslashes = text.bytes().take_while(|byte| *byte == b'\\').count();
    let rest = &text[backslashes..];
    let read = match rest.bytes().next() {
        Some(b'n' | b'r') => '\n',
        Some(b't' | b'b' | b'f') => '\t',
        Some(quote @ (b'"' | b'/')) => char::from(quote),
        Some(b'u') => {
            let digits = rest.get(1..5).and_then(|digits| u32::from_str_radix(digits, 16).ok());
            match digits {
                // Half of a pair stands for a letter of some kind.
                Some(code) => return (char::from_u32(code).unwrap_or('a'), backslashes + 5),
                None => return ('\\', backslashes),
            }
        }
        _ => return ('\\', backslashes),
    };
    (read, backslashes + 1)
}

#[cfg(test)]
mod tests;
