//! The configuration error: a problem and its location, which is a position in a file, a flag or an environment
//! variable. The first line of the error text is `LOCATION: problem`, as in compiler errors. The line of the
//! file follows with a caret below the error, and then a help text.

use super::redaction::{
    ExcerptRedaction, redact_quotes, redact_values, replace_control_chars, secret_column,
    value_column,
};
use super::source::ConfigSource;
use std::fmt;
use std::path::{Path, PathBuf};

/// The reason why a configuration is invalid or unreadable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError(Box<ErrorDetails>);

/// The content of a [`ConfigError`].
#[derive(Debug, Clone, PartialEq, Eq)]
struct ErrorDetails {
    /// The location of the problem. `None`: unknown.
    location: Option<ConfigLocation>,
    problem: String,
    /// The line of the file. `None`: the location has no position, or the line may contain a secret.
    excerpt: Option<ErrorExcerpt>,
    /// How to fix the problem. `None`: unknown.
    help: Option<String>,
    kind: ProblemKind,
}

/// The kinds of problems that code distinguishes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ProblemKind {
    UnknownKey,
    /// A key occurs twice.
    DuplicateKey,
    MissingKey,
    /// The file cannot be read.
    UnreadableFile,
    #[default]
    Other,
}

/// The location of a configuration error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigLocation {
    /// A file, or a position in it.
    File(PathBuf, Option<Position>),
    /// A flag, such as `--listen`, or an environment variable.
    Override(ConfigSource),
}

/// A position in a file. Lines and columns are counted from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The line number, counted from 1.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
    /// Number of characters that the error marks, beginning at `column`.
    pub len: usize,
}

/// The line of a file that contains an error, and the carets below the error.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ErrorExcerpt {
    /// The line number, counted from 1.
    line: usize,
    /// The line, shortened and redacted.
    text: String,
    /// Spaces and tabs, and then the carets.
    caret_line: String,
    /// Whether the excerpt hides more than the values of secret keys.
    is_redacted: bool,
}

/// Maximum length of an excerpt, in characters.
const MAX_EXCERPT_CHARS: usize = 120;

impl ConfigError {
    /// An error without a location.
    pub(crate) fn new(problem: &str) -> Self {
        Self::of_kind(ProblemKind::Other, problem)
    }

    /// An error of this kind without a location.
    pub(crate) fn of_kind(kind: ProblemKind, problem: &str) -> Self {
        Self(Box::new(ErrorDetails {
            location: None,
            problem: replace_control_chars(problem),
            excerpt: None,
            help: None,
            kind,
        }))
    }

    /// The error of a file that cannot be read.
    pub(crate) fn unreadable(file: &Path, problem: &str) -> Self {
        Self::of_kind(ProblemKind::UnreadableFile, problem).in_file(file)
    }

    /// Sets the location to a flag or an environment variable.
    pub(crate) fn at_source(mut self, source: ConfigSource) -> Self {
        self.0.location = Some(ConfigLocation::Override(source));
        self
    }

    /// Sets the location to a file, without a position in it.
    pub(crate) fn in_file(mut self, file: &Path) -> Self {
        self.0.location = Some(ConfigLocation::File(file.to_owned(), None));
        self
    }

    /// Sets the location to a position in a file with the content `text`, and adds an excerpt of the line.
    /// Redacts values that may be secrets.
    pub(crate) fn at(self, file: &Path, position: Position, text: &str) -> Self {
        self.at_redacted(file, position, text, ExcerptRedaction::Nothing)
    }

    /// Like [`Self::at`]. The excerpt also hides what `redaction` says.
    pub(crate) fn at_redacted(
        mut self,
        file: &Path,
        position: Position,
        text: &str,
        redaction: ExcerptRedaction,
    ) -> Self {
        let line = text
            .lines()
            .nth(position.line.saturating_sub(1))
            .unwrap_or_default();
        self.0.excerpt = Some(ErrorExcerpt::new(line, position, redaction));
        self.0.location = Some(ConfigLocation::File(file.to_owned(), Some(position)));
        self
    }

    pub(crate) fn with_help(mut self, help: Option<&str>) -> Self {
        self.0.help = help.map(replace_control_chars);
        self
    }

    /// Removes the excerpt, which quotes the line of the file.
    pub(crate) fn without_excerpt(mut self) -> Self {
        self.0.excerpt = None;
        self
    }

