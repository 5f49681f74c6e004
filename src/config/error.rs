//! What is wrong with a configuration, and where: a line of a file, a flag or a variable. The
//! first line is `PLACE: problem`, as compilers write it; the line of the file follows with a
//! caret below the mistake, and then what would be right.

use super::sources::Source;
use std::fmt;
use std::path::{Path, PathBuf};

/// Why there is no configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError(Box<Details>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Details {
    place: Option<Place>,
    problem: String,
    excerpt: Option<Excerpt>,
    help: Option<String>,
    is_unreadable: bool,
}

/// Where a configuration is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A file, or a position in it.
    File(PathBuf, Option<Position>),
    /// A flag, such as `--listen`, or an environment variable.
    Given(Source),
}

/// A line and a column, both counted from 1. Columns are characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
    /// Characters that are meant, from that column on.
    pub len: usize,
}

/// The line of a position, with what lies below the mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Excerpt {
    line: usize,
    text: String,
    below: String,
}

/// How much of a line is shown, besides what always hides: the values of secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// All of it.
    Nothing,
    /// All but the value of the key there, which may be a mistyped secret's.
    AfterKey,
    /// All but what is there, which may be a secret.
    Here,
}

/// Longest line that is shown, in characters.
const WIDTH: usize = 120;

/// What may be quoted where nothing of a file may be.
const OWN_NAMES: [&str; 5] = ["tenants", "keys", "name", "hash", "tokenweir key"];

/// The keys whose values are never shown.
const SECRET_KEYS: [&str; 2] = ["api_key", "admin_token"];

impl ConfigError {
    /// A problem that has no place.
    pub(super) fn new(problem: &str) -> Self {
        let problem = visible(problem);
        let (place, excerpt, help) = (None, None, None);
        Self(Box::new(Details { place, problem, excerpt, help, is_unreadable: false }))
    }

    /// A file that the system does not give us, whatever is in it.
    pub(super) fn unreadable(file: &Path, problem: &str) -> Self {
        let mut error = Self::new(problem).in_file(file);
        error.0.is_unreadable = true;
        error
    }

    /// At a flag or an environment variable.
    pub(super) fn given_by(mut self, source: Source) -> Self {
        self.0.place = Some(Place::Given(source));
        self
    }

    /// In a file, which cannot be shown.
    pub(super) fn in_file(mut self, file: &Path) -> Self {
        self.0.place = Some(Place::File(file.to_owned(), None));
        self
    }

    /// At a position in a file with this text. Values that may be secret are not shown.
    pub(super) fn at(mut self, file: &Path, position: Position, text: &str, cut: Cut) -> Self {
        let line = text.lines().nth(position.line.saturating_sub(1)).unwrap_or_default();
        self.0.excerpt = Some(Excerpt::new(line, position, cut));
        self.0.place = Some(Place::File(file.to_owned(), Some(position)));
        self
    }

    /// With what would be right.
    pub(super) fn with_help(mut self, help: Option<&str>) -> Self {
        self.0.help = help.map(visible);
        self
    }

    /// Without the line of the file.
    pub(super) fn without_excerpt(mut self) -> Self {
        self.0.excerpt = None;
        self
    }

    /// Without the line of the file, and without any word of it that the problem quotes.
    pub(super) fn without_quotes(mut self) -> Self {
        self.0.problem = unquoted(&self.0.problem);
        self.without_excerpt()
    }

    /// What is wrong.
    pub fn problem(&self) -> &str {
        &self.0.problem
    }

    /// Whether the file could not be read. The reason may pass while the file stays as it is.
    pub fn is_unreadable(&self) -> bool {
        self.0.is_unreadable
    }

    /// Where, if it is at one place.
    pub fn place(&self) -> Option<&Place> {
        self.0.place.as_ref()
    }

