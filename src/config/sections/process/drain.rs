//! The section `drain`: the drain at shutdown.

use std::time::Duration;
use tokenweir_protocol::{settings, units};
use tokenweir_settings::ConfigSection;

settings! {
    /// The drain at shutdown.
    #[derive(Copy, Eq)]
    pub struct DrainConfig {
        /// How long the gateway still accepts connections after the shutdown signal.
        #[serde(with = "units::Duration")]
        pub delay: Duration,
        /// How long requests may run after the delay. The gateway then aborts the remaining requests.
        #[serde(with = "units::Duration")]
        pub timeout: Duration,
    }
}

impl Default for DrainConfig {
    /// No delay, and a timeout of 30 s, which is the default grace period of Kubernetes.
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            timeout: Duration::from_secs(30),
        }
    }
}

/// Values, rules and reload class of the section `drain`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = DrainConfig;
}
