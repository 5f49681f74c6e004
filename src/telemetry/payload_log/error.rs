//! Why a sink of texts cannot start.

use std::io;

/// Why the payload log or the quality monitor cannot start.
#[derive(Debug, thiserror::Error)]
pub enum PayloadSinkStartError {
    /// The file cannot be opened, or a runtime cannot be created.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The URL is invalid or has no host.
    #[error("`{0}` is not a valid URL; configure an absolute http URL")]
    InvalidUrl(String),
}
