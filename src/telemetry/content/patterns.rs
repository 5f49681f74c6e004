//! What is private, as one table: how each looks, and what else must be true of it.

use super::redact::Kind;
use regex::Regex;
use std::ops::RangeInclusive;
use std::sync::LazyLock;

/// One way that something private can look.
pub(super) struct Pattern {
    /// What it is.
    pub(super) kind: Kind,
    /// How it looks. If it has a group, only that is private.
    pub(super) looks: Regex,
    /// How many bytes of what was found are it, from the front. `None`: it is something else.
    pub(super) fits: fn(&Found<'_>) -> Option<usize>,
}

/// Something that looks like it, and where it stands.
pub(super) struct Found<'a> {
    pub(super) text: &'a str,
    pub(super) before: Option<char>,
    pub(super) after: Option<char>,
}

type Table = &'static [(Kind, &'static str, fn(&Found<'_>) -> Option<usize>)];

const TABLE: Table = &[
    (Kind::Email, r"[\p{L}\p{N}._%+'-]+@(?:[\p{L}\p{N}-]+\.)+\p{L}{2,}", whole),
    // International.
    (Kind::Phone, r"(?:\+|\b00)[ ]?\(?[1-9][\d ().\-/\u{a0}]{7,24}\d", phone),
    // With the prefix for other areas.
    (Kind::Phone, r"(?:\(0\d{1,5}\)|0\d{1,5})(?:[ .\-/\u{a0}]{1,2}\d{2,8}){1,5}", phone),
    // North American.
    (Kind::Phone, r"(?:1[ .-])?(?:\([2-9]\d\d\) ?|[2-9]\d\d[ .-])\d{3}[ .-]\d{4}", phone),
    // Indian.
    (Kind::Phone, r"[6-9]\d{4}[ -]\d{5}", phone),
    (
        Kind::Card,
        r"[2-6]\d{3}[ -]?(?:\d{4}[ -]?\d{4}[ -]?\d{1,4}(?:[ -]?\d{1,3})?|\d{6}[ -]?\d{4,5})",
        card,
    ),
    (Kind::Key, r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}", whole),
    (Kind::Key, r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})", whole),
    (Kind::Key, r"\b(?:glpat-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|npm_[A-Za-z0-9]{30,})", whole),
    (Kind::Key, r"\b(?:AKIA|ASIA)[A-Z0-9]{16}|\bAIza[A-Za-z0-9_-]{30,}", whole),
    (Kind::Key, r"\bxox[a-z]-[A-Za-z0-9-]{10,}", whole),
    // A JSON web token, or the beginning of one.
    (Kind::Key, r"\beyJ[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]*){0,2}", whole),
    // A PEM block without its end is one that was cut.
    (
        Kind::Key,
        r"(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)",
        whole,
    ),
    (Kind::Key, r"(?i)\b(?:bearer|basic)[ \t]+([A-Za-z0-9._~+/=-]{8,})", token),
    (
        Kind::Key,
        r#"(?i)(?:passw(?:or)?d|passphrase|pwd)["'\\]*[ \t]*[:=][ \t]*["'\\]*([^\s"'\\,;{}\[\]<>]{4,})"#,
        whole,
    ),
    (
        Kind::Key,
        r#"(?i)(?:key|token|secret|credential)s?["'\\]*[ \t]*[:=][ \t]*["'\\]*([A-Za-z0-9+/_.=-]{16,})"#,
        random,
    ),
];

/// The table, compiled once.
pub(super) static PATTERNS: LazyLock<Vec<Pattern>> = LazyLock::new(|| {
    let pattern = |(kind, looks, fits): &(Kind, &str, _)| {
        // A test compiles each of them.
        Regex::new(looks).ok().map(|looks| Pattern { kind: *kind, looks, fits: *fits })
    };
    TABLE.iter().filter_map(pattern).collect()
});

#[expect(clippy::unnecessary_wraps, reason = "the table has functions of one kind")]
fn whole(found: &Found<'_>) -> Option<usize> {
    Some(found.text.len())
}

/// 9 to 15 digits that stand alone, and are no date and no address of a machine.
fn phone(found: &Found<'_>) -> Option<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    if found.before.is_some_and(|c| is_part(c) || c == '.') || found.after.is_some_and(is_part) {
        return None;
    }
    if is_date(found.text) || is_dotted(found.text) {
        return None;
    }
    beginning(found, 9..=15, |_| true)
}

/// The longest beginning with so many digits that is not followed by another one and is right.
fn beginning(
    found: &Found<'_>,
    counts: RangeInclusive<usize>,
    is_right: fn(&str) -> bool,
) -> Option<usize> {
    let digits = found.text.bytes().enumerate().filter(|(_, byte)| byte.is_ascii_digit());
    let ends: Vec<usize> = digits.map(|(place, _)| place + 1).collect();
    let (least, most) = (*counts.start(), ends.len().min(*counts.end()));
    (least..=most).rev().map(|count| ends[count - 1]).find(|end| {
        let next = found.text[*end..].chars().next().or(found.after);
        next.is_none_or(|c| !c.is_ascii_digit()) && is_right(&found.text[..*end])
    })
}

/// `05.11.2026`, with whatever follows.
fn is_date(text: &str) -> bool {
    let mut parts = text.split(['.', '-', '/']);
    let lengths = [parts.next(), parts.next(), parts.next()];
    let lengths =
        lengths.map(|part| part.map_or(0, |part| part.split(' ').next().unwrap_or("").len()));
    matches!(lengths, [2, 2, 4] | [4, 2, 2])
}

/// Four numbers with dots, each of which fits in a byte.
fn is_dotted(text: &str) -> bool {
    let bytes = text.split('.').map(|part| part.parse::<u8>().ok());
    bytes.clone().count() == 4 && bytes.into_iter().all(|byte| byte.is_some())
}

/// The longest beginning of 13 to 19 digits whose check digit is right.
fn card(found: &Found<'_>) -> Option<usize> {
    if found.before.is_some_and(|c| c.is_ascii_digit()) {
        return None;
    }
    beginning(found, 13..=19, is_luhn)
}

/// ISO/IEC 7812: from the right, every second digit doubled; the sum of all digits ends in 0.
fn is_luhn(text: &str) -> bool {
    let digits: Vec<u32> = digits(text).collect();
    let weighed = digits.iter().rev().enumerate().map(|(place, digit)| {
        let weighed = digit * (1 + place as u32 % 2);
        weighed / 10 + weighed % 10
    });
    weighed.sum::<u32>() % 10 == 0 && digits.iter().any(|digit| *digit != digits[0])
}

fn digits(text: &str) -> impl Iterator<Item = u32> {
    text.chars().filter_map(|c| c.to_digit(10))
}

/// Long, or not a word.
fn token(found: &Found<'_>) -> Option<usize> {
    let is_word = found.text.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'.');
    (!is_word || found.text.len() >= 24).then_some(found.text.len())
}

/// Digits and letters that are spread as if drawn: 3 bits and more in each character.
fn random(found: &Found<'_>) -> Option<usize> {
    let mut counts = [0_u32; 256];
    found.text.bytes().for_each(|byte| counts[usize::from(byte)] += 1);
    let total = found.text.len() as f64;
    let entropy: f64 = counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| f64::from(*count) / total)
        .map(|share| -share * share.log2())
        .sum();
    let has_digit = found.text.bytes().any(|byte| byte.is_ascii_digit());
    (entropy >= 3.0 && has_digit).then_some(found.text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_of_the_table_compiles() {
        assert_eq!(PATTERNS.len(), TABLE.len());
    }
}
