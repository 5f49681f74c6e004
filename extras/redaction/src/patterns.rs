//! The table of built-in redaction patterns. Each pattern has a regular expression for one kind of
//! private data, and a function that checks each match of the expression.

use regex::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use std::ops::RangeInclusive;
use std::sync::LazyLock;
use tokenweir_protocol::named_enum;

named_enum! {
    /// Kinds of private data that the built-in patterns redact.
    #[derive(Hash, Deserialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum RedactionKind {
        /// Email addresses.
        Email = "email",
        /// Telephone numbers.
        Phone = "phone",
        /// Payment card numbers.
        Card = "card",
        /// Keys, tokens and passwords.
        Key = "key",
    }
}

/// One pattern of private data.
pub(super) struct RedactionPattern {
    /// The kind of private data.
    pub(super) kind: RedactionKind,
    /// The regular expression. If it has a capture group, only the text of the group is redacted.
    pub(super) regex: Regex,
    /// Checks a match. Returns the number of bytes that are private data, from the start of the
    /// match. `None`: the match is not private data.
    pub(super) matched_length: fn(&PatternMatch<'_>) -> Option<usize>,
}

/// A match of a regular expression, and the characters next to the match.
pub(super) struct PatternMatch<'a> {
    /// The matched text, or the text of the group if the expression has a group.
    pub(super) text: &'a str,
    /// The character before `text`. `None`: `text` is at the start of the searched text.
    pub(super) char_before: Option<char>,
    /// The character after `text`. `None`: `text` is at the end of the searched text.
    pub(super) char_after: Option<char>,
}

type PatternTable = &'static [(
    RedactionKind,
    &'static str,
    fn(&PatternMatch<'_>) -> Option<usize>,
)];

const PATTERN_TABLE: PatternTable = &[
    (
        RedactionKind::Email,
        r"[\p{L}\p{N}._%+'-]+@(?:[\p{L}\p{N}-]+\.)+\p{L}{2,}",
        match_everything,
    ),
    // International telephone numbers.
    (
        RedactionKind::Phone,
        r"(?:\+|\b00)[ ]?\(?[1-9][\d ().\-/\u{a0}]{7,24}\d",
        match_phone,
    ),
    // National telephone numbers that begin with the trunk prefix 0.
    (
        RedactionKind::Phone,
        r"(?:\(0\d{1,5}\)|0\d{1,5})(?:[ .\-/\u{a0}]{1,2}\d{2,8}){1,5}",
        match_phone,
    ),
    // North American telephone numbers.
    (
        RedactionKind::Phone,
        r"(?:1[ .-])?(?:\([2-9]\d\d\) ?|[2-9]\d\d[ .-])\d{3}[ .-]\d{4}",
        match_phone,
    ),
    // Indian telephone numbers.
    (RedactionKind::Phone, r"[6-9]\d{4}[ -]\d{5}", match_phone),
    (
        RedactionKind::Card,
        r"[2-6]\d{3}[ -]?(?:\d{4}[ -]?\d{4}[ -]?\d{1,4}(?:[ -]?\d{1,3})?|\d{6}[ -]?\d{4,5})",
        match_card,
    ),
    (
        RedactionKind::Key,
        r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}",
        match_everything,
    ),
    (
        RedactionKind::Key,
        r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})",
        match_everything,
    ),
    (
        RedactionKind::Key,
        r"\b(?:glpat-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|npm_[A-Za-z0-9]{30,})",
        match_everything,
    ),
    (
        RedactionKind::Key,
        r"\b(?:AKIA|ASIA)[A-Z0-9]{16}|\bAIza[A-Za-z0-9_-]{30,}",
        match_everything,
    ),
    (
        RedactionKind::Key,
        r"\bxox[a-z]-[A-Za-z0-9-]{10,}",
        match_everything,
    ),
    // A JSON web token, or the beginning of a truncated token.
    (
        RedactionKind::Key,
        r"\beyJ[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]*){0,2}",
        match_everything,
    ),
    // A private key in PEM format. A block that was truncated has no end line.
    (
        RedactionKind::Key,
        r"(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)",
        match_everything,
    ),
    (
        RedactionKind::Key,
        r"(?i)\b(?:bearer|basic)[ \t]+([A-Za-z0-9._~+/=-]{8,})",
        match_auth_token,
    ),
    (
        RedactionKind::Key,
        r#"(?i)(?:passw(?:or)?d|passphrase|pwd)["'\\]*[ \t]*[:=][ \t]*["'\\]*([^\s"'\\,;{}\[\]<>]{4,})"#,
        match_everything,
    ),
    (
        RedactionKind::Key,
        r#"(?i)(?:key|token|secret|credential)s?["'\\]*[ \t]*[:=][ \t]*["'\\]*([A-Za-z0-9+/_.=-]{16,})"#,
        match_high_entropy,
    ),
];

pub(super) static PATTERNS: LazyLock<Vec<RedactionPattern>> = LazyLock::new(|| {
    let pattern = |(kind, regex, matched_length): &(RedactionKind, &str, _)| {
        // A test verifies that every pattern compiles.
        let regex = Regex::new(regex).ok()?;
        Some(RedactionPattern {
            kind: *kind,
            regex,
            matched_length: *matched_length,
        })
    };
    PATTERN_TABLE.iter().filter_map(pattern).collect()
});

