//! Rewrites the keys of a configuration. Each edit is inside one line, so comments and layout stay.

use super::UpgradeNote;
use super::lines::LineEdit;
use crate::config::text::remaining::RemainingText;
use crate::config::text::renames::{RenamedKey, Renames, last_key, section_of, without_indexes};
use crate::config::text::yaml::{Entry, child_path};

/// The section of the values of the Helm chart that has the configuration.
const CHART_SECTION: &str = "config.";

/// What becomes of an entry of the file.
#[derive(Clone, Copy)]
enum Action<'a> {
    Keep,
    /// The key gets another name.
    Rename(&'a str),
    /// This key and value replace the entry.
    Replace(&'a str),
    /// The entry moves to a path in another section.
    Move(&'a str),
    /// The value goes to the end of the value of this sibling.
    Join(&'a str),
    /// The entry becomes a comment that ends with this text.
    Remove(&'a str),
}

impl Action<'_> {
    /// Whether the entry is no longer at its place.
    const fn removes(&self) -> bool {
        matches!(self, Self::Join(_) | Self::Move(_) | Self::Remove(_))
    }
}

/// The keys of a configuration and their edits.
pub(super) struct KeyRewriter<'a> {
    renames: &'a Renames,
    text: RemainingText<'a>,
    lines: Vec<Vec<char>>,
    entries: &'a [Entry],
    /// What becomes of each entry.
    actions: Vec<Action<'a>>,
    pub(super) edits: Vec<LineEdit>,
    pub(super) notes: Vec<UpgradeNote>,
}

impl<'a> KeyRewriter<'a> {
    pub(super) fn new(text: &'a str, entries: &'a [Entry], renames: &'a Renames) -> Self {
        Self {
            renames,
            text: RemainingText::new(text),
            lines: text.lines().map(|line| line.chars().collect()).collect(),
            entries,
            actions: Vec::new(),
            edits: Vec::new(),
            notes: Vec::new(),
        }
    }

    pub(super) fn rewrite(&mut self) {
        self.actions = self.actions();
        // The entry whose children are no longer there.
        let mut removed: Option<usize> = None;
        for (index, action) in self.actions.clone().into_iter().enumerate() {
            if removed.is_some_and(|ancestor| self.is_below(index, ancestor)) {
                continue;
            }
            if action.removes() {
                removed = Some(index);
            }
            match action {
                Action::Keep => {}
                Action::Rename(name) => self.rename(index, name),
                Action::Replace(text) => self.replace(index, text),
                Action::Join(sibling) => {
                    self.join(index, sibling);
                    self.remove(index, "joined");
                }
                Action::Move(to) => self.remove(index, &format!("moved to `{to}`")),
                Action::Remove(help) => {
                    self.remove(index, help);
                    self.note_value(index, help);
                }
            }
        }
        // A part of a removed section can move. Its text comes after the comment.
        for (index, action) in self.actions.clone().into_iter().enumerate() {
            if let Action::Move(to) = action {
                self.move_to(index, to);
            }
        }
    }

    /// What becomes of each entry. A section of which nothing is left is removed.
    fn actions(&self) -> Vec<Action<'a>> {
        let mut actions: Vec<Action<'a>> = (0..self.entries.len())
            .map(|index| self.action(index))
            .collect();
        for index in (1..self.entries.len()).rev() {
            let mut children = self.children(index).peekable();
            let is_empty = children.peek().is_some()
                && children.all(|child| actions.get(child).is_some_and(Action::removes));
            if let Some(action) = actions
                .get_mut(index)
                .filter(|action| is_empty && !action.removes())
            {
                *action = Action::Remove("no key of it is left");
            }
        }
        actions
    }

    fn action(&self, index: usize) -> Action<'a> {
        let Some(key) = self.renamed_key(index) else {
            return Action::Keep;
        };
        let value = self.value(index);
        if let Some(text) = value.as_ref().and_then(|value| key.values.get(value)) {
            return Action::Replace(text);
        }
        if let Some(sibling) = &key.joins {
            return Action::Join(sibling);
        }
        let Some(to) = &key.to else {
            return Action::Remove(key.help());
        };
        if section_of(to) == self.renames.current_path(section_of(&key.from)) {
            return Action::Rename(last_key(to));
        }
        match value.as_deref() {
            Some("null" | "~" | "") => Action::Remove("remove it"),
            _ => Action::Move(to),
        }
    }

    /// The row of an entry. `None`: its key has its name still.
    fn renamed_key(&self, index: usize) -> Option<&'a RenamedKey> {
        let entry = self.entries.get(index)?;
        let path = without_indexes(&entry.path);
        let path = path.strip_prefix(CHART_SECTION).unwrap_or(&path);
        if entry.is_item {
            None
        } else {
            self.renames.key(path)
        }
    }

    fn children(&self, index: usize) -> impl Iterator<Item = usize> {
        let is_child = move |(_, entry): &(usize, &Entry)| entry.parent == Some(index);
        self.entries
            .iter()
            .enumerate()
            .filter(is_child)
            .map(|(child, _)| child)
    }

    fn is_below(&self, index: usize, ancestor: usize) -> bool {
        let parent = |index: &usize| self.entries.get(*index).and_then(|entry| entry.parent);
        std::iter::successors(Some(index), parent).any(|above| above == ancestor)
    }

    /// The text of a value on one line, without a comment. `None`: the value has several lines.
    fn value(&self, index: usize) -> Option<String> {
        let entry = self.entries.get(index)?;
        let line = self.lines.get(entry.value.line - 1)?;
        let start = entry.value.column - 1;
        let is_bracketed = matches!(line.get(start), Some('[' | '{'));
        if !is_bracketed {
            let is_leaf = self.children(index).next().is_none();
            let text = line.iter().skip(start).take(entry.value.len).collect();
            return is_leaf.then_some(text);
        }
        let mut depth = 0_usize;
        for (column, c) in line.iter().enumerate().skip(start) {
            match c {
                '[' | '{' => depth += 1,
                ']' | '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Some(line.iter().take(column + 1).skip(start).collect());
            }
        }
        None
    }

    fn edit(&mut self, line: usize, columns: std::ops::Range<usize>, text: impl Into<String>) {
        let text = text.into();
        self.edits.push(LineEdit {
            line,
            columns,
            text,
        });
    }

    fn note(&mut self, index: usize, problem: &str) {
        if let Some(entry) = self.entries.get(index) {
            self.notes.push(UpgradeNote {
                line: entry.start.line,
                problem: format!("`{}`: {problem}", entry.path),
            });
        }
    }

    /// Notes what an operator does in place of a removed entry, unless its values change nothing.
    fn note_value(&mut self, index: usize, help: &str) {
        let default = self
            .renamed_key(index)
            .and_then(|key| key.default.as_deref());
        let changes_nothing = |leaf: usize| {
            let value = self.value(leaf).unwrap_or_default();
            let is_removed_alone = self
                .renamed_key(leaf)
                .is_some_and(|key| key.default.as_ref() == Some(&value) || key.to.is_some());
            is_removed_alone
                || default == Some(&value)
                || ["null", "~", "[]", "{}", ""].contains(&value.as_str())
        };
        let leaves = (index..self.entries.len()).filter(|leaf| self.is_below(*leaf, index));
        let mut leaves = leaves.filter(|leaf| self.children(*leaf).next().is_none());
        if !leaves.all(changes_nothing) {
            self.note(index, help);
        }
    }

    fn rename(&mut self, index: usize, name: &str) {
        let Some(entry) = self.entries.get(index) else {
            return;
        };
        let old = last_key(&entry.path);
        let start = entry.start.column - 1;
        let line = self.lines.get(entry.start.line - 1);
        // A key may be quoted.
        let is_quoted = line
            .and_then(|line| line.get(start))
            .is_some_and(|c| matches!(c, '"' | '\''));
        let start = start + usize::from(is_quoted);
        self.edit(
            entry.start.line - 1,
            start..start + old.chars().count(),
            name,
        );
    }

    fn replace(&mut self, index: usize, text: &str) {
        let Some(entry) = self.entries.get(index) else {
            return;
        };
        let end = entry.value.column - 1 + entry.value.len;
        self.edit(entry.start.line - 1, entry.start.column - 1..end, text);
    }

    /// Puts the value behind the value of a sibling, after a colon.
    fn join(&mut self, index: usize, sibling: &str) {
        let path = self
            .entries
            .get(index)
            .map_or("", |entry| section_of(&entry.path));
        let path = child_path(path, sibling);
        let sibling = self.entries.iter().position(|entry| entry.path == path);
        let value = self.value(index).unwrap_or_default();
        let Some((target, old)) =
            sibling.and_then(|sibling| Some((self.entries.get(sibling)?, self.value(sibling)?)))
        else {
            self.note(index, "write it by hand");
            return;
        };
        let is_quoted = old.ends_with(['"', '\'']);
        let end = target.value.column - 1 + target.value.len - usize::from(is_quoted);
        self.edit(target.value.line - 1, end..end, format!(":{value}"));
    }

    /// Writes an entry into another section, which is created at the end of the file if there is none.
    fn move_to(&mut self, index: usize, to: &str) {
        let Some(value) = self.value(index) else {
            self.note(index, &format!("move it to `{to}` by hand"));
            return;
        };
        let section = section_of(to);
        let key = last_key(to);
        let target = self.entries.iter().position(|entry| entry.path == section);
        let first_child = target.and_then(|target| self.children(target).next());
        let place = target
            .and_then(|target| self.entries.get(target))
            .zip(first_child.and_then(|child| self.entries.get(child)));
        match place {
            None => {
                let last = self.lines.len().saturating_sub(1);
                let end = self.lines.get(last).map_or(0, Vec::len);
                self.edit(last, end..end, format!("\n{section}:\n  {key}: {value}"));
            }
            Some((target, child)) if child.start.line > target.start.line => {
                let line = target.start.line - 1;
                let end = self.lines.get(line).map_or(0, Vec::len);
                let indentation = " ".repeat(child.start.column - 1);
                self.edit(line, end..end, format!("\n{indentation}{key}: {value}"));
            }
            Some(_) => self.note(index, &format!("move it to `{to}` by hand")),
        }
    }

    /// Makes an entry a comment. Between brackets, where there are no comments, the entry is deleted.
    fn remove(&mut self, index: usize, reason: &str) {
        if self.text.is_flow(self.entries, index) {
            self.delete(index);
            return;
        }
        let Some(entry) = self.entries.get(index) else {
            return;
        };
        let key_line = entry.start.line - 1;
        let end = self.text.range(self.entries, index).end;
        let (after, column) = self.text.line_and_column(end);
        let after = after + usize::from(column > 0);
        for number in key_line..after.min(self.lines.len()) {
            let line = self.lines.get(number).map(Vec::as_slice);
            let line = line.unwrap_or_default();
            let length = line.len();
            let Some(indentation) = line.iter().position(|c| *c != ' ') else {
                continue;
            };
            if number == key_line {
                let column = entry.start.column - 1;
                self.edit(number, column..column, "# ");
                self.edit(number, length..length, format!("  # 0.2: {reason}"));
            } else if line.get(indentation) != Some(&'#') {
                self.edit(number, indentation..indentation, "# ");
            }
        }
    }

    /// Deletes an entry between brackets with one of the commas beside it.
    fn delete(&mut self, index: usize) {
        let range = self.text.range(self.entries, index);
        let (line, mut start) = self.text.line_and_column(range.start);
        let (last_line, mut end) = self.text.line_and_column(range.end);
        if line != last_line {
            self.note(index, "remove it by hand");
            return;
        }
        let chars = self.lines.get(line).map(Vec::as_slice).unwrap_or_default();
        let is_one_of =
            |column: usize, set: &[char]| chars.get(column).is_some_and(|c| set.contains(c));
        if self.is_followed(index) {
            while is_one_of(end, &[' ']) {
                end += 1;
            }
        } else {
            while start > 0 && is_one_of(start - 1, &[' ', ',']) {
                start -= 1;
            }
            while is_one_of(end - 1, &[' ', ',']) {
                end -= 1;
            }
        }
        self.edit(line, start..end, "");
    }

    /// Whether an entry after this one stays in their mapping or list.
    fn is_followed(&self, index: usize) -> bool {
        let parent = self.entries.get(index).and_then(|entry| entry.parent);
        let mut siblings = parent.into_iter().flat_map(|parent| self.children(parent));
        let stays = |other: usize| {
            self.actions
                .get(other)
                .is_some_and(|action| !action.removes())
        };
        siblings.any(|other| other > index && stays(other))
    }
}
