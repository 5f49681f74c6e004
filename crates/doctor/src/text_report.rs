//! A report as text for people: paragraphs of a given width, with ANSI colours.

use textwrap::{Options, WordSplitter, fill};

/// Indentation below the first line of a paragraph.
const INDENT: &str = "    ";
/// Indentation below the first line of an entry of a list.
const ENTRY_INDENT: &str = "      ";
/// Indentation below the first line of a remedy.
const REMEDY_INDENT: &str = "       ";
/// Minimum width of a report, in columns. On a narrower terminal, the terminal itself wraps the lines.
const NARROWEST: usize = 30;

/// Parameters of the escape code for bold text (SGR, ECMA-48).
const BOLD: &str = "1";
/// Parameters of the escape code for bold red text.
const BOLD_RED: &str = "1;31";
/// Parameters of the escape code for bold yellow text.
const BOLD_YELLOW: &str = "1;33";
/// Parameters of the escape code for bold cyan text.
const BOLD_CYAN: &str = "1;36";

/// A report as text with ANSI colours. The function that prints the text removes the colours if the output is
/// no terminal.
pub struct TextReport {
    width: usize,
    /// The lines, each with its line break.
    pub text: String,
}

impl TextReport {
    /// An empty report in lines of at most `width` columns.
    pub fn new(width: usize) -> Self {
        Self {
            width: width.max(NARROWEST),
            text: String::new(),
        }
    }

    /// Adds an empty line.
    pub fn empty_line(&mut self) {
        self.text.push('\n');
    }

    /// Adds the last paragraph, which is not indented.
    pub fn summary(&mut self, words: &str) {
        self.push("", "", words);
    }

    /// Adds a paragraph.
    pub fn paragraph(&mut self, words: &str) {
        self.push("", INDENT, words);
    }

    /// Adds a paragraph below another one.
    pub fn detail(&mut self, words: &str) {
        self.push(INDENT, INDENT, words);
    }

    /// Adds an entry of a list below a paragraph.
    pub fn entry(&mut self, words: &str) {
        self.push(INDENT, ENTRY_INDENT, words);
    }

    /// Adds a row of a table. `words`: its name and its value.
    pub fn row(&mut self, words: &str) {
        self.push("  ", ENTRY_INDENT, words);
    }

    /// Adds the remedy of a finding.
    pub fn remedy(&mut self, remedy: &str) {
        self.push(INDENT, REMEDY_INDENT, &format!("-> {remedy}"));
    }

    /// Adds a paragraph with a bold name at its beginning.
    pub fn named(&mut self, name: &str, words: &str) {
        self.styled(BOLD, name, words);
    }

    /// Adds a paragraph with a severity in its colour at the beginning.
    pub fn finding(&mut self, severity: &str, words: &str) {
        let style = match severity {
            "error" | "critical" => BOLD_RED,
            "warning" => BOLD_YELLOW,
            _ => BOLD_CYAN,
        };
        self.styled(style, severity, &format!("  {words}"));
    }

    /// The style is applied after wrapping, so that its escape codes do not count as columns.
    fn styled(&mut self, style: &str, prefix: &str, words: &str) {
        let start = self.text.len();
        self.paragraph(&format!("{prefix}{words}"));
        if self.text[start..].starts_with(prefix) {
            let styled = format!("\x1b[{style}m{prefix}\x1b[0m");
            self.text
                .replace_range(start..start + prefix.len(), &styled);
        }
    }

    /// Adds wrapped words. `first` is the indentation of the first line, and `next` that of all other lines.
    fn push(&mut self, first: &str, next: &str, words: &str) {
        // A flag such as `--max-num-seqs` is not split at its hyphens, so that a user can copy it.
        let options = Options::new(self.width)
            .initial_indent(first)
            .subsequent_indent(next)
            .word_splitter(WordSplitter::NoHyphenation);
        // Control characters from a backend must not reach the terminal.
        let words = words.replace(char::is_control, " ");
        self.text.push_str(&fill(&words, options));
        self.text.push('\n');
    }
}

/// A text without the escape codes of its styles.
pub fn without_styles(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap_or_default();
    let rest = parts.map(|part| part.split_once('m').map_or(part, |(_, rest)| rest));
    std::iter::once(first).chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_not_split_at_its_hyphens() {
        for width in 30..80 {
            let mut report = TextReport::new(width);
            report.summary("Lower --max-num-batched-tokens now.");
            let text = report.text;
            assert!(text.contains("--max-num-batched-tokens"), "{width}: {text}");
        }
    }
}
