//! One sample of a page, after its name: labels, value, and what may follow it.

use super::table;
use memchr::{memchr, memchr2};

/// A sample without its name.
pub struct Sample<'a> {
    labels: &'a [u8],
    value: &'a [u8],
}

impl<'a> Sample<'a> {
    /// Reads what follows a name. `None`: labels without an end.
    pub fn of(rest: &'a [u8]) -> Option<Self> {
        let (labels, rest) = match rest.strip_prefix(b"{") {
            Some(labels) => {
                let end = end_of_labels(labels)?;
                (&labels[..end], &labels[end + 1..])
            }
            None => (&rest[..0], rest),
        };
        // A time stamp or an exemplar may follow the value.
        let value = rest.trim_ascii_start();
        let end = value.iter().position(u8::is_ascii_whitespace).unwrap_or(value.len());
        Some(Self { labels, value: &value[..end] })
    }

    /// The value, if it is a number.
    pub fn number(&self) -> Option<f64> {
        table::number(self.value)
    }

    /// A label's value as it was written: escapes are kept, the labels read here have none.
    pub fn label(&self, wanted: &str) -> Option<&'a [u8]> {
        let mut rest = self.labels;
        while let Some(equals) = memchr(b'=', rest) {
            let name = rest[..equals].trim_ascii();
            let open = equals + 1 + memchr(b'"', &rest[equals + 1..])?;
            let close = open + 1 + end_of_text(&rest[open + 1..])?;
            if name == wanted.as_bytes() {
                return Some(&rest[open + 1..close]);
            }
            rest = rest[close + 1..].trim_ascii_start();
            rest = rest.strip_prefix(b",").unwrap_or(rest);
        }
        None
    }
}

/// The position of the brace that closes the labels: braces inside label values do not.
fn end_of_labels(labels: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr2(b'}', b'"', labels.get(at..)?)?;
        if labels[at] == b'}' {
            return Some(at);
        }
        at += 2 + end_of_text(&labels[at + 1..])?;
    }
}

/// The position of the quote that ends a label value.
fn end_of_text(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}
