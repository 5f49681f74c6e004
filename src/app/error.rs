//! Why the gateway cannot start or reload with a valid configuration.

use std::error::Error;

/// The error with which the gateway cannot start or reload, although the configuration is valid. It comes from
/// one part of the gateway, and is shown with its causes.
pub(crate) type ApplicationError = Box<dyn Error + Send + Sync>;

/// The error of a part of the gateway, with a text that names the settings of the part.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
struct PartError {
    problem: String,
    source: ApplicationError,
}

/// Returns a function that adds a text about the settings of a part of the gateway to the part's error.
pub(super) fn in_part<E: Into<ApplicationError>>(
    problem: impl Into<String>,
) -> impl FnOnce(E) -> ApplicationError {
    |source: E| {
        Box::new(PartError {
            problem: problem.into(),
            source: source.into(),
        })
    }
}
