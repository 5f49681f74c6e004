//! Rewrites the names of metrics and labels in queries, wherever they are in a file.

use super::UpgradeNote;
use crate::config::text::renames::{RenamedMetric, Renames, last_key};
use crate::config::text::yaml::Entry;
use std::ops::Range;

/// The beginning of the names of the gateway's metrics.
const PREFIX: &str = "tokenweir_";
/// The ends of the series of a histogram.
const SERIES: [&str; 3] = ["_bucket", "_sum", "_count"];
/// Keys whose value is a query.
const QUERY_KEYS: [&str; 3] = ["expr", "query", "definition"];

/// A name in a text.
struct Word<'a> {
    text: &'a str,
    range: Range<usize>,
}

/// A matcher of a selector, such as `reason="rule",`.
struct Matcher<'a> {
    label: &'a str,
    operator: &'a str,
    value: Range<usize>,
    /// The matcher with the comma after it.
    whole: Range<usize>,
}

/// A label that has another name in the queries of one rule or one panel.
struct RenamedLabel<'a> {
    group: usize,
    from: &'a str,
    to: &'a str,
}

/// The queries of a file and their edits.
pub(super) struct QueryRewriter<'a> {
    text: &'a str,
    renames: &'a Renames,
    entries: &'a [Entry],
    /// The index of the first byte of each entry.
    starts: Vec<usize>,
    edits: Vec<(Range<usize>, String)>,
    pub(super) notes: Vec<UpgradeNote>,
}

/// A metric of the gateway in a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueriedMetric {
    /// The line number, counted from 1.
    pub line: usize,
    /// The name, without the end of a histogram's series.
    pub name: String,
}

/// The metrics of the gateway in all queries of a file.
pub(super) fn queried_metrics(text: &str, entries: &[Entry]) -> Vec<QueriedMetric> {
    let no_renames = Renames::default();
    let queries = QueryRewriter::new(text, entries, &no_renames);
    let metrics = words(text)
        .filter(|word| word.text.starts_with(PREFIX) && queries.is_query(word.range.start));
    let metric = |word: Word<'_>| QueriedMetric {
        line: line_of(text, word.range.start),
        name: base_name(word.text).to_owned(),
    };
    metrics.map(metric).collect()
}

fn base_name(series: &str) -> &str {
    SERIES
        .iter()
        .find_map(|end| series.strip_suffix(end))
        .unwrap_or(series)
}

fn line_of(text: &str, index: usize) -> usize {
    text.get(..index).unwrap_or_default().matches('\n').count() + 1
}

const fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

/// All names in a text: metrics, labels, keywords and others.
fn words(text: &str) -> impl Iterator<Item = Word<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + text.get(at..)?.find(is_of_name)?;
        let rest = text.get(start..)?;
        let end = start + rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
        at = end;
        let word = text.get(start..end)?;
        // A key of YAML and the word before a value end with a colon.
        let name = word.trim_end_matches(':');
        let range = start..start + name.len();
        Some(Word { text: name, range })
    })
}

/// The matchers of the selector that begins at `start`. There are none if no selector begins there.
fn matchers(text: &str, start: usize) -> Vec<Matcher<'_>> {
    let mut found = Vec::new();
    let mut at = start;
    if text.get(at..).is_none_or(|rest| !rest.starts_with('{')) {
        return found;
    }
    at += 1;
    while let Some(matcher) = matcher(text, at) {
        at = matcher.whole.end;
        found.push(matcher);
    }
    found
}

fn matcher(text: &str, from: usize) -> Option<Matcher<'_>> {
    let rest = text.get(from..)?;
    let start = from + (rest.len() - rest.trim_start().len());
    let rest = text.get(start..)?;
    let label = rest.get(..rest.find(|c| !is_of_name(c))?)?;
    let after = rest.get(label.len()..)?;
    let operator = ["=~", "!~", "!=", "="]
        .into_iter()
        .find(|operator| after.starts_with(operator))?;
    let opening = after.get(operator.len()..)?;
    // In JSON, a backslash is before each quotation mark.
    let quote = ["\\\"", "\"", "'"]
        .into_iter()
        .find(|quote| opening.starts_with(quote))?;
    let value_start = start + label.len() + operator.len() + quote.len();
    let value_end = value_start + text.get(value_start..)?.find(quote)?;
    let mut end = value_end + quote.len();
    if text.get(end..)?.starts_with(',') {
        end += 1;
    }
    (!label.is_empty()).then_some(Matcher {
        label,
        operator,
        value: value_start..value_end,
        whole: start..end,
    })
}

