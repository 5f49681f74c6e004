//! Search for the closing quote of a JSON string.

use memchr::memchr2;

/// Number of eight-byte words that [`find_quote`] searches itself before it calls the vector search of the
/// crate memchr.
const MAX_WORDS_BEFORE_VECTOR_SEARCH: usize = 2;

/// The error for a piece without the closing quote of its string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoQuote {
    /// Whether the piece ends with a backslash that escapes the next byte.
    pub ends_in_escape: bool,
}

/// The offset in `piece` of the closing quote of a string, searched from `start` on. `is_escaped`:
/// the byte at `start` follows a backslash.
#[inline] // most strings end in their first words
pub(super) fn find_quote(piece: &[u8], start: usize, is_escaped: bool) -> Result<usize, NoQuote> {
    let mut at = start + usize::from(is_escaped);
    // Most names and many values are short. A search by words is faster for them than a vector search.
    let (words, _) = piece.get(at..).unwrap_or_default().as_chunks();
    for word in words.iter().take(MAX_WORDS_BEFORE_VECTOR_SEARCH) {
        let word = u64::from_le_bytes(*word);
        let matches = bytes_equal(word, b'"') | bytes_equal(word, b'\\');
        if matches == 0 {
            at += 8;
            continue;
        }
        let end = at + matches.trailing_zeros() as usize / 8;
        if piece[end] == b'"' {
            return Ok(end);
        }
        break;
    }
    find_far_quote(piece, at)
}

/// Like [`find_quote`], for a string that is long or has escapes. The byte before `at` must not be a backslash.
#[inline(never)]
fn find_far_quote(piece: &[u8], mut at: usize) -> Result<usize, NoQuote> {
    while at < piece.len() {
        match memchr2(b'"', b'\\', &piece[at..]) {
            None => {
                return Err(NoQuote {
                    ends_in_escape: false,
                });
            }
            Some(offset) if piece[at + offset] == b'"' => return Ok(at + offset),
            Some(offset) => at += offset + 2,
        }
    }
    Err(NoQuote {
        ends_in_escape: at > piece.len(),
    })
}

/// Returns a word whose lowest set bit is in the first byte of `word` that equals `byte`. 0: no byte of
/// `word` equals `byte`.
const fn bytes_equal(word: u64, byte: u8) -> u64 {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let zero_where_equal = word ^ (ONES * byte as u64);
    zero_where_equal.wrapping_sub(ONES) & !zero_where_equal & (ONES << 7)
}

/// The offset of the closing quote of a string. `text` begins after the opening quote. The function also fits
/// label values of the Prometheus text format, which end by the same rule. `None`: there is no closing quote.
pub fn find_string_end(text: &[u8]) -> Option<usize> {
    find_quote(text, 0, false).ok()
}

/// Whether these bytes contain neither quotes nor backslashes, so that they can be part of a string without
/// escapes.
pub fn is_string_content(bytes: &[u8]) -> bool {
    find_quote(bytes, 0, false)
        == Err(NoQuote {
            ends_in_escape: false,
        })
}
