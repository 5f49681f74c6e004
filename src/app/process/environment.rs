//! Access to environment variables, and the display of errors with their causes.

use std::fmt::Display;

/// The value of an environment variable, if it is set and valid UTF-8.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The name of this machine, or of the pod in Kubernetes.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    name.or_else(|| variable("HOSTNAME")).unwrap_or_else(|| "localhost".to_owned())
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