impl<'a> QueryRewriter<'a> {
    pub(super) fn new(text: &'a str, entries: &'a [Entry], renames: &'a Renames) -> Self {
        let ends = text.match_indices('\n').map(|(index, _)| index + 1);
        let lines: Vec<usize> = std::iter::once(0).chain(ends).collect();
        let start = |entry: &Entry| {
            let line = lines
                .get(entry.start.line.saturating_sub(1))
                .copied()
                .unwrap_or(text.len());
            let rest = text.get(line..).unwrap_or_default();
            let column = rest
                .char_indices()
                .nth(entry.start.column.saturating_sub(1));
            line + column.map_or(0, |(index, _)| index)
        };
        Self {
            text,
            renames,
            entries,
            starts: entries.iter().map(start).collect(),
            edits: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// The text with the edits.
    pub(super) fn text(&self) -> String {
        let mut edits: Vec<&(Range<usize>, String)> = self.edits.iter().collect();
        edits.sort_by_key(|(range, _)| range.start);
        let mut text = self.text.to_owned();
        for (range, new) in edits.into_iter().rev() {
            text.replace_range(range.clone(), new);
        }
        text
    }

    /// Finds the edits. `has_queries`: the file is no configuration.
    pub(super) fn rewrite(&mut self, has_queries: bool) {
        let mut labels = Vec::new();
        for word in words(self.text).filter(|word| word.text.starts_with(PREFIX)) {
            labels.extend(self.rename_metric(&word));
        }
        if !has_queries {
            return;
        }
        self.rename_labels(&labels);
        for renamed in &self.renames.words {
            let found = self.text.match_indices(&renamed.from);
            let is_whole = |(index, _): &(usize, &str)| {
                let after = self
                    .text
                    .get(index + renamed.from.len()..)
                    .unwrap_or_default();
                !after.starts_with(|c: char| is_of_name(c) || c == '-')
            };
            let edits = found
                .filter(is_whole)
                .map(|(index, word)| (index..index + word.len(), renamed.to.clone()));
            self.edits.extend(edits);
        }
    }

    /// Renames a metric and the values in its selector. Returns the labels that have other names.
    fn rename_metric(&mut self, word: &Word<'a>) -> Vec<RenamedLabel<'a>> {
        let name = base_name(word.text);
        // The name of a counter may end like that of a histogram's series.
        let is_it = |row: &&RenamedMetric| row.from == word.text || row.from == name;
        let rows: Vec<&'a RenamedMetric> = self.renames.metrics.iter().filter(is_it).collect();
        let Some(first) = rows.first() else {
            return Vec::new();
        };
        let matchers = matchers(self.text, word.range.end);
        let selects = |row: &&&RenamedMetric| {
            row.when.iter().all(|(label, value)| {
                let is_it = |matcher: &Matcher<'_>| {
                    matcher.label == label
                        && matcher.operator == "="
                        && self.text.get(matcher.value.clone()) == Some(value)
                };
                matchers.iter().any(is_it)
            })
        };
        let Some(row) = rows.iter().find(selects).copied() else {
            let names: Vec<&str> = rows.iter().filter_map(|row| row.to.as_deref()).collect();
            let label = first.when.keys().next().map_or("", String::as_str);
            let problem = format!(
                "`{}` is a metric for each `{label}`: write {}",
                word.text,
                names.join(", ")
            );
            self.note(word.range.start, problem);
            return Vec::new();
        };
        let Some(to) = &row.to else {
            self.note(
                word.range.start,
                format!("`{}` is gone: {}", word.text, row.help),
            );
            return Vec::new();
        };
        let end = word.range.start + row.from.len();
        self.edits.push((word.range.start..end, to.clone()));
        self.drop_matchers(word, &matchers, row);
        self.rename_values(&matchers, row);
        let group = self.group_at(word.range.start);
        let label = |(from, to): (&'a String, &'a String)| RenamedLabel { group, from, to };
        row.labels.iter().map(label).collect()
    }

    /// Removes the matchers of the labels that a row selects by.
    fn drop_matchers(&mut self, word: &Word<'_>, matchers: &[Matcher<'_>], row: &RenamedMetric) {
        let is_dropped = |matcher: &&Matcher<'_>| row.when.contains_key(matcher.label);
        if !matchers.iter().any(|matcher| is_dropped(&matcher)) {
            return;
        }
        if let [only] = matchers {
            // The selector has no other matcher: its braces go, too.
            self.edits
                .push((word.range.end..only.whole.end + 1, String::new()));
            return;
        }
        for (index, matcher) in matchers.iter().enumerate() {
            if !is_dropped(&matcher) {
                continue;
            }
            let is_last = index + 1 == matchers.len();
            let before = index.checked_sub(1).and_then(|before| matchers.get(before));
            // The comma before the last matcher goes with it.
            let start = before.filter(|before| {
                is_last
                    && self
                        .text
                        .get(before.whole.clone())
                        .is_some_and(|text| text.ends_with(','))
            });
            let start = start.map_or(matcher.whole.start, |before| before.whole.end - 1);
            self.edits.push((start..matcher.whole.end, String::new()));
        }
    }

    fn rename_values(&mut self, matchers: &[Matcher<'_>], row: &RenamedMetric) {
        for matcher in matchers {
            let Some(values) = row.values.get(matcher.label) else {
                continue;
            };
            let old = self.text.get(matcher.value.clone()).unwrap_or_default();
            let new = |value: &str| values.get(value).map_or(value, String::as_str).to_owned();
            let new: Vec<String> = old.split('|').map(new).collect();
            let new = new.join("|");
            if new != old {
                self.edits.push((matcher.value.clone(), new));
            }
        }
    }

    /// Renames labels in the queries and the texts of their rule or panel.
    fn rename_labels(&mut self, labels: &[RenamedLabel<'_>]) {
        for word in words(self.text) {
            let Some(label) = labels.iter().find(|label| label.from == word.text) else {
                continue;
            };
            let Some(entry) = self.entry_at(word.range.start) else {
                continue;
            };
            let before = self
                .text
                .get(..word.range.start)
                .unwrap_or_default()
                .trim_end();
            let is_template = before.ends_with("$labels.") || before.ends_with("{{");
            let is_key = self.starts.get(entry) == Some(&word.range.start);
            if self.group_of(entry) == label.group
                && !is_key
                && (is_template || self.is_query(word.range.start))
            {
                self.edits.push((word.range, label.to.to_owned()));
            }
        }
    }

    /// Whether a byte is in a query.
    fn is_query(&self, index: usize) -> bool {
        let entry = self
            .entry_at(index)
            .and_then(|entry| self.entries.get(entry));
        entry.is_some_and(|entry| QUERY_KEYS.contains(&last_key(&entry.path)))
    }

    /// The last entry that begins at or before a byte.
    fn entry_at(&self, index: usize) -> Option<usize> {
        self.starts
            .partition_point(|start| *start <= index)
            .checked_sub(1)
    }

    /// The rule or panel of a byte.
    fn group_at(&self, index: usize) -> usize {
        self.entry_at(index).map_or(0, |entry| self.group_of(entry))
    }

    /// The item of a list that contains an entry, such as a rule. Without one, the whole file.
    fn group_of(&self, entry: usize) -> usize {
        let parent = |index: &usize| self.entries.get(*index).and_then(|entry| entry.parent);
        let is_item = |index: &usize| self.entries.get(*index).is_some_and(|entry| entry.is_item);
        std::iter::successors(Some(entry), parent)
            .find(is_item)
            .unwrap_or(0)
    }

    fn note(&mut self, index: usize, problem: String) {
        let line = line_of(self.text, index);
        self.notes.push(UpgradeNote { line, problem });
    }
}
