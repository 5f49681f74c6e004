//! Validation of `retry`, `circuit_breaker`, `continuous_usage`, `timeouts.first_output` and `streams.resume`.

use crate::config::root::Config;
use crate::config::violation::{RuleViolation, violation_at};
use std::time::Duration;

/// Maximum of `retry.attempts`.
const MAX_RETRY_ATTEMPTS: u32 = 10;

/// Minimum of `streams.resume.memory`, in bytes: a response may take a sixteenth of it.
const MIN_RESUME_MEMORY: usize = 1 << 20;

/// Checks the rules of these keys and returns the first violation.
pub(super) fn check(config: &Config) -> Result<(), RuleViolation> {
    let (retry, circuit_breaker) = (&config.retry, &config.circuit_breaker);
    if retry.attempts > MAX_RETRY_ATTEMPTS {
        return Err(violation_at("retry.attempts", "this must be 10 or less"));
    }
    let shares = [
        ("retry.budget_ratio", f64::from(retry.budget_ratio)),
        ("continuous_usage", config.continuous_usage),
        ("circuit_breaker.failure_ratio", circuit_breaker.failure_ratio),
        ("circuit_breaker.panic_threshold", circuit_breaker.panic_threshold),
    ];
    let is_share = |share: f64| (0.0..=1.0).contains(&share);
    if let Some((path, _)) = shares.iter().find(|(_, share)| !is_share(*share)) {
        return Err(violation_at(path, "this must be between 0 and 1"));
    }
    let of_models = config.models.iter().map(|model| model.policy.continuous_usage);
    let mut invalid = of_models.map(|share| share.is_some_and(|share| !is_share(share)));
    if let Some(index) = invalid.position(|is_invalid| is_invalid) {
        let path = format!("models.{index}.policy.continuous_usage");
        return Err(violation_at(&path, "this must be between 0 and 1"));
    }
    let min_1ms = [
        ("timeouts.first_output", config.timeouts.first_output),
        ("circuit_breaker.base_ejection_time", Some(circuit_breaker.base_ejection_time)),
        ("circuit_breaker.stuck_after", circuit_breaker.stuck_after),
        ("streams.resume.for", config.streams.resume.window),
    ];
    if config.streams.resume.memory < MIN_RESUME_MEMORY {
        return Err(violation_at("streams.resume.memory", "this must be 1MiB or more"));
    }
    let is_short = |limit: &Option<Duration>| limit.is_some_and(|limit| limit.as_millis() == 0);
    match min_1ms.iter().find(|(_, limit)| is_short(limit)) {
        Some((path, _)) => Err(violation_at(path, "this must be 1ms or more")),
        None => Ok(()),
    }
}
