//! A short name from a header, such as that of a client program or of a server.

use http::{HeaderMap, HeaderName};
use std::fmt;

/// A name of at most 23 characters, stored without allocation. It has only letters, digits and a few signs, so
/// log lines need not escape it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShortName {
    length: u8,
    bytes: [u8; ShortName::MAX],
}

impl ShortName {
    const MAX: usize = 23;

    /// The first word of a header. `None`: it is missing, or has none.
    pub fn of_header(headers: &HeaderMap, name: &HeaderName) -> Option<Self> {
        Self::first_word(headers.get(name)?.as_bytes())
    }

    /// The first word of a header value, such as `nginx/1.27` or `openai-python/2.9`. `None`: it has none.
    pub fn first_word(value: &[u8]) -> Option<Self> {
        let is_word = |byte: &&u8| byte.is_ascii_alphanumeric() || b"._/+-".contains(byte);
        let word = value.iter().take(Self::MAX).take_while(is_word);
        let mut name = Self {
            length: 0,
            bytes: [0; Self::MAX],
        };
        for (place, byte) in name.bytes.iter_mut().zip(word) {
            *place = *byte;
            name.length += 1;
        }
        (name.length > 0).then_some(name)
    }

    /// The name as a string slice.
    pub fn as_str(&self) -> &str {
        let name = self.bytes.get(..usize::from(self.length));
        std::str::from_utf8(name.unwrap_or_default()).unwrap_or_default()
    }
}

impl fmt::Display for ShortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ShortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_safe_word_counts() {
        let word = |value: &str| ShortName::first_word(value.as_bytes()).map(|it| it.to_string());
        assert_eq!(word("nginx/1.27 (Debian)").as_deref(), Some("nginx/1.27"));
        assert_eq!(word("Coder<script>").as_deref(), Some("Coder"));
        assert_eq!(word(&"x".repeat(99)), Some("x".repeat(23)));
        assert_eq!(word(" \n"), None);
        assert_eq!(word("ü"), None);
    }
}
