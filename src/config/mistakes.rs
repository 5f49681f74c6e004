//! Finds all mistakes of a configuration file. The parser and the rules stop at the first mistake.
//! The entry with the mistake is then removed, and the remaining text is parsed again. Removed lines
//! become empty, so that the other positions stay valid.

use super::load::LoadedConfig;
use super::overrides::Overrides;
use super::root::Config;
use super::text::error::{ConfigError, ConfigLocation};
use super::text::{file, yaml};
use serde::de::IgnoredAny;
use std::ops::Range;
use std::path::Path;

/// Maximum number of entries that are removed from one file.
const MAX_REMOVALS: usize = 100;

impl Config {
    /// Like [`Config::load`] without overrides, but returns all mistakes of the file. A mistake that
    /// may follow from an earlier one is left out.
    pub fn load_all(file: &Path) -> Result<LoadedConfig, Vec<ConfigError>> {
        let text = file::read(file).map_err(|error| vec![error])?;
        let mut remaining = RemainingText::new(&text);
        let mut mistakes = Vec::new();
        for _ in 0..MAX_REMOVALS {
            let parsed = Self::parse_for_paths(&remaining.text(), file, Overrides::default());
            let (error, paths) = match parsed {
                Ok(loaded) if mistakes.is_empty() => return Ok(loaded),
                Ok(_) => break,
                Err(mistake) => mistake,
            };
            let Some(ConfigLocation::File(_, Some(position))) = error.location() else {
                mistakes.push(error);
                break;
            };
            let (line, column) = (position.line - 1, position.column - 1);
            let is_consequence = remaining.is_damaged(line)
                || yaml::is_missing_key(error.problem()) && remaining.is_container_damaged(line)
                || paths.iter().skip(1).any(|path| remaining.is_section_damaged(path));
            if !is_consequence {
                mistakes.push(error);
            }
            if !remaining.remove_entry(line, column) {
                break;
            }
        }
        Err(mistakes)
    }
}

/// The text of a file without the entries that were removed. Lines and columns are counted from 0.
struct RemainingText<'a> {
    original: Vec<&'a str>,
    /// The lines, of which removed ones are shorter or empty.
    lines: Vec<String>,
}

impl<'a> RemainingText<'a> {
    fn new(text: &'a str) -> Self {
        let original: Vec<&str> = text.lines().collect();
        Self { lines: original.iter().map(|line| (*line).to_owned()).collect(), original }
    }

    fn text(&self) -> String {
        self.lines.join("\n")
    }

    /// Whether a part of the entry that begins on a line was removed.
    fn is_damaged(&self, line: usize) -> bool {
        self.entry(line).any(|line| self.lines[line] != self.original[line])
    }

    /// Whether a part of the mapping was removed that contains the entry on a line.
    fn is_container_damaged(&self, line: usize) -> bool {
        let Some(first) = self.original.get(line) else { return false };
        self.parent(line, indentation(first)).is_some_and(|parent| self.is_damaged(parent))
    }

    /// Whether a part of the top-level section of a path was removed.
    fn is_section_damaged(&self, path: &str) -> bool {
        let section = path.split('.').next().unwrap_or(path);
        let begins =
            |line: &&str| line.strip_prefix(section).is_some_and(|rest| rest.starts_with(':'));
        let line = self.original.iter().position(begins);
        line.is_some_and(|line| self.is_damaged(line))
    }

    /// The last line before `line` that is indented less than `indent`.
    fn parent(&self, line: usize, indent: usize) -> Option<usize> {
        let is_parent =
            |other: &&str| !other.trim_start().is_empty() && indentation(other) < indent;
        self.original[..line].iter().rposition(is_parent)
    }

    /// The lines of the entry that begins on a line: the line, and those that are indented further.
    fn entry(&self, line: usize) -> Range<usize> {
        let Some(first) = self.original.get(line) else { return 0..0 };
        self.entry_at(line, indentation(first), first.trim_start().starts_with('-'))
    }

