//! Manual pages and shell completions, generated from the definition of the command line.

use clap_complete::Shell;
use clap_mangen::Man;
use std::io;

/// Manual pages or shell completions: the files that shells use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ShellArtifact {
    /// Manual pages: tokenweir(1), and one for each command.
    Man,
    /// Completions for bash.
    CompletionsBash,
    /// Completions for zsh.
    CompletionsZsh,
    /// Completions for fish.
    CompletionsFish,
}

impl ShellArtifact {
    /// Generates the files for a command line: pairs of a path below a prefix such as `/usr`, and a text. The
    /// error is `InvalidData` if a generator writes no UTF-8.
    pub fn files(self, command: &clap::Command) -> io::Result<Vec<(String, String)>> {
        let completions =
            |path: &str, shell| Ok(vec![(path.to_owned(), render_completions(command, shell)?)]);
        match self {
            Self::Man => render_man_pages(command),
            Self::CompletionsBash => {
                completions("share/bash-completion/completions/tokenweir", Shell::Bash)
            }
            Self::CompletionsZsh => completions("share/zsh/site-functions/_tokenweir", Shell::Zsh),
            Self::CompletionsFish => completions(
                "share/fish/vendor_completions.d/tokenweir.fish",
                Shell::Fish,
            ),
        }
    }
}

fn render_completions(command: &clap::Command, shell: Shell) -> io::Result<String> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command.clone(), "tokenweir", &mut text);
    into_utf8(text)
}

/// Generates the manual page of the program and the manual page of each command.
fn render_man_pages(command: &clap::Command) -> io::Result<Vec<(String, String)>> {
    let mut program = command.clone();
    program.build();
    let commands = program.get_subcommands().cloned().map(render_man_page);
    std::iter::once(render_man_page(program.clone()))
        .chain(commands)
        .collect()
}

fn render_man_page(command: clap::Command) -> io::Result<(String, String)> {
    let man = Man::new(command);
    let path = format!("share/man/man1/{}", man.get_filename());
    let mut text = Vec::new();
    man.render(&mut text)?;
    // Until the next heading, `.nf` prevents the formatter from joining the lines of the examples into a
    // paragraph.
    Ok((
        path,
        into_utf8(text)?.replace("\nExamples:\n", "\n.nf\nExamples:\n"),
    ))
}

fn into_utf8(text: Vec<u8>) -> io::Result<String> {
    String::from_utf8(text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_complete_manual_page() {
        let pages = ShellArtifact::Man.files(&crate::cli::command()).unwrap();
        assert!(pages[0].0.ends_with("/tokenweir.1"));
        for command in crate::cli::command().get_subcommands() {
            let name = command.get_name();
            let path = format!("share/man/man1/tokenweir-{name}.1");
            let page = pages
                .iter()
                .find(|page| page.0 == path)
                .unwrap_or_else(|| panic!("{path}"));
            assert!(
                pages[0]
                    .1
                    .contains(&format!("tokenweir\\-{}(1)", name.replace('-', "\\-"))),
                "{name}"
            );
            for long in command.get_arguments().filter_map(clap::Arg::get_long) {
                let flag = format!("\\-\\-{}", long.replace('-', "\\-"));
                assert!(page.1.contains(&flag), "{name} --{long}");
            }
        }
    }

    #[test]
    fn every_shell_completes_every_command() {
        for artifact in [
            ShellArtifact::CompletionsBash,
            ShellArtifact::CompletionsZsh,
            ShellArtifact::CompletionsFish,
        ] {
            let files = artifact.files(&crate::cli::command()).unwrap();
            let [(_, text)] = &files[..] else {
                panic!("{artifact:?}: {} files", files.len())
            };
            for command in crate::cli::command().get_subcommands() {
                assert!(
                    text.contains(command.get_name()),
                    "{artifact:?} {}",
                    command.get_name()
                );
            }
        }
    }

    #[test]
    fn lines_of_examples_are_not_joined() {
        let pages = ShellArtifact::Man.files(&crate::cli::command()).unwrap();
        let (text, examples) = pages[0].1.split_once("\n.nf\nExamples:\n").unwrap();
        assert!(text.contains("\n.SH EXTRA\nFlags override "), "{text}");
        assert!(examples.starts_with("  tokenweir demo "), "{examples}");
    }

    #[test]
    fn manual_pages_show_no_current_variables() {
        for (path, text) in ShellArtifact::Man.files(&crate::cli::command()).unwrap() {
            assert!(!text.contains("TOKENWEIR_LISTEN="), "{path}");
        }
    }
}
