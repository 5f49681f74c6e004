//! A sample of the text of a response, which shows damaged output. An engine with damaged weights repeats one
//! token or generates random tokens. An engine with the tokenizer of another model writes unreadable
//! characters.

/// Hashes and counts of the first pieces of text of a response. In a stream, a piece is about one token. The
/// text itself is not stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TextSample {
    /// One bit for each value of the hash modulo 128: whether a piece had it.
    seen: u128,
    pieces: u8,
    /// Number of pieces whose hash differed from those of all earlier pieces.
    distinct: u8,
    /// Total number of bytes of the pieces.
    bytes: u16,
    /// Bytes of replacement characters (U+FFFD) and control characters.
    damaged: u16,
    /// Bytes of other characters outside ASCII.
    non_ascii: u16,
    /// The first byte of the answer that is not white space. `None`: no such byte has arrived.
    answer_start: Option<u8>,
}

const MAX_PIECES: u8 = 32;
/// Number of bytes of a piece that the sample counts. Further bytes are ignored.
const MAX_PIECE_BYTES: usize = 512;
/// Number of bytes of a piece that are hashed.
const HASHED_BYTES: usize = 16;
/// The constants of the hash function FNV-1a with 32 bits.
const FNV_OFFSET: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;
/// Length in bytes of an escaped character, such as `\u00e9`.
const ESCAPE_BYTES: usize = 6;

impl TextSample {
    /// Number of pieces that a full sample has.
    pub const PIECES: f64 = MAX_PIECES as f64;

    /// Whether the sample still accepts pieces.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.pieces < MAX_PIECES
    }

    /// Adds a piece of text, escaped as in JSON. `is_answer`: the text is part of the answer. `false`: it is
    /// reasoning.
    #[inline]
    pub(super) fn add(&mut self, text: &[u8], is_answer: bool) {
        if is_answer && self.answer_start.is_none() {
            self.answer_start = first_visible(text);
        }
        if !self.is_open() || text.is_empty() {
            return;
        }
        let text = &text[..text.len().min(MAX_PIECE_BYTES)];
        let mut hash = FNV_OFFSET;
        let mut is_plain = text.len() <= HASHED_BYTES;
        for byte in text.iter().take(HASHED_BYTES) {
            hash = (hash ^ u32::from(*byte)).wrapping_mul(FNV_PRIME);
            is_plain &= matches!(byte, b' '..=b'[' | b']'..=b'~');
        }
        let bit = 1_u128 << ((hash ^ hash >> 16) % u128::BITS);
        self.pieces += 1;
        self.distinct += u8::from(self.seen & bit == 0);
        self.seen |= bit;
        // The sum fits into 16 bits: 32 pieces of 512 bytes are 16 KiB.
        self.bytes += text.len() as u16;
        if !is_plain {
            self.count_characters(text);
        }
    }

    /// Counts the bytes of the characters that are damaged or outside ASCII.
    fn count_characters(&mut self, text: &[u8]) {
        let mut rest = text;
        while !rest.is_empty() {
            let character = Character::first_of(rest);
            let length = character.bytes.min(rest.len());
            match character.kind {
                CharacterKind::Ascii => {}
                CharacterKind::Damaged => self.damaged += length as u16,
                CharacterKind::Other => self.non_ascii += length as u16,
            }
            rest = &rest[length..];
        }
    }

    /// Number of different hashes among the first 32 pieces. Two different pieces can have one hash. `None`:
    /// the response had fewer pieces.
    pub fn distinct(&self) -> Option<u8> {
        (!self.is_open()).then_some(self.distinct)
    }

    /// Number of bytes of the first 32 pieces. `None`: the response had fewer than 32 pieces.
    pub fn bytes(&self) -> Option<u16> {
        (!self.is_open()).then_some(self.bytes)
    }

    /// The share of bytes that belong to replacement characters (U+FFFD) or control characters. `None`: the
    /// response had no text.
    pub fn damaged_share(&self) -> Option<f64> {
        (self.bytes > 0).then(|| f64::from(self.damaged) / f64::from(self.bytes))
    }

    /// The share of bytes that belong to other characters outside ASCII. `None`: the response had fewer than 32 pieces.
    pub fn non_ascii_share(&self) -> Option<f64> {
        self.bytes()
            .map(|bytes| f64::from(self.non_ascii) / f64::from(bytes))
    }

    /// The first byte of the answer that is not white space. `None`: no such byte has arrived.
    pub fn answer_start(&self) -> Option<u8> {
        self.answer_start
    }
}

