//! Parses a sample, which is a line in the Prometheus text format, from the end of its metric name on: the
//! labels and the value.

use memchr::{memchr, memchr_iter, memchr2};
use tokenweir_protocol::json::find_string_end;

/// The labels and the value of a sample.
pub struct MetricSample<'a> {
    /// The text between the braces; empty if there are no labels.
    labels: &'a [u8],
    value: &'a [u8],
}

impl<'a> MetricSample<'a> {
    /// The samples of a metrics page, with the names of their metrics.
    pub fn of_page(page: &'a [u8]) -> impl Iterator<Item = (&'a str, Self)> {
        let lines = page
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.starts_with(b"#"));
        lines.filter_map(|line| {
            let name_end = memchr2(b'{', b' ', line).unwrap_or(line.len());
            let (name, labels_and_value) = line.split_at(name_end);
            Some((
                std::str::from_utf8(name).ok()?,
                Self::parse(labels_and_value)?,
            ))
        })
    }

    /// Parses the part of a line after the metric name. `None`: the labels have no closing brace.
    pub fn parse(labels_and_value: &'a [u8]) -> Option<Self> {
        let labels_and_value = labels_and_value.trim_ascii_start();
        let (labels, after_labels) = match labels_and_value.strip_prefix(b"{") {
            Some(labels) => {
                let end = find_labels_end(labels)?;
                (&labels[..end], &labels[end + 1..])
            }
            None => (&labels_and_value[..0], labels_and_value),
        };
        // A timestamp or an exemplar can follow the value.
        let value = after_labels.trim_ascii_start();
        let end = value
            .iter()
            .position(u8::is_ascii_whitespace)
            .unwrap_or(value.len());
        Some(Self {
            labels,
            value: &value[..end],
        })
    }

    /// The value. `None`: the value is not a finite number of a plausible magnitude.
    pub fn number(&self) -> Option<f64> {
        parse_number(self.value)
    }

    /// The value of a label. `None`: the sample does not have the label. Escapes are not decoded, because the
    /// labels that the gateway reads contain none.
    pub fn label(&self, name: &str) -> Option<&'a [u8]> {
        let mut labels = self.labels;
        while let Some(equals) = memchr(b'=', labels) {
            let label_name = labels[..equals].trim_ascii();
            let open = equals + 1 + memchr(b'"', &labels[equals + 1..])?;
            let close = open + 1 + find_string_end(&labels[open + 1..])?;
            if label_name == name.as_bytes() {
                return Some(&labels[open + 1..close]);
            }
            labels = labels[close + 1..].trim_ascii_start();
            labels = labels.strip_prefix(b",").unwrap_or(labels);
        }
        None
    }
}

/// Maximum number that is accepted from a page. Counters of tokens and bytes stay below it, and timestamps in
/// milliseconds too. The limit keeps sums and products finite.
pub(super) const MAX_NUMBER: f64 = 1e15;

/// The lines of a page, without their line feeds.
pub fn lines(page: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut start = 0;
    memchr_iter(b'\n', page)
        .chain([page.len()])
        .map(move |end| {
            let line = &page[start..end];
            start = end + 1;
            line
        })
}

/// Parses a number of the Prometheus text format. `None`: the text is not a number, or the number is NaN,
/// infinite or above [`MAX_NUMBER`].
pub(super) fn parse_number(text: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (number.abs() <= MAX_NUMBER).then_some(number)
}

/// The offset of the brace that closes the labels. `labels`: the text after the opening brace. Braces inside
/// label values are skipped. `None`: there is no closing brace.
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
