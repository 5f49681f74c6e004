//! Validation of `retry`, `circuit_breaker` and related keys.

use crate::config::root::Config;
use crate::config::violation::{RuleViolation, broken};
use std::time::Duration;

/// Maximum of `retry.attempts`.
const MAX_RETRY_ATTEMPTS: u32 = 10;

/// Returns the first violation.
pub(super) fn check(config: &Config) -> Result<(), RuleViolation> {
    let (retry, circuit_breaker) = (&config.retry, &config.circuit_breaker);
    if retry.attempts > MAX_RETRY_ATTEMPTS {
        return Err(broken("retry.attempts", "this must be 10 or less"));
    }
    let shares = [
        ("retry.budget_ratio", f64::from(retry.budget_ratio)),
        ("continuous_usage", config.continuous_usage),
        ("circuit_breaker.failure_ratio", circuit_breaker.failure_ratio),
        ("circuit_breaker.panic_threshold", circuit_breaker.panic_threshold),
    ];
    if let Some((path, _)) = shares.iter().find(|(_, share)| !(0.0..=1.0).contains(share)) {
        return Err(broken(path, "this must be between 0 and 1"));
    }
    let positive = [
        ("timeouts.first_output", config.timeouts.first_output),
        ("circuit_breaker.base_ejection_time", Some(circuit_breaker.base_ejection_time)),
        ("circuit_breaker.stuck_after", circuit_breaker.stuck_after),
    ];
    let is_short = |limit: &Option<Duration>| limit.is_some_and(|limit| limit.as_millis() == 0);
    match positive.iter().find(|(_, limit)| is_short(limit)) {
        Some((path, _)) => Err(broken(path, "this must be 1ms or more")),
        None => Ok(()),
    }
}
