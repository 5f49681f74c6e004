//! Access to environment variables, and the display of errors with their causes.

use std::fmt::Display;

/// Returns the value of an environment variable, if it is set and valid UTF-8.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Displays an error and its causes on one line, separated by `: `.
pub(crate) struct ErrorChain<'a>(pub(crate) &'a dyn std::error::Error);

impl Display for ErrorChain<'_> {
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
