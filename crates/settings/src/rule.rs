//! Violations of the rules of the configuration, and rules for single values that several sections share.

use http::HeaderName;
use std::path::Path;
use std::time::Duration;

/// A configuration value that a rule forbids, or several values that contradict each other.
#[derive(Debug, PartialEq, Eq)]
pub struct RuleViolation {
    /// The paths of the values that together violate the rule. The error names the first of these values that
    /// the operator has set.
    pub paths: Vec<String>,
    /// The problem, as text for operators.
    pub problem: String,
}

/// The result of the rules of a section: the first violation.
pub type CheckResult = Result<(), RuleViolation>;

/// The violation of a rule about several values. See [`RuleViolation::paths`].
pub fn violation_of<const N: usize>(paths: [&str; N], problem: impl Into<String>) -> RuleViolation {
    RuleViolation {
        paths: paths.map(str::to_owned).into(),
        problem: problem.into(),
    }
}

/// The violation of a rule about the single value at `path`.
pub fn violation_at(path: &str, problem: impl Into<String>) -> RuleViolation {
    violation_of([path], problem)
}

/// Fails with the violation of a rule about the single value at `path` if `holds` is false.
pub fn require(holds: bool, path: &str, problem: &'static str) -> CheckResult {
    if holds {
        Ok(())
    } else {
        Err(violation_at(path, problem))
    }
}

/// Fails if a time is shorter than 1 ms.
pub fn at_least_1ms(path: &str, time: impl Into<Option<Duration>>) -> CheckResult {
    let holds = time
        .into()
        .is_none_or(|time| time >= Duration::from_millis(1));
    require(holds, path, "this must be 1ms or more")
}

/// Fails if a number is 0. `None` is valid.
pub fn more_than_0(path: &str, number: impl Into<Option<usize>>) -> CheckResult {
    require(number.into() != Some(0), path, "this must be more than 0")
}

/// Fails if a number is not between 0 and 1.
pub fn share(path: &str, number: impl Into<Option<f64>>) -> CheckResult {
    let holds = number
        .into()
        .is_none_or(|number| (0.0..=1.0).contains(&number));
    require(holds, path, "this must be between 0 and 1")
}

/// Fails if a number is not a share of sampled requests, which is more than 0 and at most 1.
pub fn sample_share(path: &str, number: f64) -> CheckResult {
    let holds = number > 0.0 && number <= 1.0;
    require(holds, path, "this must be more than 0 and at most 1")
}

/// Fails if a text is not the name of a header.
pub fn header_name(path: &str, name: Option<&String>) -> CheckResult {
    let holds = name.is_none_or(|name| name.parse::<HeaderName>().is_ok());
    require(holds, path, "this is not a valid header name")
}

/// Fails if the path of a file is empty.
pub fn file_path(path: &str, file: Option<&Path>) -> CheckResult {
    let holds = file.is_none_or(|file| !file.as_os_str().is_empty());
    require(holds, path, "write the path of a file, or null")
}

/// Whether a name is suitable as a value of a metric label: short, and without special characters.
pub fn is_label(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=32).contains(&name.len()) && name.chars().all(is_plain)
}
