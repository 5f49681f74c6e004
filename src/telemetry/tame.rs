//! Text of strangers on lines of ours: it can neither end a line or a field nor give a terminal
//! orders.

use std::fmt::{self, Display, Write};

/// A value of a line for people: as it is if it is plain, else quoted with what is special escaped.
pub(super) struct Field<T>(pub(super) T);

impl<T: Display> Display for Field<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
        if !text.is_empty() && text.bytes().all(is_plain) {
            f.write_str(&text)
        } else {
            write!(f, "{text:?}")
        }
    }
}

/// A JSON document on which nothing is left that a terminal obeys: JSON itself allows more control
/// characters than the first 32, and marks that turn the direction of what follows.
pub(super) fn json(text: String) -> String {
    let is_harmless = |byte: &u8| byte.is_ascii() && *byte != 0x7f;
    if text.as_bytes().iter().all(is_harmless) {
        return text;
    }
    let mut tame = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_order(c) {
            // All of them are below 0x10000. Writing to a string cannot fail.
            let _ = write!(tame, "\\u{:04x}", u32::from(c));
        } else {
            tame.push(c);
        }
    }
    tame
}

/// The same for text that is no document and has no quotes of its own.
pub(crate) fn line(text: &str) -> String {
    let escape = |c: char| if is_order(c) { c.escape_unicode().to_string() } else { c.to_string() };
    text.chars().map(escape).collect()
}

/// Controls beyond those that JSON escapes, ends of lines, and marks of direction.
fn is_order(c: char) -> bool {
    let is_mark =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    is_mark || c.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NASTY: &str = "a\u{1b}[31m\n\r\u{9b}2J\u{7f}\u{202e}\u{2028}\"\\ b=c\u{0}é";

    #[test]
    fn a_field_stays_on_its_line_and_between_its_quotes() {
        let field = Field(NASTY).to_string();
        assert_eq!(
            field, r#""a\u{1b}[31m\n\r\u{9b}2J\u{7f}\u{202e}\u{2028}\"\\ b=c\0é""#,
            "the quotes end it, and nothing before"
        );
        assert!(!field.chars().any(is_order));
        assert_eq!(Field("qwen/2.5-7b:x=1").to_string(), "qwen/2.5-7b:x=1");
        assert_eq!(Field("").to_string(), "\"\"");
    }

    #[test]
    fn a_document_says_the_same_without_orders() {
        let text = serde_json::to_string(NASTY).unwrap();
        assert!(text.chars().any(is_order), "JSON leaves some");
        let tame = json(text);
        assert!(!tame.chars().any(is_order) && tame.contains('é'), "{tame}");
        assert_eq!(serde_json::from_str::<String>(&tame).unwrap(), NASTY);
        assert_eq!(line("a\u{1b}[1m\nb é"), "a\\u{1b}[1m\\u{a}b é");
    }
}
