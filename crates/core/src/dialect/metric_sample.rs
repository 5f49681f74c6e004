//! Parses a sample of the Prometheus text format behind its metric name: labels and value.

use crate::json::find_string_end;
use memchr::{memchr, memchr2};

/// The labels and the value of a sample.
pub struct MetricSample<'a> {
    labels: &'a [u8],
    value: &'a [u8],
}

impl<'a> MetricSample<'a> {
    /// Parses the part of a line behind the name. `None`: the labels have no end.
    pub fn parse(rest: &'a [u8]) -> Option<Self> {
        let (labels, rest) = match rest.strip_prefix(b"{") {
            Some(labels) => {
                let end = find_labels_end(labels)?;
                (&labels[..end], &labels[end + 1..])
            }
            None => (&rest[..0], rest),
        };
        // A timestamp or an exemplar may follow the value.
        let value = rest.trim_ascii_start();
        let end = value.iter().position(u8::is_ascii_whitespace).unwrap_or(value.len());
        Some(Self { labels, value: &value[..end] })
    }

    /// The value, if it is a number.
    pub fn number(&self) -> Option<f64> {
        number(self.value)
    }

    /// The value of a label, without unescaping: the labels that are read have no escapes.
    pub fn label(&self, name: &str) -> Option<&'a [u8]> {
        let mut rest = self.labels;
        while let Some(equals) = memchr(b'=', rest) {
            let label_name = rest[..equals].trim_ascii();
            let open = equals + 1 + memchr(b'"', &rest[equals + 1..])?;
            let close = open + 1 + find_string_end(&rest[open + 1..])?;
            if label_name == name.as_bytes() {
                return Some(&rest[open + 1..close]);
            }
            rest = rest[close + 1..].trim_ascii_start();
            rest = rest.strip_prefix(b",").unwrap_or(rest);
        }
        None
    }
}

/// Parses a number of the Prometheus text format.
pub(super) fn number(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The position of the brace that closes the labels. Braces inside label values are skipped.
fn find_labels_end(labels: &[u8]) -> Option<usize> {
    let mut position = 0;
    loop {
        position += memchr2(b'}', b'"', labels.get(position..)?)?;
        if labels[position] == b'}' {
            return Some(position);
        }
        position += 2 + find_string_end(&labels[position + 1..])?;
    }
}
