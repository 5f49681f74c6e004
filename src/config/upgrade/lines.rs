//! The lines of a file with their replacements, the unified diff, and notes about lines.

use std::fmt::{self, Write};
use std::ops::Range;

/// Number of unchanged lines that the diff shows around a change.
const CONTEXT: usize = 3;

/// A note about a change that the operator has to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpgradeNote {
    /// The line number, counted from 1.
    pub line: usize,
    /// The present text and its replacement.
    pub problem: String,
}

/// A replacement of characters of one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LineEdit {
    pub(super) line: usize,
    /// The indexes of the replaced characters. If the range is empty, the text is inserted.
    pub(super) columns: Range<usize>,
    /// The new text. It may contain line breaks.
    pub(super) text: String,
}

/// A file in which lines are replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EditedLines {
    lines: Vec<EditedLine>,
    /// Whether the last line has a line break.
    is_ended: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct EditedLine {
    old: String,
    /// The text that replaces the old line. It may contain line breaks.
    new: String,
}

impl EditedLine {
    fn is_changed(&self) -> bool {
        self.new != self.old
    }
}

impl EditedLines {
    /// The lines of `old`, replaced by those of `new` where they differ. Both texts have the same number of
    /// lines.
    pub(super) fn new(old: &str, new: &str) -> Self {
        let lines = old.lines().zip(new.lines());
        let line = |(old, new): (&str, &str)| EditedLine {
            old: old.to_owned(),
            new: new.to_owned(),
        };
        Self {
            lines: lines.map(line).collect(),
            is_ended: old.ends_with('\n'),
        }
    }

    /// Applies edits that do not overlap. A line may have several.
    pub(super) fn apply(&mut self, mut edits: Vec<LineEdit>) {
        // Edits are applied from the end of a line to its start, so that the columns of the other edits stay
        // valid.
        edits.sort_by_key(|edit| (edit.line, edit.columns.start));
        for edit in edits.into_iter().rev() {
            let Some(line) = self.lines.get_mut(edit.line) else {
                continue;
            };
            let before = line.new.chars().take(edit.columns.start);
            let after = line.new.chars().skip(edit.columns.end);
            line.new = before.chain(edit.text.chars()).chain(after).collect();
        }
    }

    /// The text of the whole file after all replacements.
    pub fn text(&self) -> String {
        let lines: Vec<&str> = self.lines.iter().map(|line| &*line.new).collect();
        let end = if self.is_ended { "\n" } else { "" };
        lines.join("\n") + end
    }

    /// Whether a line is replaced.
    pub fn is_changed(&self) -> bool {
        self.lines.iter().any(EditedLine::is_changed)
    }

    /// The parts of the diff: the indexes of changed lines with their context. Changes that are close together
    /// share a part.
    fn hunks(&self) -> Vec<Range<usize>> {
        let mut hunks: Vec<Range<usize>> = Vec::new();
        for (index, line) in self.lines.iter().enumerate() {
            if !line.is_changed() {
                continue;
            }
            let start = index.saturating_sub(CONTEXT);
            let end = (index + 1 + CONTEXT).min(self.lines.len());
            match hunks.last_mut() {
                Some(last) if start <= last.end => last.end = end,
                _ => hunks.push(start..end),
            }
        }
        hunks
    }

    /// The difference between the old and the new text in the unified format. Empty: no difference.
    pub fn diff(&self, file: &str) -> String {
        let mut diff = String::new();
        if self.is_changed() {
            // Writing to a string cannot fail.
            let _ = self.write_diff(&mut diff, file);
        }
        diff
    }

    fn write_diff(&self, diff: &mut String, file: &str) -> fmt::Result {
        writeln!(diff, "--- {file}\n+++ {file}")?;
        let mut new_start = 1;
        let mut seen = 0;
        for hunk in self.hunks() {
            let new_lines = |lines: Range<usize>| -> usize {
                let lines = self.lines.get(lines).unwrap_or_default();
                let breaks = lines.iter().map(|line| line.new.matches('\n').count());
                lines.len() + breaks.sum::<usize>()
            };
            new_start += new_lines(seen..hunk.start);
            let added = new_lines(hunk.clone());
            writeln!(
                diff,
                "@@ -{},{} +{new_start},{added} @@",
                hunk.start + 1,
                hunk.len()
            )?;
            new_start += added;
            seen = hunk.end;
            for line in self.lines.get(hunk).unwrap_or_default() {
                if !line.is_changed() {
                    writeln!(diff, " {}", line.old)?;
                    continue;
                }
                writeln!(diff, "-{}", line.old)?;
                for new in line.new.split('\n') {
                    writeln!(diff, "+{new}")?;
                }
            }
        }
        Ok(())
    }
}
