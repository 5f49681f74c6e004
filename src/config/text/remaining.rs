//! The text of a configuration file without the entries that have mistakes. Spaces replace the removed characters,
//! so that all other entries keep their lines and columns.

use super::renames::{last_key, section_of};
use super::yaml::{self, Entry, is_within};
use std::ops::Range;

/// The text of a file without the entries that were removed.
pub(crate) struct RemainingText<'a> {
    original: &'a str,
    chars: Vec<char>,
    /// The index of the first character of each line.
    lines: Vec<usize>,
    /// The removed entries: the path and the range of characters of each.
    removed: Vec<(String, Range<usize>)>,
}

impl<'a> RemainingText<'a> {
    pub(crate) fn new(original: &'a str) -> Self {
        let mut lines = vec![0];
        for (index, c) in original.chars().enumerate() {
            if c == '\n' {
                lines.push(index + 1);
            }
        }
        Self {
            original,
            chars: original.chars().collect(),
            lines,
            removed: Vec::new(),
        }
    }

    pub(crate) fn text(&self) -> String {
        self.chars.iter().collect()
    }

    pub(crate) const fn original(&self) -> &'a str {
        self.original
    }

    /// Whether a part of the entry was removed.
    pub(crate) fn is_damaged(&self, entries: &[Entry], entry: &Entry) -> bool {
        let range = self.range(entries, entry);
        let mut removed = self.removed.iter();
        removed.any(|(_, removed)| range.contains(&removed.start))
    }

    /// Whether a part of the list item that contains the entry was removed.
    pub(crate) fn is_item_damaged(&self, entries: &[Entry], entry: &Entry) -> bool {
        let mut above = std::iter::successors(Some(entry), |entry| entry.parent_in(entries));
        let item = above.find(|entry| entry.is_item);
        item.is_some_and(|item| self.is_damaged(entries, item))
    }

    /// Whether the value at a path, or a value directly below it, was removed.
    pub(crate) fn is_removed(&self, entries: &[Entry], path: &str) -> bool {
        let is_there = entries.iter().any(|entry| entry.path == path);
        self.removed.iter().any(|(removed, _)| {
            !is_there && is_within(path, removed) || section_of(removed) == path
        })
    }

    /// Replaces an invalid name of a list item by a valid one. Without the required name, the item's other keys
    /// could not be checked. Returns whether the entry is a name.
    pub(crate) fn rename(&mut self, entry: &Entry) -> bool {
        let Entry { path, value, .. } = entry;
        let start = self.index(*value);
        let range = start..start + value.len;
        let name = self.chars.get_mut(range.clone()).unwrap_or_default();
        if last_key(path) != "name" || name.is_empty() || name.contains(&'\n') {
            return false;
        }
        // The letter depends on the line, so that new names on different lines differ.
        let letter = b'a' + (value.line % 26) as u8;
        name.fill(letter.into());
        self.removed.push((path.clone(), range));
        true
    }

    /// Removes an entry, and then enclosing entries until the remaining text is valid YAML. Returns whether it
    /// is.
    pub(crate) fn remove(&mut self, entries: &[Entry], entry: &Entry) -> bool {
        let mut next = Some(entry);
        while let Some(entry) = next {
            let range = self.range(entries, entry);
            let siblings = entries.iter().filter(|other| other.parent == entry.parent);
            let is_last = siblings.count() == 1 && !self.is_flow(entries, entry);
            clear(&mut self.chars, &range);
            if is_last {
                self.write_empty(entries, entry, range.start);
            }
            self.removed.push((entry.path.clone(), range));
            if yaml::entries(&self.text()).is_ok() {
                return true;
            }
            next = entry.parent_in(entries);
        }
        false
    }

    /// Removes the part of the text that is not valid YAML. `line`: the line of the parser's error, counted
    /// from 1. The part is one of these: the entry on this line, the top-level entry around it, the previous
    /// top-level entry, whose end may be missing, or both top-level entries. Returns whether the remaining text
    /// has no error, or its first error is after the removed part.
    pub(crate) fn remove_unreadable(&mut self, line: usize) -> bool {
        let line = line
            .saturating_sub(1)
            .min(self.lines.len().saturating_sub(1));
        let section = self.section(line);
        let before = self.section(section.start.saturating_sub(1));
        let own = self.block(line, self.indentation(line).unwrap_or(0), true);
        let whole = before.start..section.end;
        let candidates = [own, section, before, whole];
        let error_after = |candidate: &Range<usize>| {
            let mut attempt = self.chars.clone();
            clear(&mut attempt, &self.chars_of(candidate));
            let text: String = attempt.into_iter().collect();
            yaml::entries(&text)
                .err()
                .map_or(usize::MAX, |line| line.max(1) - 1)
        };
        // If several candidates move the first error equally far, the shortest of them comes first.
        let Some(lines) = candidates.into_iter().rev().max_by_key(error_after) else {
            return false;
        };
        if error_after(&lines) < lines.end {
            return false;
        }
        let key: String = self.line(self.section(lines.start).start).collect();
        let key = key.split(':').next().unwrap_or_default().to_owned();
        let range = self.chars_of(&lines);
        clear(&mut self.chars, &range);
        self.removed.push((key, range));
        true
    }

    /// Writes `{}` or `[]` at `start`, in place of the only entry of a mapping or list.
    fn write_empty(&mut self, entries: &[Entry], entry: &Entry, start: usize) {
        let Some(parent) = entry.parent_in(entries) else {
            return;
        };
        if parent.parent.is_none() && !entry.is_item {
            return;
        }
        // `[]` must have more indentation than the key of the list, which a block list does not need.
        let start = start + usize::from(entry.is_item);
        let empty = if entry.is_item {
            ['[', ']']
        } else {
            ['{', '}']
        };
        if let Some(place) = self.chars.get_mut(start..start + 2)
            && place[1] != '\n'
        {
            place.copy_from_slice(&empty);
        }
    }

    /// The indexes of the characters of an entry, including its key and its value.
    pub(crate) fn range(&self, entries: &[Entry], entry: &Entry) -> Range<usize> {
        if entry.parent.is_none() {
            return 0..self.chars.len();
        }
        let mut start = self.index(entry.start);
        if self.is_flow(entries, entry) {
            return start..self.flow_end(start);
        }
        if entry.is_item {
            let before = self.chars.get(..start).unwrap_or_default();
            let dash = before.iter().rposition(|c| *c == '-');
            start = dash.unwrap_or(start);
        }
        let (line, column) = self.line_and_column(start);
        let block = self.block(line, column, entry.is_item);
        start..self.chars_of(&block).end
    }

    /// Whether an entry is in flow notation: between the brackets of a mapping (`{}`) or a list (`[]`).
    pub(crate) fn is_flow(&self, entries: &[Entry], entry: &Entry) -> bool {
        let Some(parent) = entry.parent_in(entries) else {
            return false;
        };
        let bracket = if entry.is_item { '[' } else { '{' };
        // A list without brackets has the position of its first item, so the character there is no bracket.
        self.chars.get(self.index(parent.value)) == Some(&bracket)
    }

    /// The index after an entry in flow notation and the comma after it.
    fn flow_end(&self, start: usize) -> usize {
        let mut depth = 0_usize;
        let mut quote = None;
        let mut previous = ' ';
        for (index, c) in self.chars.iter().enumerate().skip(start) {
            let begins_value = index == start || matches!(previous, ' ' | '[' | '{' | ',' | ':');
            match *c {
                c if quote == Some(c) => quote = None,
                _ if quote.is_some() => {}
                '"' | '\'' if begins_value => quote = Some(*c),
                '{' | '[' => depth += 1,
                '}' | ']' if depth == 0 => return index,
                '}' | ']' => depth -= 1,
                ',' if depth == 0 => return index + 1,
                _ => {}
            }
            previous = *c;
        }
        self.chars.len()
    }

    /// The lines of the block that begins on a line: this line, and the following lines with more than `indent`
    /// indentation. If the block is a key with a list, the items may have the indentation of the key.
    fn block(&self, line: usize, indent: usize, is_item: bool) -> Range<usize> {
        let ends = |other: &usize| {
            self.indentation(*other).is_some_and(|indentation| {
                let is_nested_item = !is_item && self.line(*other).nth(indentation) == Some('-');
                indentation < indent || indentation == indent && !is_nested_item
            })
        };
        let end = (line + 1..self.lines.len()).find(ends);
        line..end.unwrap_or(self.lines.len())
    }

    /// The range of lines of the top-level entry that contains `line`.
    fn section(&self, line: usize) -> Range<usize> {
        let starts = |line: &usize| {
            self.indentation(*line) == Some(0) && self.line(*line).next() != Some('-')
        };
        let start = (0..=line).rev().find(starts).unwrap_or(0);
        let end = (line + 1..self.lines.len()).find(starts);
        start..end.unwrap_or(self.lines.len())
    }

    /// The characters of a line of the original text, without its line break. Lines are counted from 0.
    fn line(&self, line: usize) -> impl Iterator<Item = char> {
        self.original.lines().nth(line).unwrap_or_default().chars()
    }

    /// The number of spaces before the first character of a line. `None`: the line is empty or a comment.
    fn indentation(&self, line: usize) -> Option<usize> {
        let index = self.line(line).position(|c| !c.is_whitespace())?;
        let is_comment = self.line(line).nth(index) == Some('#');
        (!is_comment).then_some(index)
    }

    fn chars_of(&self, lines: &Range<usize>) -> Range<usize> {
        let start = |line: usize| self.lines.get(line).copied().unwrap_or(self.chars.len());
        start(lines.start)..start(lines.end)
    }

    fn index(&self, position: super::error::Position) -> usize {
        let line = self.lines.get(position.line.saturating_sub(1)).copied();
        line.unwrap_or(self.chars.len()) + position.column.saturating_sub(1)
    }

    pub(crate) fn line_and_column(&self, index: usize) -> (usize, usize) {
        let line = self
            .lines
            .partition_point(|start| *start <= index)
            .saturating_sub(1);
        (line, index - self.lines.get(line).copied().unwrap_or(0))
    }
}

fn clear(chars: &mut [char], range: &Range<usize>) {
    for c in chars.get_mut(range.clone()).unwrap_or_default() {
        if *c != '\n' {
            *c = ' ';
        }
    }
}
