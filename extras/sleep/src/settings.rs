//! The section `sleep`: sleep mode of vLLM.

use std::time::Duration;
use tokenweir_protocol::{settings, units};
use tokenweir_settings::{CheckResult, ConfigSection, ReloadClass, violation_of};

settings! {
    /// Whether the gateway wakes sleeping engines and puts idle ones to sleep.
    #[derive(Copy, Default, Eq)]
    pub struct SleepSettings {
        /// Whether a request for a model without a backend with capacity wakes a sleeping one.
        pub wake: bool,
        /// Time without requests after which an engine is put to sleep. `None`: never.
        #[serde(with = "units::OptionalDuration")]
        pub idle: Option<Duration>,
    }
}

impl<C> ConfigSection<C> for SleepSettings {
    type Values = Self;
    const RELOAD: ReloadClass = ReloadClass::AtOnce;

    fn check(sleep: &SleepSettings, _: &C) -> CheckResult {
        if sleep.idle.is_some() && !sleep.wake {
            let problem = "an engine that is put to sleep must be woken: set `sleep.wake: true`";
            return Err(violation_of(["sleep.idle", "sleep.wake"], problem));
        }
        Ok(())
    }
}