    /// Removes the excerpt and redacts the quotes in the problem, because they may contain a
    /// secret.
    pub(crate) fn without_quotes(mut self) -> Self {
        self.0.problem = redact_quotes(&self.0.problem);
        self.without_excerpt()
    }

    /// Takes the excerpt from `text`, the content of a keys file, and hides all its values, because an operator
    /// may have written a key in any place.
    pub(crate) fn with_redacted_line(self, text: &str) -> Self {
        self.with_excerpt_of(text, ExcerptRedaction::Values)
    }

    /// Takes the excerpt from `text`, which still contains the entries that were removed from the line. A
    /// redacted excerpt is not changed.
    pub(crate) fn with_whole_line(self, text: &str) -> Self {
        match &self.0.excerpt {
            Some(excerpt) if !excerpt.is_redacted => {
                self.with_excerpt_of(text, ExcerptRedaction::Nothing)
            }
            _ => self,
        }
    }

    /// Takes the excerpt from `text` again. If the location has no position in a file, there is no excerpt.
    fn with_excerpt_of(self, text: &str, redaction: ExcerptRedaction) -> Self {
        match self.location().cloned() {
            Some(ConfigLocation::File(file, Some(position))) => {
                self.at_redacted(&file, position, text, redaction)
            }
            _ => self.without_excerpt(),
        }
    }

    /// The problem, without its location and without the help text.
    pub fn problem(&self) -> &str {
        &self.0.problem
    }

    /// Whether the file could not be read. The cause may disappear even if the file does not change.
    pub fn is_unreadable(&self) -> bool {
        self.0.kind == ProblemKind::UnreadableFile
    }

    pub(crate) fn kind(&self) -> ProblemKind {
        self.0.kind
    }

    /// The location of the error. `None`: unknown.
    pub fn location(&self) -> Option<&ConfigLocation> {
        self.0.location.as_ref()
    }

    /// How to fix the problem. `None`: unknown.
    pub fn help(&self) -> Option<&str> {
        self.0.help.as_deref()
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ErrorDetails {
            location,
            problem,
            excerpt,
            help,
            ..
        } = &*self.0;
        if let Some(location) = location {
            write!(f, "{location}: ")?;
        }
        f.write_str(problem)?;
        let margin = excerpt
            .as_ref()
            .map_or(0, |excerpt| excerpt.line.to_string().len());
        if let Some(ErrorExcerpt {
            line,
            text,
            caret_line,
            ..
        }) = excerpt
        {
            write!(
                f,
                "\n{:margin$} |\n{line} | {text}\n{:margin$} | {caret_line}",
                "", ""
            )?;
        }
        match help {
            Some(help) if margin > 0 => write!(f, "\n{:margin$} = help: {help}", ""),
            Some(help) => write!(f, "\nhelp: {help}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ConfigLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file, None) => write!(f, "{}", file.display()),
            Self::File(file, Some(at)) => write!(f, "{}:{}:{}", file.display(), at.line, at.column),
            Self::Override(ConfigSource::Flag(name) | ConfigSource::Environment(name)) => {
                f.write_str(name)
            }
            Self::Override(source) => write!(f, "{source}"),
        }
    }
}

impl ErrorExcerpt {
    fn new(line: &str, position: Position, redaction: ExcerptRedaction) -> Self {
        let mut shown = MarkedLine::new(line, position, redaction);
        let cut = match redaction {
            ExcerptRedaction::Nothing | ExcerptRedaction::Values => None,
            ExcerptRedaction::AtPosition => Some((shown.column, "[redacted]")),
            ExcerptRedaction::ValueAfterKey => {
                let value = value_column(&shown.chars, shown.column + shown.len);
                value.map(|value| (value, "…"))
            }
        };
        let secret = secret_column(line).map(|column| (column, "[redacted]"));
        if let Some((column, replacement)) = cut.into_iter().chain(secret).min() {
            shown.cut(column, replacement);
        }
        let first = shown.first_shown();
        Self {
            line: position.line,
            text: replace_control_chars(&shown.text_from(first)),
            caret_line: shown.caret_line(first),
            is_redacted: redaction != ExcerptRedaction::Nothing,
        }
    }
}

/// A line of a file with the characters that an error marks.
struct MarkedLine {
    chars: Vec<char>,
    /// The first marked character, counted from 0.
    column: usize,
    /// The number of marked characters.
    len: usize,
}

impl MarkedLine {
    fn new(line: &str, position: Position, redaction: ExcerptRedaction) -> Self {
        let chars: Vec<char> = match redaction {
            ExcerptRedaction::Values => redact_values(line).chars().collect(),
            _ => line.chars().collect(),
        };
        let column = position.column.saturating_sub(1).min(chars.len());
        let len = position.len.min(chars.len() - column);
        Self { chars, column, len }
    }

