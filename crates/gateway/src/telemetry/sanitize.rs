//! Escapes untrusted text in log lines, so that it can neither end a line or a field nor send control sequences
//! to a terminal.

use std::fmt::{self, Display, Write};

/// Displays the value of one field of a text log line. A value of printable ASCII characters other
/// than spaces, quotes and backslashes is written unchanged. Any other value is quoted and escaped.
pub(super) struct LogFieldValue<T>(pub(super) T);

impl<T: Display> Display for LogFieldValue<T> {
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

/// Escapes characters that JSON permits but a terminal may interpret: control characters above U+001F, line
/// separators and bidirectional formatting characters. The result is equivalent JSON.
pub fn json(text: String) -> String {
    if is_plain_json(text.as_bytes()) {
        return text;
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_control_or_bidi(c) {
            // All characters to escape are below U+10000, so four digits suffice. Writing to a string cannot
            // fail.
            let _ = write!(escaped, "\\u{:04x}", u32::from(c));
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Whether [`json`] would not change a JSON text, because the text has only ASCII characters that JSON permits
/// and no terminal interprets.
pub(super) fn is_plain_json(text: &[u8]) -> bool {
    // Both searches test many bytes at a time.
    text.is_ascii() && memchr::memchr(0x7f, text).is_none()
}

/// Escapes control characters, line separators and bidirectional formatting characters in plain
/// text as `\u{…}`.
pub fn line(text: &str) -> String {
    let escape = |c: char| {
        if is_control_or_bidi(c) {
            c.escape_unicode().to_string()
        } else {
            c.to_string()
        }
    };
    text.chars().map(escape).collect()
}

/// Whether the character is a control character, a line separator or a bidirectional formatting
/// character.
pub fn is_control_or_bidi(c: char) -> bool {
    let is_separator_or_bidi =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    is_separator_or_bidi || c.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNSAFE_TEXT: &str = "a\u{1b}[31m\n\r\u{9b}2J\u{7f}\u{202e}\u{2028}\"\\ b=c\u{0}é";

    #[test]
    fn a_field_is_escaped_on_one_line() {
        let field = LogFieldValue(UNSAFE_TEXT).to_string();
        assert_eq!(
            field, r#""a\u{1b}[31m\n\r\u{9b}2J\u{7f}\u{202e}\u{2028}\"\\ b=c\0é""#,
            "only the quotes end the field"
        );
        assert!(!field.chars().any(is_control_or_bidi));
        assert_eq!(
            LogFieldValue("qwen/2.5-7b:x=1").to_string(),
            "qwen/2.5-7b:x=1"
        );
        assert_eq!(LogFieldValue("").to_string(), "\"\"");
    }

    #[test]
    fn an_escaped_line_parses_to_its_value() {
        let text = serde_json::to_string(UNSAFE_TEXT).unwrap();
        assert!(
            text.chars().any(is_control_or_bidi),
            "JSON leaves some characters unescaped"
        );
        let escaped = json(text);
        assert!(
            !escaped.chars().any(is_control_or_bidi) && escaped.contains('é'),
            "{escaped}"
        );
        assert_eq!(
            serde_json::from_str::<String>(&escaped).unwrap(),
            UNSAFE_TEXT
        );
        assert_eq!(line("a\u{1b}[1m\nb é"), "a\\u{1b}[1m\\u{a}b é");
    }
}
