//! What must hold of retries and of health.

use super::Config;
use super::rules::{Broken, broken};
use std::time::Duration;

/// Most replicas that one request may cost.
const MOST_ATTEMPTS: u32 = 10;

pub(super) fn check(config: &Config) -> Result<(), Broken> {
    let (retry, health) = (&config.retry, &config.health);
    if retry.attempts > MOST_ATTEMPTS {
        return Err(broken("retry.attempts", "this must be 10 or less"));
    }
    let shares = [
        ("retry.budget", f64::from(retry.budget)),
        ("continuous_usage", config.continuous_usage),
        ("health.failure_share", health.failure_share),
        ("health.panic_threshold", health.panic_threshold),
    ];
    if let Some((path, _)) = shares.iter().find(|(_, share)| !(0.0..=1.0).contains(share)) {
        return Err(broken(path, "a share is from 0 to 1"));
    }
    let positive = [
        ("timeouts.first_output", config.timeouts.first_output),
        ("health.ejection", Some(health.ejection)),
        ("health.stuck_after", health.stuck_after),
    ];
    let is_short = |limit: &Option<Duration>| limit.is_some_and(|limit| limit.as_millis() == 0);
    match positive.iter().find(|(_, limit)| is_short(limit)) {
        Some((path, _)) => Err(broken(path, "this must be 1ms or more")),
        None => Ok(()),
    }
}
