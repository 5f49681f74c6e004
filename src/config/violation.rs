//! The violation of a rule of the configuration.

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
