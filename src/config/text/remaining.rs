//! The text of a configuration file without the entries that have mistakes. Spaces replace the removed characters,
//! so that all other entries keep their lines and columns.

use super::yaml::{self, Entry};
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
        let chars: Vec<char> = original.chars().collect();
        let ends = chars
            .iter()
            .enumerate()
            .filter(|(_, c)| **c == '\n')
            .map(|(index, _)| index + 1);
        let lines = std::iter::once(0).chain(ends).collect();
        Self {
            original,
            chars,
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
    pub(crate) fn is_damaged(&self, entries: &[Entry], entry: usize) -> bool {
        let range = self.range(entries, entry);
        self.removed
            .iter()
            .any(|(_, removed)| range.contains(&removed.start))
    }

    /// Whether a part of the list item that contains the entry was removed.
    pub(crate) fn is_item_damaged(&self, entries: &[Entry], entry: usize) -> bool {
        let parent = |index: &usize| entries.get(*index).and_then(|entry| entry.parent);
        let is_item = |index: &usize| entries.get(*index).is_some_and(|entry| entry.is_item);
        let item = std::iter::successors(Some(entry), parent).find(is_item);
        item.is_some_and(|item| self.is_damaged(entries, item))
    }

    /// Whether the value at a path, or a value directly below it, was removed.
    pub(crate) fn is_removed(&self, entries: &[Entry], path: &str) -> bool {
        let is_there = entries.iter().any(|entry| entry.path == path);
        self.removed.iter().any(|(removed, _)| {
            let is_above = path == removed
                || path
                    .strip_prefix(removed.as_str())
                    .is_some_and(|rest| rest.starts_with('.'));
            let below = removed
                .strip_prefix(path)
                .and_then(|rest| rest.strip_prefix('.'));
            is_above && !is_there || below.is_some_and(|key| !key.contains('.'))
        })
    }

    /// Replaces an invalid name of a list item by a valid one. Without the required name, the item's other keys
    /// could not be checked. Returns whether the entry is a name.
    pub(crate) fn rename(&mut self, entries: &[Entry], entry: usize) -> bool {
        let Some(Entry { path, value, .. }) = entries.get(entry) else {
            return false;
        };
        let start = self.index(*value);
        let range = start..start + value.len;
        let Some(name) = self
            .chars
            .get_mut(range.clone())
            .filter(|name| !name.is_empty() && !name.contains(&'\n'))
        else {
            return false;
        };
        // The letter depends on the line, so that new names on different lines differ.
        let letter = u32::try_from(value.line % 26)
            .ok()
            .and_then(|line| char::from_u32(u32::from('a') + line));
        if path.rsplit('.').next() != Some("name") || letter.is_none() {
            return false;
        }
        name.fill(letter.unwrap_or('a'));
        self.removed.push((path.clone(), range));
        true
    }

    /// Removes an entry, and then enclosing entries until the remaining text is valid YAML. Returns whether it
    /// is.
    pub(crate) fn remove(&mut self, entries: &[Entry], entry: usize) -> bool {
        let mut next = Some(entry);
        while let Some(index) = next {
            let Some(Entry { path, parent, .. }) = entries.get(index) else {
                return false;
            };
            let range = self.range(entries, index);
            let siblings = entries
                .iter()
                .filter(|other| other.parent == *parent)
                .count();
            let is_flow = self.is_flow(entries, index);
            self.clear(&range);
            if siblings == 1 && !is_flow {
                self.write_empty(entries, index, range.start);
            }
            self.removed.push((path.clone(), range));
            if yaml::entries(&self.text()).is_ok() {
                return true;
            }
            next = *parent;
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
        let found = candidates.iter().map(error_after).enumerate().rev();
        let Some((index, error)) = found.max_by_key(|(_, line)| *line) else {
            return false;
        };
        let Some(lines) = candidates.get(index) else {
            return false;
        };
        if error < lines.end {
            return false;
        }
        let key: String = self.line(self.section(lines.start).start).collect();
        let key = key.split(':').next().unwrap_or_default().to_owned();
        let range = self.chars_of(lines);
        self.clear(&range);
        self.removed.push((key, range));
        true
    }

    fn clear(&mut self, range: &Range<usize>) {
        clear(&mut self.chars, range);
    }

    /// Writes `{}` or `[]` at `start`, in place of the only entry of a mapping or list.
    fn write_empty(&mut self, entries: &[Entry], entry: usize, start: usize) {
        let Some(Entry {
            parent: Some(parent),
            is_item,
            ..
        }) = entries.get(entry)
        else {
            return;
        };
        let is_root = entries
            .get(*parent)
            .is_some_and(|parent| parent.parent.is_none());
        if is_root && !is_item {
            return;
        }
        // `[]` must have more indentation than the key of the list, which a block list does not need.
        let (empty, start) = if *is_item {
            (['[', ']'], start + 1)
        } else {
            (['{', '}'], start)
        };
        if let Some([first, second]) = self.chars.get_mut(start..start + 2)
            && *second != '\n'
        {
            [*first, *second] = empty;
        }
    }

    /// The indexes of the characters of an entry, including its key and its value.
    pub(crate) fn range(&self, entries: &[Entry], entry: usize) -> Range<usize> {
        let Some(Entry {
            start,
            parent,
            is_item,
            ..
        }) = entries.get(entry)
        else {
            return 0..0;
        };
        if parent.is_none() {
            return 0..self.chars.len();
        }
        let start_index = self.index(*start);
        if self.is_flow(entries, entry) {
            return start_index..self.flow_end(start_index);
        }
        if *is_item {
            let before = self.chars.get(..start_index).unwrap_or_default();
            let dash = before
                .iter()
                .rposition(|c| *c == '-')
                .unwrap_or(start_index);
            let (line, column) = self.line_and_column(dash);
            return dash..self.chars_of(&self.block(line, column, true)).end;
        }
        let (line, column) = self.line_and_column(start_index);
        start_index..self.chars_of(&self.block(line, column, false)).end
    }

    /// Whether an entry is in flow notation: between the brackets of a mapping (`{}`) or a list (`[]`).
    pub(crate) fn is_flow(&self, entries: &[Entry], entry: usize) -> bool {
        let Some(Entry {
            parent: Some(parent),
            is_item,
            ..
        }) = entries.get(entry)
        else {
            return false;
        };
        let value = entries.get(*parent).map(|parent| self.index(parent.value));
        // A list without brackets has the position of its first item, so the character there is no bracket.
        value.and_then(|index| self.chars.get(index)) == Some(if *is_item { &'[' } else { &'{' })
    }

    /// The index after an entry in flow notation and the comma after it.
    pub(crate) fn flow_end(&self, start: usize) -> usize {
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
        let first = self
            .line(line)
            .enumerate()
            .find(|(_, c)| !c.is_whitespace());
        first.filter(|(_, c)| *c != '#').map(|(index, _)| index)
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
    let removed = chars.get_mut(range.clone()).unwrap_or_default();
    removed
        .iter_mut()
        .filter(|c| **c != '\n')
        .for_each(|c| *c = ' ');
}
