//! Errors at the start of the sinks that write prompts and responses.

use std::io;

/// Why the payload log or quality monitoring cannot start.
#[derive(Debug, thiserror::Error)]
pub enum PayloadSinkStartError {
    /// The file cannot be opened, or a runtime cannot be created.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The URL of the judge is invalid or has no host.
    #[error("`{0}` is not a valid URL; configure an absolute http URL")]
    InvalidUrl(String),
}
