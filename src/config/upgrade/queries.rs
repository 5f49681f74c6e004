//! Rewrites the names of metrics and labels in queries anywhere in a text. The number of lines does not change.

use super::lines::UpgradeNote;
use crate::config::text::renames::{RenamedMetric, Renames};
use regex::{Captures, Regex};
use std::collections::BTreeMap;

/// The pattern of a metric of the gateway with its selector.
const METRIC: &str = r"\b(tokenweir_[a-z0-9_]+)((?:\{(?:[^{}]|\$\{\w+\})*\})?)";
/// The pattern of a matcher in a selector. In JSON, a backslash precedes each quotation mark.
const MATCHER: &str = r#"(\w+)(=~|!~|!=|=)(\\?["'])(.*?)(\\?["'],?)"#;
/// The pattern of a list of labels in a query, and of a label in a text.
const LABELS: &str = r"\b(?:by|without|on|ignoring|group_left|group_right|label_values)\s*\([^()]*\)|\$labels\.\w+|\{\{\s*\w+";

/// A metric of the gateway in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueriedMetric {
    /// The line number, counted from 1.
    pub line: usize,
    /// The name, without the suffix of a histogram's series.
    pub name: String,
}

/// Rewrites texts with the renames of metrics and labels.
pub(super) struct QueryRewriter<'a> {
    renames: &'a Renames,
    metric: Regex,
    matcher: Regex,
    labels: Regex,
    word: Regex,
    pub(super) notes: Vec<UpgradeNote>,
}

/// The name of a histogram from the name of one of its series.
fn base_name(series: &str) -> &str {
    let ends = ["_bucket", "_sum", "_count"];
    let stripped = ends.iter().find_map(|end| series.strip_suffix(end));
    stripped.unwrap_or(series)
}

fn line_of(text: &str, index: usize) -> usize {
    text.get(..index).unwrap_or_default().matches('\n').count() + 1
}

impl<'a> QueryRewriter<'a> {
    /// Compiles the patterns. Never returns `None`, because the patterns are constants.
    pub(super) fn new(renames: &'a Renames) -> Option<Self> {
        Some(Self {
            renames,
            metric: Regex::new(METRIC).ok()?,
            matcher: Regex::new(MATCHER).ok()?,
            labels: Regex::new(LABELS).ok()?,
            word: Regex::new(r"\w+").ok()?,
            notes: Vec::new(),
        })
    }

    /// Rewrites a text in parts, such as one for each rule. `starts`: the index of the first byte of each part.
    /// A label is renamed only in the part that names its metric.
    pub(super) fn rewrite(&mut self, text: &str, starts: &[usize]) -> String {
        let mut rewritten = String::new();
        let ends = starts.iter().copied().chain([text.len()]);
        let mut start = 0;
        for end in ends {
            let part = text.get(start..end).unwrap_or_default();
            let first_line = line_of(text, start);
            rewritten.push_str(&self.rewrite_part(part, first_line));
            start = end.max(start);
        }
        rewritten
    }

    fn rewrite_part(&mut self, part: &str, first_line: usize) -> String {
        let mut labels: BTreeMap<&str, &str> = BTreeMap::new();
        let mut problems = Vec::new();
        let metrics = self.metric.replace_all(part, |found: &Captures<'_>| {
            let whole = found.get(0).map_or(0..0, |whole| whole.range());
            match self.renamed(&found[1], &found[2]) {
                Ok(Some(renamed)) => {
                    let renames = renamed.row.labels.iter();
                    labels.extend(renames.map(|(from, to)| (from.as_str(), to.as_str())));
                    return renamed.text;
                }
                Ok(None) => {}
                Err(problem) => problems.push(UpgradeNote {
                    line: first_line + line_of(part, whole.start) - 1,
                    problem,
                }),
            }
            part.get(whole).unwrap_or_default().to_owned()
        });
        let name = |word: &Captures<'_>| {
            let word = &word[0];
            labels.get(word).copied().unwrap_or(word).to_owned()
        };
        let list = |found: &Captures<'_>| self.word.replace_all(&found[0], name).into_owned();
        let rewritten = self.labels.replace_all(&metrics, list).into_owned();
        self.notes.extend(problems);
        rewritten
    }

    /// The present form of a series with its selector. `None`: unchanged. The error tells the operator what to
    /// do.
    fn renamed(&self, series: &str, selector: &str) -> Result<Option<Renamed<'a>>, String> {
        let name = base_name(series);
        let is_it = |row: &&RenamedMetric| row.from == series || row.from == name;
        let rows: Vec<&RenamedMetric> = self.renames.metrics.iter().filter(is_it).collect();
        let has = |label: &String, value: &String| {
            let is_it =
                |found: Captures<'_>| &found[1] == label && &found[2] == "=" && &found[4] == value;
            self.matcher.captures_iter(selector).any(is_it)
        };
        let selected =
            |row: &&&RenamedMetric| row.when.iter().all(|(label, value)| has(label, value));
        let Some(row) = rows.iter().find(selected) else {
            let Some(label) = rows.first().and_then(|row| row.when.keys().next()) else {
                return Ok(None);
            };
            let names: Vec<&str> = rows.iter().filter_map(|row| row.to.as_deref()).collect();
            let names = names.join(", ");
            return Err(format!(
                "`{series}` is a metric for each `{label}` now: write {names}"
            ));
        };
        let Some(to) = &row.to else {
            return Err(format!("`{series}` is gone: {}", row.help));
        };
        let end = series.get(row.from.len()..).unwrap_or_default();
        let text = format!("{to}{end}{}", self.renamed_selector(selector, row));
        Ok(Some(Renamed { text, row }))
    }

    fn renamed_selector(&self, selector: &str, row: &RenamedMetric) -> String {
        let matcher = |found: &Captures<'_>| {
            let label = &found[1];
            if row.when.contains_key(label) {
                return String::new();
            }
            let values = row.values.get(label);
            let new = |old: &str| {
                values
                    .and_then(|values| values.get(old))
                    .map_or(old, String::as_str)
                    .to_owned()
            };
            let value: Vec<String> = found[4].split('|').map(new).collect();
            let label = row.labels.get(label).map_or(label, String::as_str);
            let value = value.join("|");
            [label, &found[2], &found[3], &value, &found[5]].concat()
        };
        let renamed = self.matcher.replace_all(selector, matcher);
        let renamed = if row.when.is_empty() {
            renamed.into_owned()
        } else {
            renamed.replace(",}", "}")
        };
        if renamed == "{}" {
            String::new()
        } else {
            renamed
        }
    }

    pub(super) fn metrics(&self, text: &str) -> Vec<QueriedMetric> {
        let metric = |found: Captures<'_>| QueriedMetric {
            line: line_of(text, found.get(0).map_or(0, |whole| whole.start())),
            name: base_name(&found[1]).to_owned(),
        };
        self.metric.captures_iter(text).map(metric).collect()
    }
}

/// The present form of a series with its selector.
struct Renamed<'a> {
    text: String,
    row: &'a RenamedMetric,
}
