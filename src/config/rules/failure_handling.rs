//! Validation of `retry.attempts`, `models[].policy.continuous_usage` and `streams.resume.memory`.

use super::values::is_share;
use crate::config::root::Config;
use crate::config::violation::{RuleViolation, violation_at};

/// Maximum of `retry.attempts`.
const MAX_RETRY_ATTEMPTS: u32 = 10;

/// Minimum of `streams.resume.memory`, in bytes. One response may take a sixteenth of it: 64 KiB.
const MIN_RESUME_MEMORY: usize = 1 << 20;

/// Checks the rules of these keys and returns the first violation.
pub(super) fn check(config: &Config) -> Result<(), RuleViolation> {
    if config.retry.attempts > MAX_RETRY_ATTEMPTS {
        return Err(violation_at("retry.attempts", "this must be 10 or less"));
    }
    if config.streams.resume.memory < MIN_RESUME_MEMORY {
        return Err(violation_at("streams.resume.memory", "this must be 1MiB or more"));
    }
    let of_models = config.models.iter().map(|model| model.policy.continuous_usage);
    let mut invalid = of_models.map(|share| share.is_some_and(|share| !is_share(share)));
    match invalid.position(|is_invalid| is_invalid) {
        Some(index) => {
            let path = format!("models.{index}.policy.continuous_usage");
            Err(violation_at(&path, "this must be between 0 and 1"))
        }
        None => Ok(()),
    }
}