    fn entry_at(&self, line: usize, indent: usize, is_item: bool) -> Range<usize> {
        let ends = |other: &&str| {
            let is_nested_item = !is_item && other.trim_start().starts_with('-');
            let is_empty = other.trim_start().is_empty() || other.trim_start().starts_with('#');
            !is_empty
                && indentation(other) <= indent
                && !(is_nested_item && indentation(other) == indent)
        };
        let following = &self.original[line + 1..];
        let length = following.iter().position(ends);
        line..line + 1 + length.unwrap_or(following.len())
    }

    /// Removes the entry at a position, and the entries that contain it while the text is not YAML.
    /// Returns whether the remaining text is YAML.
    fn remove_entry(&mut self, line: usize, column: usize) -> bool {
        let Some(first) = self.original.get(line).copied() else { return false };
        let indent = indentation(first);
        // The first key of a list item is on the line of the dash. The other keys stay.
        let after_dash = first.trim_start().strip_prefix("- ").map(str::trim_start);
        let key_column = after_dash.map(|rest| first.chars().count() - rest.chars().count());
        let removed = match key_column {
            Some(key) if column >= key && self.lines[line] == first => {
                self.lines[line] = first.chars().take(key).collect();
                let mut entry = self.entry_at(line, key, false);
                entry.next();
                entry
            }
            _ => self.entry(line),
        };
        self.lines[removed].iter_mut().for_each(String::clear);
        if yaml::parse::<IgnoredAny>(&self.text(), Path::new("")).is_ok() {
            return true;
        }
        let parent = self.parent(line, indent);
        parent.is_some_and(|parent| self.remove_entry(parent, 0))
    }
}

fn indentation(line: &str) -> usize {
    line.chars().take_while(|c| *c == ' ').count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn mistakes(name: &str, text: &str) -> Vec<String> {
        let file = std::env::temp_dir().join(format!("tokenweir-{name}-{}", std::process::id()));
        fs::write(&file, text).unwrap();
        let loaded = Config::load_all(&file);
        fs::remove_file(&file).unwrap();
        let errors = loaded.err().unwrap_or_default();
        let first_line = |error: &ConfigError| error.to_string().lines().next().unwrap().to_owned();
        let shown = errors.iter().map(first_line);
        shown.map(|error| error.replace(&file.display().to_string(), "FILE")).collect()
    }

    #[test]
    fn every_mistake_is_found_at_its_position() {
        let text = "\
backends:
- url: http://a:1
  wieght: 2
- url: http://b:1/path
  name: b
- { url: http://c:1, names: c }
routng:
  policy: p2c
drain:
  timeout: 30
log: { level: loud }
scrape:
  # a comment
  timeout: 0s
  max_page: 0
admin: nonsense
";
        let found = mistakes("every", text);
        let positions: Vec<&str> =
            found.iter().map(|error| error.split(": ").next().unwrap()).collect();
        assert_eq!(
            positions,
            [
                "FILE:3:3",
                "FILE:4:8",
                "FILE:6:22",
                "FILE:7:1",
                "FILE:10:12",
                "FILE:11:15",
                "FILE:16:8",
                "FILE:14:12",
                "FILE:15:13"
            ],
            "{found:#?}"
        );
    }

    #[test]
    fn a_mistake_that_follows_from_another_one_is_left_out() {
        for text in [
            "tiers: { names: ['a b'] }\nadmission: { classes: ['a b'] }\n",
            "tls:\n  cert: a.pem\n  key: [b]\n",
            "backends:\n- url: [x]\n",
            "backends:\n- url: a:1\n  name: b\n- url: b:1\n  nam: c\nmodels:\n- name: m\n  \
             backends: [c]\n",
        ] {
            let found = mistakes("follows", text);
            assert_eq!(found.len(), 1, "{text}{found:#?}");
        }
    }

    #[test]
    fn a_text_that_is_not_yaml_has_one_mistake_and_a_valid_one_has_none() {
        assert_eq!(mistakes("syntax", "a: [\nb: }\n").len(), 1);
        assert_eq!(mistakes("valid", "log: { level: debug }\n"), Vec::<String>::new());
    }

    #[test]
    fn the_search_ends_for_every_cut_of_a_file() {
        let text = include_str!("../../config/tokenweir.yaml");
        for end in (0..text.len().min(6_000)).step_by(37).filter(|end| text.is_char_boundary(*end))
        {
            assert!(mistakes("cut", &text[..end]).len() < MAX_REMOVALS);
        }
    }
}
