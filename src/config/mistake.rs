//! The first mistake in a text.

use super::text::error::ConfigError;

/// The first mistake that the parser or the rules find in a text.
#[derive(Debug)]
pub(crate) struct Mistake {
    pub(crate) error: ConfigError,
    /// The paths of the values that together violate a rule. Empty: no rule is violated, but the text
    /// cannot be read or parsed.
    pub(crate) paths: Vec<String>,
}

impl From<ConfigError> for Mistake {
    fn from(error: ConfigError) -> Self {
        Self {
            error,
            paths: Vec::new(),
        }
    }
}
