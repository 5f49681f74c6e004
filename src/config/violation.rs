//! The violation of a rule of the configuration, and the first mistake of a text.

use super::text::error::ConfigError;

/// The violation of a rule of the configuration.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RuleViolation {
    /// The paths of the values that together violate the rule. The error is reported at the first
    /// of these values that is not a default.
    pub(crate) paths: Vec<String>,
    /// The problem, as text for operators.
    pub(crate) problem: String,
}

/// The violation of a rule for several values. See [`RuleViolation::paths`].
pub(crate) fn violation_of<const N: usize>(
    paths: [&str; N],
    problem: impl Into<String>,
) -> RuleViolation {
    RuleViolation { paths: paths.map(str::to_owned).into(), problem: problem.into() }
}

/// The violation of a rule for the single value at `path`.
pub(crate) fn violation_at(path: &str, problem: impl Into<String>) -> RuleViolation {
    RuleViolation { paths: vec![path.to_owned()], problem: problem.into() }
}

/// Fails with the violation of a rule for the single value at `path` unless the rule holds.
pub(crate) fn require(
    holds: bool,
    path: &str,
    problem: impl Into<String>,
) -> Result<(), RuleViolation> {
    if holds { Ok(()) } else { Err(violation_at(path, problem)) }
}

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
        Self { error, paths: Vec::new() }
    }
}
