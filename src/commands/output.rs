//! The result of a command on standard output.

use std::fmt::Display;
use std::io::{self, Write};

/// Prints a line. A reader that has closed the pipe, such as `head`, has read what it wants.
pub(super) fn print_line(line: impl Display) {
    let _ = writeln!(io::stdout(), "{line}");
}