    fn cut(&mut self, column: usize, replacement: &str) {
        if column >= self.chars.len() {
            return;
        }
        self.chars.truncate(column);
        self.chars.extend(replacement.chars());
        if self.column < column {
            self.len = self.len.min(column - self.column);
        } else {
            self.column = column;
            self.len = 1;
        }
    }

    /// The first shown character. A long line is shown around the mark.
    fn first_shown(&self) -> usize {
        if self.chars.len() <= MAX_EXCERPT_CHARS {
            return 0;
        }
        self.column.saturating_sub(MAX_EXCERPT_CHARS / 2)
    }

    fn text_from(&self, first: usize) -> String {
        self.chars
            .iter()
            .skip(first)
            .take(MAX_EXCERPT_CHARS)
            .collect()
    }

    fn caret_line(&self, first: usize) -> String {
        let before = self.chars.iter().skip(first).take(self.column - first);
        // Tabs are kept, so that the terminal aligns the caret with the error.
        let indent = before.map(|c| if *c == '\t' { '\t' } else { ' ' });
        let mut caret_line: String = indent.collect();
        caret_line.push_str(&"^".repeat(self.len.clamp(1, MAX_EXCERPT_CHARS / 2)));
        caret_line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render_at(text: &str, line: usize, column: usize, len: usize) -> String {
        let position = Position { line, column, len };
        ConfigError::new("wrong")
            .at(Path::new("a.yaml"), position, text)
            .to_string()
    }

    #[test]
    fn the_carets_are_below_the_mistake() {
        assert_eq!(
            render_at("a: 1\n\tbé: x\n", 2, 6, 1),
            "a.yaml:2:6: wrong\n  |\n2 | \tbé: x\n  | \t    ^"
        );
        assert_eq!(
            render_at("a", 1, 9, 5),
            "a.yaml:1:9: wrong\n  |\n1 | a\n  |  ^"
        );
        assert_eq!(
            render_at("", 7, 1, 1),
            "a.yaml:7:1: wrong\n  |\n7 | \n  | ^"
        );
    }

    #[test]
    fn a_long_line_is_cut_around_the_mistake() {
        let line = format!("{}!{}", "a".repeat(1_000), "b".repeat(1_000));
        let shown = render_at(&line, 1, 1_001, 1);
        assert!(shown.contains("aaa!bbb") && shown.len() < 400, "{shown}");
        let caret = shown.lines().nth(3).unwrap().find('^');
        assert_eq!(caret, Some(4 + MAX_EXCERPT_CHARS / 2));
    }

    #[test]
    fn a_secret_is_redacted_at_every_position() {
        for column in [1, 5, 20, 30] {
            let shown = render_at("- { api_key: sk-123, url: x }", 1, column, 3);
            assert!(shown.contains("1 | - { api_key: [redacted]\n"), "{shown}");
        }
        for line in [
            "{ password: sk-123, x: 1 }",
            "{ x: 1, 'cache_salt_secret' : sk-123 }",
            "{\"authToken\":\"sk-123\"}",
        ] {
            assert!(!render_at(line, 1, 3, 1).contains("sk-123"), "{line}");
        }
        let shown = render_at("url: http://user:sk-123@host", 1, 6, 9);
        assert!(shown.contains("1 | url: http://[redacted]\n"), "{shown}");
        let shown = render_at(
            "{ url: 'https://hooks.a.com/b/T1/XXXXXXXXXXXXXXXXXXXXXXXX', ulr: 1 }",
            1,
            60,
            3,
        );
        assert!(
            shown.contains("1 | { url: 'https://hooks.a.com/b/T1/[redacted]\n"),
            "{shown}"
        );
        let shown = render_at("url: http://a:1/v1?sig=sk-123", 1, 1, 3);
        assert!(
            shown.contains("1 | url: http://a:1/v1?[redacted]\n"),
            "{shown}"
        );
    }

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(
            ConfigError::new("bad \u{1b}[2J").to_string(),
            "bad \u{fffd}[2J"
        );
        assert!(!render_at("a: \u{1b}[2J", 1, 1, 1).contains('\u{1b}'));
    }
}
