//! A violated rule of the configuration.

/// A violated rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RuleViolation {
    /// The values that violate the rule together. The error is reported at the first one that is
    /// not a default.
    pub(crate) paths: Vec<String>,
    /// The problem, as text for users.
    pub(crate) problem: String,
}

/// A violation of a rule for one value.
pub(crate) fn broken(path: &str, problem: impl Into<String>) -> RuleViolation {
    RuleViolation { paths: vec![path.to_owned()], problem: problem.into() }
}
