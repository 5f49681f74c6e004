//! The environment of this process, and how its errors are printed.

use std::fmt::Display;

/// The value of an environment variable, if it is set and valid UTF-8.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// An error with its causes on one line.
pub(crate) struct Chain<'a>(pub(crate) &'a dyn std::error::Error);

impl Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut error = self.0;
        while let Some(source) = error.source() {
            write!(f, ": {source}")?;
            error = source;
        }
        Ok(())
    }
}