/// Accepts every match as private data, with its whole text.
#[expect(
    clippy::unnecessary_wraps,
    reason = "all functions of the table have one type"
)]
fn match_everything(candidate: &PatternMatch<'_>) -> Option<usize> {
    Some(candidate.text.len())
}

/// Accepts 9 to 15 digits that are not a part of a longer word or number, of a date or of an IPv4
/// address.
fn match_phone(candidate: &PatternMatch<'_>) -> Option<usize> {
    let is_word_char = |c: char| c.is_alphanumeric() || c == '_';
    if candidate
        .char_before
        .is_some_and(|c| is_word_char(c) || c == '.')
        || candidate.char_after.is_some_and(is_word_char)
    {
        return None;
    }
    if is_date(candidate.text) || is_ipv4_address(candidate.text) {
        return None;
    }
    longest_valid_prefix(candidate, 9..=15, |_| true)
}

/// Returns the length in bytes of the longest prefix of the match that ends with a digit, is not
/// followed by a digit and satisfies `is_valid`. The number of its digits must be in the range
/// `counts`. `None`: there is no such prefix.
fn longest_valid_prefix(
    candidate: &PatternMatch<'_>,
    counts: RangeInclusive<usize>,
    is_valid: fn(&str) -> bool,
) -> Option<usize> {
    let digits = candidate
        .text
        .bytes()
        .enumerate()
        .filter(|(_, byte)| byte.is_ascii_digit());
    let ends: Vec<usize> = digits.map(|(index, _)| index + 1).collect();
    let min = *counts.start();
    let max = ends.len().min(*counts.end());
    (min..=max).rev().map(|count| ends[count - 1]).find(|end| {
        let next = candidate.text[*end..]
            .chars()
            .next()
            .or(candidate.char_after);
        next.is_none_or(|c| !c.is_ascii_digit()) && is_valid(&candidate.text[..*end])
    })
}

/// Whether the text begins like a date with numbers, such as `05.11.2026` or `2026-11-05`. Any text
/// may follow the date.
fn is_date(text: &str) -> bool {
    let mut parts = text.split(['.', '-', '/']);
    let lengths = [parts.next(), parts.next(), parts.next()];
    let lengths =
        lengths.map(|part| part.map_or(0, |part| part.split(' ').next().unwrap_or("").len()));
    matches!(lengths, [2, 2, 4] | [4, 2, 2])
}

/// Whether the text is four numbers from 0 to 255, separated by dots.
fn is_ipv4_address(text: &str) -> bool {
    let bytes = text.split('.').map(|part| part.parse::<u8>().ok());
    bytes.clone().count() == 4 && bytes.into_iter().all(|byte| byte.is_some())
}

/// Accepts the longest prefix of the match that has 13 to 19 digits and a valid check digit.
fn match_card(candidate: &PatternMatch<'_>) -> Option<usize> {
    if candidate.char_before.is_some_and(|c| c.is_ascii_digit()) {
        return None;
    }
    longest_valid_prefix(candidate, 13..=19, has_valid_luhn_checksum)
}

/// Whether the last digit is a valid check digit of the Luhn algorithm (ISO/IEC 7812): every second
/// digit from the right is doubled, and the sum of all digits must be divisible by 10. A number
/// that repeats one digit is not valid.
fn has_valid_luhn_checksum(text: &str) -> bool {
    let digits: Vec<u32> = decimal_digits(text).collect();
    let weighted = digits.iter().rev().enumerate().map(|(index, digit)| {
        let weighted = digit * (1 + index as u32 % 2);
        weighted / 10 + weighted % 10
    });
    weighted.sum::<u32>() % 10 == 0 && digits.iter().any(|digit| *digit != digits[0])
}

fn decimal_digits(text: &str) -> impl Iterator<Item = u32> {
    text.chars().filter_map(|c| c.to_digit(10))
}

/// Accepts a text that has at least 24 bytes or contains a character other than letters and dots.
/// Shorter texts of letters and dots are words of natural language.
fn match_auth_token(candidate: &PatternMatch<'_>) -> Option<usize> {
    let is_word = candidate
        .text
        .bytes()
        .all(|byte| byte.is_ascii_alphabetic() || byte == b'.');
    (!is_word || candidate.text.len() >= 24).then_some(candidate.text.len())
}

/// Accepts a text that contains a digit and has an entropy of at least 3 bits per byte, as random
/// keys have.
fn match_high_entropy(candidate: &PatternMatch<'_>) -> Option<usize> {
    let mut counts = [0_u32; 256];
    candidate
        .text
        .bytes()
        .for_each(|byte| counts[usize::from(byte)] += 1);
    let total = candidate.text.len() as f64;
    let entropy: f64 = counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| f64::from(*count) / total)
        .map(|share| -share * share.log2())
        .sum();
    let has_digit = candidate.text.bytes().any(|byte| byte.is_ascii_digit());
    (entropy >= 3.0 && has_digit).then_some(candidate.text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_redaction_pattern_compiles() {
        assert_eq!(PATTERNS.len(), PATTERN_TABLE.len());
    }
}
