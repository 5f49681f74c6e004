//! Where a string ends.

use memchr::memchr2;

/// Strings up to so many words of eight bytes are searched word by word.
const SHORT: usize = 2;

/// The position of the quote that ends the string, or whether the piece ends on a backslash.
pub(super) fn find_quote(piece: &[u8], start: usize, escaped: bool) -> Result<usize, bool> {
    let mut at = start + usize::from(escaped);
    // Most names and many values are too short to be worth a vector search.
    let (words, _) = piece.get(at..).unwrap_or_default().as_chunks();
    for word in words.iter().take(SHORT) {
        let word = u64::from_le_bytes(*word);
        let found = bytes_equal(word, b'"') | bytes_equal(word, b'\\');
        if found == 0 {
            at += 8;
            continue;
        }
        at += found.trailing_zeros() as usize / 8;
        if piece[at] == b'"' {
            return Ok(at);
        }
        at += 2;
        break;
    }
    while at < piece.len() {
        match memchr2(b'"', b'\\', &piece[at..]) {
            None => return Err(false),
            Some(offset) if piece[at + offset] == b'"' => return Ok(at + offset),
            Some(offset) => at += offset + 2,
        }
    }
    Err(at > piece.len())
}

/// A word whose lowest bit that is set stands in the first byte that is `byte`; 0 if none is.
const fn bytes_equal(word: u64, byte: u8) -> u64 {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let zero_where_equal = word ^ (ONES * byte as u64);
    zero_where_equal.wrapping_sub(ONES) & !zero_where_equal & (ONES << 7)
}

/// Whether these bytes can stand between the quotes of a string, with neither of them.
pub fn is_within_text(bytes: &[u8]) -> bool {
    find_quote(bytes, 0, false) == Err(false)
}