    /// What would be right, if that is known.
    pub fn help(&self) -> Option<&str> {
        self.0.help.as_deref()
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Details { place, problem, excerpt, help, .. } = &*self.0;
        if let Some(place) = place {
            write!(f, "{place}: ")?;
        }
        f.write_str(problem)?;
        let margin = excerpt.as_ref().map_or(0, |excerpt| excerpt.line.to_string().len());
        if let Some(Excerpt { line, text, below }) = excerpt {
            write!(f, "\n{:margin$} |\n{line} | {text}\n{:margin$} | {below}", "", "")?;
        }
        match help {
            Some(help) if margin > 0 => write!(f, "\n{:margin$} = help: {help}", ""),
            Some(help) => write!(f, "\nhelp: {help}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file, None) => write!(f, "{}", file.display()),
            Self::File(file, Some(at)) => write!(f, "{}:{}:{}", file.display(), at.line, at.column),
            Self::Given(Source::Flag(name) | Source::Environment(name)) => f.write_str(name),
            Self::Given(source) => write!(f, "{source}"),
        }
    }
}

// === impl Excerpt ===

impl Excerpt {
    fn new(line: &str, position: Position, cut: Cut) -> Self {
        let mut shown: Vec<char> = line.chars().collect();
        let mut column = position.column.saturating_sub(1).min(shown.len());
        let mut len = position.len.min(shown.len() - column);
        let cut = match cut {
            Cut::Nothing => None,
            Cut::Here => Some((column, "[redacted]")),
            Cut::AfterKey => value_of(&shown, column + len).map(|value| (value, "…")),
        };
        let secret = mask(line).map(|value| (value, "[redacted]"));
        if let Some((end, instead)) = cut.into_iter().chain(secret).min()
            && end < shown.len()
        {
            shown.truncate(end);
            shown.extend(instead.chars());
            (column, len) = if column < end { (column, len.min(end - column)) } else { (end, 1) };
        }
        let start = if shown.len() > WIDTH { column.saturating_sub(WIDTH / 2) } else { 0 };
        let window = shown.get(start..).unwrap_or_default();
        let text: String = window.iter().take(WIDTH).collect();
        // Tabs stay tabs, so that the caret stands where the terminal puts the mistake.
        let indent = window.iter().take(column - start);
        let mut below: String = indent.map(|c| if *c == '\t' { '\t' } else { ' ' }).collect();
        below.push_str(&"^".repeat(len.clamp(1, WIDTH / 2)));
        Self { line: position.line, text: visible(&text), below }
    }
}

/// Where the value begins whose key ends before this column, if it stands on the same line.
fn value_of(line: &[char], key_end: usize) -> Option<usize> {
    let colon = key_end + line.get(key_end..)?.iter().position(|c| *c == ':')?;
    let blanks = line.get(colon + 1..)?.iter().take_while(|c| c.is_whitespace()).count();
    Some(colon + 1 + blanks)
}

/// The column from which on a line is not shown, because a secret may follow: the value of a
/// secret key, or a password in a URL.
fn mask(line: &str) -> Option<usize> {
    let chars: Vec<char> = line.chars().collect();
    let column = |text: &str| line.split_once(text).map(|(before, _)| before.chars().count());
    let secret_keys = SECRET_KEYS.iter().filter_map(|key| column(key));
    let after_key = secret_keys.filter_map(|key| value_of(&chars, key)).min();
    let in_url = column("://").map(|scheme| scheme + 3);
    let in_url = in_url.filter(|user| chars.get(*user..).is_some_and(|rest| rest.contains(&'@')));
    after_key.into_iter().chain(in_url).min()
}

/// A text without what it quotes, from the first mark to the last, unless that is a name of ours.
fn unquoted(text: &str) -> String {
    let Some(start) = text.find(['`', '"']) else { return text.to_owned() };
    let (before, rest) = text.split_at(start);
    let (mark, rest) = rest.split_at(1);
    let (quoted, after) = rest.rsplit_once(mark).unwrap_or((rest, ""));
    let shown = if OWN_NAMES.contains(&quoted) { quoted } else { "…" };
    format!("{before}{mark}{shown}{mark}{}", unquoted(after))
}

/// Text from a file as a terminal may show it: control characters could rewrite the screen.
fn visible(text: &str) -> String {
    let replace = |c: char| if c.is_control() && c != '\t' { '\u{fffd}' } else { c };
    text.chars().map(replace).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, line: usize, column: usize, len: usize) -> String {
        let position = Position { line, column, len };
        ConfigError::new("wrong").at(Path::new("a.yaml"), position, text, Cut::Nothing).to_string()
    }

    #[test]
    fn the_caret_stands_below_the_mistake() {
        assert_eq!(
            at("a: 1\n\tbé: x\n", 2, 6, 1),
            "a.yaml:2:6: wrong\n  |\n2 | \tbé: x\n  | \t    ^"
        );
        assert_eq!(at("a", 1, 9, 5), "a.yaml:1:9: wrong\n  |\n1 | a\n  |  ^");
        assert_eq!(at("", 7, 1, 1), "a.yaml:7:1: wrong\n  |\n7 | \n  | ^");
    }

    #[test]
    fn a_long_line_is_shown_around_the_mistake() {
        let line = format!("{}!{}", "a".repeat(1_000), "b".repeat(1_000));
        let shown = at(&line, 1, 1_001, 1);
        assert!(shown.contains("aaa!bbb") && shown.len() < 400, "{shown}");
        assert_eq!(shown.lines().nth(3).unwrap().find('^'), Some(4 + WIDTH / 2));
    }

    #[test]
    fn the_value_of_a_secret_is_masked_wherever_the_mistake_is() {
        for column in [1, 5, 20, 30] {
            let shown = at("- { api_key: sk-123, url: x }", 1, column, 3);
            assert!(shown.contains("1 | - { api_key: [redacted]\n"), "{shown}");
        }
        let shown = at("url: http://user:sk-123@host", 1, 6, 9);
        assert!(shown.contains("1 | url: http://[redacted]\n"), "{shown}");
    }

    #[test]
    fn control_characters_never_reach_the_terminal() {
        assert_eq!(ConfigError::new("bad \u{1b}[2J").to_string(), "bad \u{fffd}[2J");
        assert!(!at("a: \u{1b}[2J", 1, 1, 1).contains('\u{1b}'));
    }
}
