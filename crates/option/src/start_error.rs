//! Why a part of the gateway cannot start with a valid configuration.

use std::error::Error;

/// An error of an option or another part of the gateway that prevents a start or a reload. It is shown with its
/// causes.
pub type StartError = Box<dyn Error + Send + Sync>;

/// The error of a part of the gateway, with a text that names the settings of the part.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
struct PartError {
    problem: String,
    source: StartError,
}

/// Returns a function that adds a text about the settings of a part of the gateway to the part's error.
pub fn in_part<E: Into<StartError>>(problem: impl Into<String>) -> impl FnOnce(E) -> StartError {
    |source: E| {
        Box::new(PartError {
            problem: problem.into(),
            source: source.into(),
        })
    }
}
