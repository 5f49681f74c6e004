//! The section `canary`: canary requests to backends without traffic.

use std::time::Duration;
use tokenweir_protocol::{settings, units};
use tokenweir_settings::{CheckResult, ConfigSection, ReloadClass, require, violation_of};

/// Minimum interval: more frequent requests would be load.
const MIN_INTERVAL: Duration = Duration::from_secs(5);

settings! {
    /// Whether and when the gateway sends canary requests.
    #[derive(Copy, Eq)]
    pub struct CanarySettings {
        /// Whether backends without traffic get canary requests.
        pub enabled: bool,
        /// Time between two canary requests to a backend. A backend that answered a client in this time gets none.
        #[serde(with = "units::Duration")]
        pub interval: Duration,
        /// Maximum time for the whole answer.
        #[serde(with = "units::Duration")]
        pub timeout: Duration,
    }
}

impl Default for CanarySettings {
    /// The default: off. If enabled, every 30 s with a timeout of 10 s.
    fn default() -> Self {
        Self {
            enabled: false,
            interval: Duration::from_secs(30),
            timeout: Duration::from_secs(10),
        }
    }
}

impl<C> ConfigSection<C> for CanarySettings {
    type Values = Self;
    const RELOAD: ReloadClass = ReloadClass::AtOnce;

    fn check(canary: &CanarySettings, _: &C) -> CheckResult {
        require(
            canary.interval >= MIN_INTERVAL,
            "canary.interval",
            "must be at least 5s",
        )?;
        require(
            canary.timeout > Duration::ZERO,
            "canary.timeout",
            "must be above 0s",
        )?;
        if canary.timeout > canary.interval {
            let problem = "the timeout must not exceed the interval: a backend gets one canary request at a time";
            return Err(violation_of(["canary.timeout", "canary.interval"], problem));
        }
        Ok(())
    }
}
