//! `tokenweir check --upgrade`: rewrites configurations, rules and dashboards of an earlier version.

use crate::app::metrics::metric_rows;
use crate::commands::{EXIT_FAILURE, EXIT_USAGE, print_line};
use crate::config::{Config, QueriedMetric, UpgradeNote, UpgradedFile, UpgradedKind, upgrade_file};
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Shows the changes of a file, and writes it if `is_written`. Returns the exit code.
pub(super) fn run(file: &Path, is_written: bool) -> u8 {
    let upgraded = match upgrade_file(file) {
        Ok(upgraded) => upgraded,
        Err(error) => {
            eprintln!("{error}");
            return EXIT_USAGE;
        }
    };
    let mut notes = upgraded.notes.clone();
    notes.extend(unknown_metrics(&upgraded.metrics, &notes));
    for note in &notes {
        eprintln!("{}:{}: {}", file.display(), note.line, note.problem);
    }
    // If the file has mistakes, a secret may be in a wrong place, and the diff would show it.
    if has_mistakes(&upgraded, file) {
        return EXIT_USAGE;
    }
    let diff = upgraded.lines.diff(&file.display().to_string());
    if !diff.is_empty() {
        print_line(diff.trim_end());
    }
    if is_written
        && upgraded.lines.is_changed()
        && let Err(error) = replace(file, &upgraded.lines.text())
    {
        eprintln!("{}: cannot be written: {error}", file.display());
        return EXIT_FAILURE;
    }
    if notes.is_empty() { 0 } else { EXIT_FAILURE }
}

/// Replaces the text of a file, and keeps its mode. At any time, even if the disk is full, the file has either
/// the old or the new text.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    // The target of a symbolic link is written, so that the link remains.
    let file = fs::canonicalize(file)?;
    let mut new = OsString::from(&file);
    new.push(".new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut opened = options.open(&new)?;
    let written = opened.write_all(text.as_bytes());
    let written = written.and_then(|()| opened.set_permissions(fs::metadata(&file)?.permissions()));
    let written = written.and_then(|()| opened.sync_all());
    let replaced = written.and_then(|()| fs::rename(&new, &file));
    if replaced.is_err() {
        let _ = fs::remove_file(&new);
    }
    replaced
}

/// Whether the changed file is a configuration with mistakes. Prints them.
fn has_mistakes(upgraded: &UpgradedFile, file: &Path) -> bool {
    if upgraded.kind != UpgradedKind::Configuration {
        return false;
    }
    let Err(mistakes) = Config::parse_all(&upgraded.lines.text(), file) else {
        return false;
    };
    for error in &mistakes.errors {
        eprintln!("{error}");
    }
    eprintln!("{}: not valid after the changes", file.display());
    true
}

/// Notes about queried metrics that this version of the gateway lacks. Lines that already have a note in
/// `notes` are left out.
fn unknown_metrics(metrics: &[QueriedMetric], notes: &[UpgradeNote]) -> Vec<UpgradeNote> {
    let mut found = Vec::new();
    for metric in metrics {
        let is_known = metric_rows().any(|row| row.name == metric.name);
        let is_named = notes.iter().any(|note| note.line == metric.line);
        if !is_known && !is_named {
            found.push(UpgradeNote {
                line: metric.line,
                problem: format!("there is no metric `{}`", metric.name),
            });
        }
    }
    found
}
