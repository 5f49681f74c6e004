//! The members of an object and the elements of an array in a complete document.

use super::find_string_end;
use crate::http1::parse_digits;
use std::ops::Range;
use std::str::FromStr;

/// 2⁵³: an `f64` represents every integer up to this number exactly.
const MAX_EXACT_REAL: f64 = 9_007_199_254_740_992.0;

/// Offsets of a member in its document.
pub struct Member {
    /// The range of the name, without its quotes.
    pub name: Range<usize>,
    /// The range of the value, with its quotes or brackets.
    pub value: Range<usize>,
}

/// Calls `visit` with each member of the object in `data`. White space may surround the object. `None`: `data`
/// is not one object.
pub fn visit_members(data: &[u8], mut visit: impl FnMut(Member)) -> Option<()> {
    visit_items(data, Brackets::OBJECT, |at| {
        let name = skip_byte(data, at, b'"')?;
        let name = name..name + find_string_end(data.get(name..)?)?;
        let value = value_at(data, skip_byte(data, name.end + 1, b':')?)?;
        let end = value.end;
        visit(Member { name, value });
        Some(end)
    })
}

/// Calls `visit` with the offsets of each element of the array in `data`. `None`: `data` is not one array.
pub fn visit_elements(data: &[u8], mut visit: impl FnMut(Range<usize>)) -> Option<()> {
    visit_items(data, Brackets::ARRAY, |at| {
        let value = value_at(data, at)?;
        let end = value.end;
        visit(value);
        Some(end)
    })
}

/// Whether a value is set: `null`, `false`, `""`, `[]` and `{}` count as not set.
pub fn is_set(value: &[u8]) -> bool {
    match value {
        b"null" | b"false" | b"\"\"" => false,
        [b'[' | b'{', inner @ .., _] => !inner.trim_ascii().is_empty(),
        _ => true,
    }
}

/// Reads a value as a number of the type `T`. `None`: the value is not such a number.
pub fn number<T: FromStr>(value: &[u8]) -> Option<T> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Reads a value as a count. `12.0` and `1e3` are accepted too. `None`: the value is not an integer from 0 to
/// 2⁶³ − 1.
pub fn count(value: &[u8]) -> Option<u64> {
    if let Some(count) = parse_digits(value, 10) {
        return Some(count).filter(|count| i64::try_from(*count).is_ok());
    }
    let real = number(value).filter(|real: &f64| real.fract() == 0.0 && *real >= 0.0)?;
    (real <= MAX_EXACT_REAL).then_some(real as u64)
}

/// Finds the end of an object or array. `text` begins after its opening bracket. Returns the offset after its
/// closing bracket. `None`: `text` does not contain the closing bracket.
pub fn length_until_closed(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut depth = 1_u32;
    loop {
        match text.get(at)? {
            b'"' => at += find_string_end(&text[at + 1..])? + 1,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}

/// The brackets around the items of an object or an array.
#[derive(Clone, Copy)]
struct Brackets {
    open: u8,
    close: u8,
}

impl Brackets {
    const OBJECT: Self = Self {
        open: b'{',
        close: b'}',
    };
    const ARRAY: Self = Self {
        open: b'[',
        close: b']',
    };
}

/// Calls `item` with the offset of each item between two brackets. `item` returns the offset after the item,
/// or `None` if the item is invalid. Returns `None` if an item or the text around the items is invalid.
fn visit_items(
    data: &[u8],
    brackets: Brackets,
    mut item: impl FnMut(usize) -> Option<usize>,
) -> Option<()> {
    let mut at = skip_byte(data, 0, brackets.open)?;
    let mut end = skip_byte(data, at, brackets.close);
    while end.is_none() {
        let after = item(at)?;
        match skip_byte(data, after, b',') {
            Some(next) => at = next,
            None => end = Some(skip_byte(data, after, brackets.close)?),
        }
    }
    (skip_spaces(data, end?) == data.len()).then_some(())
}

/// Skips white space from `at` on, and then the byte `expected`. Returns the offset after this byte. `None`:
/// the next byte is another one.
fn skip_byte(data: &[u8], at: usize, expected: u8) -> Option<usize> {
    let at = skip_spaces(data, at);
    (data.get(at) == Some(&expected)).then_some(at + 1)
}

fn skip_spaces(data: &[u8], at: usize) -> usize {
    let rest = data.get(at..).unwrap_or_default();
    at + rest
        .iter()
        .take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
        .count()
}

/// The offsets of the value that begins at `at`, after optional white space. `None`: the value is incomplete.
fn value_at(data: &[u8], at: usize) -> Option<Range<usize>> {
    let start = skip_spaces(data, at);
    let text = data.get(start..)?;
    let length = match text.first()? {
        b'"' => find_string_end(&text[1..])? + 2,
        b'{' | b'[' => length_until_closed(&text[1..])? + 1,
        _ => {
            let is_end =
                |byte: &u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
            text.iter().position(is_end).filter(|length| *length > 0)?
        }
    };
    Some(start..start + length)
}
