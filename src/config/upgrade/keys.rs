//! Rewrites the keys of a configuration. Each edit is inside one line, so comments and layout are preserved.

use super::lines::{LineEdit, UpgradeNote};
use crate::config::text::remaining::RemainingText;
use crate::config::text::renames::{RenamedKey, Renames, last_key, section_of, without_indexes};
use crate::config::text::yaml::{Entry, child_path};
use serde_json::Value;
use std::ops::Range;

/// The section of the Helm chart's values that contains the configuration.
const CHART_SECTION: &str = "config.";

/// The change of an entry of the file.
#[derive(Clone, Copy)]
enum Action<'a> {
    Keep,
    Rename(&'a str),
    Replace(&'a str),
    /// The entry moves to a path in another section.
    Move(&'a str),
    /// The value is appended to the value of this sibling.
    Join(&'a str),
    /// The entry is removed. The text tells the operator what to do.
    Remove(&'a str),
}

/// The keys of a configuration and their edits.
pub(super) struct KeyRewriter<'a> {
    renames: &'a Renames,
    text: RemainingText<'a>,
    lines: Vec<Vec<char>>,
    entries: &'a [Entry],
    values: &'a Value,
    actions: Vec<Action<'a>>,
    pub(super) edits: Vec<LineEdit>,
    pub(super) notes: Vec<UpgradeNote>,
}

fn one_line(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Whether a value has no effect, because it is empty or equals the default.
fn is_without_effect(value: &Value, default: Option<&str>) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.iter().all(|item| is_without_effect(item, default)),
        Value::Object(keys) => keys.values().all(|value| is_without_effect(value, default)),
        scalar => default == Some(&one_line(scalar)),
    }
}

impl Action<'_> {
    /// Whether the action removes the entry from its place.
    const fn removes(&self) -> bool {
        matches!(self, Self::Join(_) | Self::Move(_) | Self::Remove(_))
    }
}

impl<'a> KeyRewriter<'a> {
    pub(super) fn new(
        text: &'a str,
        entries: &'a [Entry],
        values: &'a Value,
        renames: &'a Renames,
    ) -> Self {
        Self {
            renames,
            text: RemainingText::new(text),
            lines: text.lines().map(|line| line.chars().collect()).collect(),
            entries,
            values,
            actions: Vec::new(),
            edits: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Finds the edits and the notes.
    pub(super) fn rewrite(mut self) -> Self {
        self.actions = self.actions();
        for (index, entry) in self.entries.iter().enumerate() {
            let action = self.actions[index];
            if let Action::Remove(help) = action {
                self.note_help(entry, help);
            }
            if entry.parent.is_some_and(|parent| self.is_gone(parent)) {
                continue;
            }
            match action {
                Action::Keep => {}
                Action::Rename(name) => self.rename(entry, name),
                Action::Replace(text) => self.replace(entry, text),
                Action::Join(sibling) => {
                    self.join(entry, sibling);
                    self.remove(index, entry, "joined");
                }
                Action::Move(to) => self.remove(index, entry, &format!("moved to `{to}`")),
                Action::Remove(help) => self.remove(index, entry, help),
            }
        }
        // New text goes after the comments of the last line.
        for (index, entry) in self.entries.iter().enumerate() {
            if let Action::Move(to) = self.actions[index] {
                self.append(entry, to);
            }
        }
        self
    }

    /// The action for each entry. A section that becomes empty is removed too.
    fn actions(&self) -> Vec<Action<'a>> {
        let entries = self.entries.iter();
        let mut actions: Vec<Action<'a>> = entries.map(|entry| self.action(entry)).collect();
        for index in (1..self.entries.len()).rev() {
            let has_children = self.children(index).next().is_some();
            let is_empty = self.children(index).all(|child| actions[child].removes());
            if has_children && is_empty && !actions[index].removes() {
                actions[index] = Action::Remove("no key of it is left");
            }
        }
        actions
    }

    fn action(&self, entry: &Entry) -> Action<'a> {
        let Some(key) = self.renamed_key(entry) else {
            return Action::Keep;
        };
        let value = self.value(&entry.path);
        if let Some(text) = key.values.get(&one_line(value)) {
            return Action::Replace(text);
        }
        if let Some(sibling) = &key.joins {
            return Action::Join(sibling);
        }
        let Some(to) = &key.to else {
            let is_kept = key.by_hand && !is_without_effect(value, None);
            return if is_kept {
                Action::Keep
            } else {
                Action::Remove(key.help())
            };
        };
        if section_of(to) == self.renames.current_path(section_of(&key.from)) {
            return Action::Rename(last_key(to));
        }
        if value.is_null() {
            return Action::Remove(key.help());
        }
        Action::Move(to)
    }

    /// Whether an entry, or one that contains it, is removed from its place.
    fn is_gone(&self, index: usize) -> bool {
        let parent = |index: &usize| self.entries[*index].parent;
        std::iter::successors(Some(index), parent).any(|above| self.actions[above].removes())
    }

    /// The rename of an entry. `None`: its key is unchanged.
    fn renamed_key(&self, entry: &Entry) -> Option<&'a RenamedKey> {
        if entry.is_item {
            return None;
        }
        let path = without_indexes(&entry.path);
        self.renames
            .key(path.strip_prefix(CHART_SECTION).unwrap_or(&path))
    }

    fn children(&self, index: usize) -> impl Iterator<Item = usize> {
        let entries = self.entries.iter().enumerate();
        let children = entries.filter(move |(_, entry)| entry.parent == Some(index));
        children.map(|(child, _)| child)
    }

    fn value(&self, path: &str) -> &'a Value {
        let pointer = format!("/{}", path.replace('.', "/"));
        self.values.pointer(&pointer).unwrap_or(&Value::Null)
    }

    fn line(&self, line: usize) -> &[char] {
        self.lines.get(line).map(Vec::as_slice).unwrap_or_default()
    }

    fn edit(&mut self, line: usize, columns: Range<usize>, text: impl Into<String>) {
        self.edits.push(LineEdit {
            line,
            columns,
            text: text.into(),
        });
    }

    fn note(&mut self, entry: &Entry, problem: &str) {
        self.notes.push(UpgradeNote {
            line: entry.start.line,
            problem: format!("`{}`: {problem}", entry.path),
        });
    }

    fn rename(&mut self, entry: &Entry, name: &str) {
        let line = entry.start.line - 1;
        let mut start = entry.start.column - 1;
        // A key may be quoted.
        if matches!(self.line(line).get(start), Some('"' | '\'')) {
            start += 1;
        }
        let old = last_key(&entry.path);
        self.edit(line, start..start + old.chars().count(), name);
    }

    fn replace(&mut self, entry: &Entry, text: &str) {
        let end = entry.value.column - 1 + entry.value.len;
        self.edit(entry.start.line - 1, entry.start.column - 1..end, text);
    }

    /// Appends the value to the value of a sibling, after a colon.
    fn join(&mut self, entry: &Entry, sibling: &str) {
        let path = child_path(section_of(&entry.path), sibling);
        let Some(target) = self.entries.iter().find(|entry| entry.path == path) else {
            self.note(entry, "write it by hand");
            return;
        };
        let line = target.value.line - 1;
        let mut end = target.value.column - 1 + target.value.len;
        if matches!(self.line(line).get(end - 1), Some('"' | '\'')) {
            end -= 1;
        }
        let value = one_line(self.value(&entry.path));
        self.edit(line, end..end, format!(":{value}"));
    }

    /// Writes an entry into a new section at the end of the file.
    fn append(&mut self, entry: &Entry, to: &str) {
        if entry.path.starts_with(CHART_SECTION) {
            self.note(entry, &format!("move it to `{to}` by hand"));
            return;
        }
        let last = self.lines.len() - 1;
        let end = self.line(last).len();
        let section = section_of(to);
        let key = last_key(to);
        // JSON values are valid YAML.
        let value = self.value(&entry.path);
        self.edit(last, end..end, format!("\n{section}:\n  {key}: {value}"));
    }

    /// Notes the remedy for a removed entry, unless its value has no effect.
    fn note_help(&mut self, entry: &Entry, help: &str) {
        let Some(key) = self.renamed_key(entry).filter(|key| key.to.is_none()) else {
            return;
        };
        if !is_without_effect(self.value(&entry.path), key.default.as_deref()) {
            self.note(entry, help);
        }
    }

    /// Turns an entry into a comment. In flow notation, which has no comments, the entry is deleted.
    fn remove(&mut self, index: usize, entry: &Entry, reason: &str) {
        let range = self.text.range(self.entries, entry);
        if self.text.is_flow(self.entries, entry) {
            self.delete(index, entry, range);
            return;
        }
        let (first, column) = self.text.line_and_column(range.start);
        let (last, end) = self.text.line_and_column(range.end);
        let last = last + usize::from(end > 0);
        for number in first..last.min(self.lines.len()) {
            let line = self.line(number);
            let length = line.len();
            let indentation = line.iter().position(|c| *c != ' ').unwrap_or(length);
            if number == first {
                self.edit(number, column..column, "# ");
                self.edit(number, length..length, format!("  # 0.2: {reason}"));
            } else if line.get(indentation).is_some_and(|c| *c != '#') {
                self.edit(number, indentation..indentation, "# ");
            }
        }
    }

    /// Deletes an entry in flow notation with one adjacent comma.
    fn delete(&mut self, index: usize, entry: &Entry, range: Range<usize>) {
        let (line, mut start) = self.text.line_and_column(range.start);
        let (last_line, mut end) = self.text.line_and_column(range.end);
        if line != last_line {
            self.note(entry, "remove it by hand");
            return;
        }
        let is_gap = |column: usize| matches!(self.line(line).get(column), Some(' ' | ','));
        if self.is_followed(index, entry) {
            while self.line(line).get(end) == Some(&' ') {
                end += 1;
            }
        } else {
            while start > 0 && is_gap(start - 1) {
                start -= 1;
            }
            while is_gap(end - 1) {
                end -= 1;
            }
        }
        self.edit(line, start..end, "");
    }

    /// Whether a later entry of the same mapping or list stays.
    fn is_followed(&self, index: usize, entry: &Entry) -> bool {
        let mut siblings = entry
            .parent
            .into_iter()
            .flat_map(|parent| self.children(parent));
        siblings.any(|other| other > index && !self.actions[other].removes())
    }
}
