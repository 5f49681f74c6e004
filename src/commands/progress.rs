//! How far a long command is.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A line on a terminal that says how far it is. Elsewhere nothing is written.
pub(crate) struct Progress {
    what: &'static str,
    total: Option<usize>,
    done: AtomicUsize,
    every: usize,
    is_shown: bool,
}

/// Updates of the line, if it is known how much there is to do.
const UPDATES: usize = 200;
/// Requests between two updates, at most.
const EVERY: usize = 1_000;

impl Progress {
    pub(super) fn new(what: &'static str, total: Option<usize>) -> Self {
        let is_shown = std::io::stderr().is_terminal();
        let every = total.map_or(EVERY, |total| (total / UPDATES).clamp(1, EVERY));
        Self { what, total, done: AtomicUsize::new(0), every, is_shown }
    }

    pub(super) fn step(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if !self.is_shown || !done.is_multiple_of(self.every) {
            return;
        }
        match self.total {
            Some(total) => eprint!("\r{:>3} % of {total} {}", done * 100 / total.max(1), self.what),
            None => eprint!("\r{}: {done} requests tried", self.what),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            eprint!("\r{:60}\r", "");
        }
    }
}

/// A bar on a terminal. Elsewhere nothing is written.
pub(crate) struct Bar {
    is_shown: bool,
}

/// Cells of a bar.
const CELLS: usize = 24;

impl Bar {
    pub(super) fn new() -> Self {
        Self { is_shown: std::io::stderr().is_terminal() }
    }

    /// How far it is, if that is known, and what else there is to say.
    pub(super) fn show(&self, share: Option<f64>, text: impl FnOnce() -> String) {
        if !self.is_shown {
            return;
        }
        let bar = share.map_or(String::new(), |share| {
            let share = share.clamp(0.0, 1.0);
            let full = (share * CELLS as f64) as usize;
            let cells = "█".repeat(full) + &"░".repeat(CELLS - full);
            format!("{cells} {:>3.0} %  ", share * 1e2)
        });
        eprint!("\r{bar}{}\x1b[K", text());
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.is_shown {
            eprint!("\r\x1b[K");
        }
    }
}