/// A character of a text that is escaped as in JSON.
struct Character {
    kind: CharacterKind,
    /// Length of the encoded character in bytes. The text can end before the last byte.
    bytes: usize,
}

enum CharacterKind {
    Ascii,
    /// A replacement or control character.
    Damaged,
    /// Another character outside ASCII.
    Other,
}

impl Character {
    fn first_of(text: &[u8]) -> Self {
        let kind = match text {
            [0xEF, 0xBF, 0xBD, ..] => {
                return Self {
                    kind: CharacterKind::Damaged,
                    bytes: 3,
                };
            }
            [b'\\', b'u', digits @ ..] => {
                return Self {
                    kind: CharacterKind::of_escape(digits),
                    bytes: ESCAPE_BYTES,
                };
            }
            [b'\\', ..] => {
                return Self {
                    kind: CharacterKind::Ascii,
                    bytes: 2,
                };
            }
            [0..=0x1F | 0x7F, ..] => CharacterKind::Damaged,
            [0x80..=0xFF, ..] => CharacterKind::Other,
            _ => CharacterKind::Ascii,
        };
        Self { kind, bytes: 1 }
    }
}

impl CharacterKind {
    /// The kind of an escaped character. `digits`: the hexadecimal digits after `\u`.
    fn of_escape(digits: &[u8]) -> Self {
        let digits = digits.get(..4).unwrap_or_default();
        let digits = str::from_utf8(digits).unwrap_or_default();
        match u32::from_str_radix(digits, 16) {
            // Tabs, line breaks and the escape character (for colours in terminals) are not damage.
            Ok(0x09 | 0x0A | 0x0D | 0x1B | 0x20..=0x7E) | Err(_) => Self::Ascii,
            Ok(0..0x20 | 0x7F..=0x9F | 0xFFFD) => Self::Damaged,
            Ok(_) => Self::Other,
        }
    }
}

/// The first byte that is not white space.
fn first_visible(text: &[u8]) -> Option<u8> {
    let mut rest = text;
    loop {
        rest = match rest {
            [b' ' | b'\t' | b'\n' | b'\r', rest @ ..] | [b'\\', b'n' | b't' | b'r', rest @ ..] => {
                rest
            }
            [b'\\', escaped, ..] => return Some(*escaped),
            [first, ..] => return Some(*first),
            [] => return None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pieces: impl Iterator<Item = String>) -> TextSample {
        let mut sample = TextSample::default();
        pieces.for_each(|piece| sample.add(piece.as_bytes(), true));
        sample
    }

    #[test]
    fn a_repeated_token_has_one_piece() {
        let sample = of((0..90).map(|_| "!".to_owned()));
        assert_eq!((sample.distinct(), sample.bytes()), (Some(1), Some(32)));
        let varied = of((0..90).map(|number| format!(" word{number}")));
        assert!(varied.distinct().is_some_and(|distinct| distinct > 24));
    }

    #[test]
    fn a_short_stream_shows_no_variety() {
        assert_eq!(of((0..31).map(|_| "!".to_owned())).distinct(), None);
    }

    #[test]
    fn replacement_and_control_characters_are_damaged() {
        let share = |text: &str| of([text.to_owned()].into_iter()).damaged_share();
        assert_eq!(share(""), None);
        for healthy in [
            "a plain text",
            r"é ü \n \u00e9 \u000a \\u 中文 😀",
            r"\",
            r"\u00",
        ] {
            assert_eq!(share(healthy), Some(0.0), "{healthy}");
        }
        for damaged in ["\u{FFFD}", r"\ufffd\uFFFD", r"\u0007", "\u{1}"] {
            assert_eq!(share(damaged), Some(1.0), "{damaged}");
        }
        assert_eq!(share("abc\u{FFFD}"), Some(0.5));
    }

    #[test]
    fn other_scripts_are_counted() {
        let share = |text: &str| of((0..32).map(|_| text.to_owned())).non_ascii_share();
        assert_eq!(share("word"), Some(0.0));
        assert_eq!(share("中"), Some(1.0));
        assert_eq!(share(r"\u0416"), Some(1.0));
        assert_eq!(share("Ġthe"), Some(0.4));
    }

    #[test]
    fn the_answer_starts_after_white_space() {
        let start = |text: &str| of([text.to_owned()].into_iter()).answer_start();
        assert_eq!(start(r"\n\n {"), Some(b'{'));
        assert_eq!(start(r#"\"a\""#), Some(b'"'));
        assert_eq!(start(r" \n"), None);
    }
}
