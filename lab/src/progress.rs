//! Progress displays of long commands, on standard error.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A progress line that counts steps.
pub(crate) struct ProgressLine {
    bar: ProgressBar,
    /// Text of the line: what the steps are, or what the command does if `total` is unknown.
    label: &'static str,
    /// Number of all steps. `None`: unknown.
    total: Option<usize>,
    /// Number of completed steps.
    done: AtomicUsize,
    /// Number of steps between two updates of the line.
    update_interval: usize,
}

/// Maximum number of updates of the line if the total is known.
const MAX_UPDATES: usize = 200;
/// Maximum number of steps between two updates of the line.
const MAX_UPDATE_INTERVAL: usize = 1_000;

impl ProgressLine {
    pub(crate) fn new(label: &'static str, total: Option<usize>) -> Self {
        let update_interval = total.map_or(MAX_UPDATE_INTERVAL, |total| {
            (total / MAX_UPDATES).clamp(1, MAX_UPDATE_INTERVAL)
        });
        let bar = ProgressBar::new();
        let done = AtomicUsize::new(0);
        Self {
            bar,
            label,
            total,
            done,
            update_interval,
        }
    }

    /// Counts a completed step, and updates the line if enough steps have been completed.
    pub(crate) fn step(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if !done.is_multiple_of(self.update_interval) {
            return;
        }
        self.bar.show(None, || match self.total {
            Some(total) => format!(
                "{:>3} % of {total} {}",
                done * 100 / total.max(1),
                self.label
            ),
            None => format!("{}: {done} requests tried", self.label),
        });
    }
}

/// A progress bar on standard error. If standard error is no terminal, it writes nothing.
pub(crate) struct ProgressBar {
    /// Whether standard error is a terminal.
    is_shown: bool,
}

/// Width of the bar, in characters.
const BAR_WIDTH_CHARS: usize = 24;

impl ProgressBar {
    pub(crate) fn new() -> Self {
        Self {
            is_shown: std::io::stderr().is_terminal(),
        }
    }

    /// Draws the bar, followed by `text`. `share`: the completed share, from 0 to 1. `None`: the share is
    /// unknown, and only the text is shown.
    pub(crate) fn show(&self, share: Option<f64>, text: impl FnOnce() -> String) {
        if !self.is_shown {
            return;
        }
        let bar = share.map_or(String::new(), |share| {
            let share = share.clamp(0.0, 1.0);
            let full = (share * BAR_WIDTH_CHARS as f64) as usize;
            let cells = "█".repeat(full) + &"░".repeat(BAR_WIDTH_CHARS - full);
            format!("{cells} {:>3.0} %  ", share * 1e2)
        });
        eprint!("\r{bar}{}\x1b[K", text());
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        if self.is_shown {
            eprint!("\r\x1b[K");
        }
    }
}
