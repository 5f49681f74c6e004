//! Validation of `retry.attempts`, `models[].policy.continuous_usage` and `streams.resume.memory`.

use super::values::is_share;
use crate::config::root::Config;
use crate::config::violation::{RuleViolation, require};

/// Maximum of `retry.attempts`.
const MAX_RETRY_ATTEMPTS: u32 = 10;

/// Minimum of `streams.resume.memory`, in bytes. One response may take a sixteenth of it: 64 KiB.
const MIN_RESUME_MEMORY: usize = 1 << 20;

/// Checks the rules of these keys and returns the first violation.
pub(super) fn check(config: &Config) -> Result<(), RuleViolation> {
    let (attempts, memory) = (config.retry.attempts, config.streams.resume.memory);
    require(attempts <= MAX_RETRY_ATTEMPTS, "retry.attempts", "this must be 10 or less")?;
    require(memory >= MIN_RESUME_MEMORY, "streams.resume.memory", "this must be 1MiB or more")?;
    for (index, model) in config.models.iter().enumerate() {
        let path = format!("models.{index}.policy.continuous_usage");
        let is_valid = model.policy.continuous_usage.is_none_or(is_share);
        require(is_valid, &path, "this must be between 0 and 1")?;
    }
    Ok(())
}
