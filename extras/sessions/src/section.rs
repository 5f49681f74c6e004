//! The section `sessions`: admission by live sessions.

use crate::settings::SessionSettings;
use tokenweir_settings::{CheckResult, ConfigSection, ReloadClass, require};

impl<C> ConfigSection<C> for SessionSettings {
    type Values = Self;
    const RELOAD: ReloadClass = ReloadClass::AtOnce;

    fn check(sessions: &SessionSettings, _: &C) -> CheckResult {
        let is_valid = sessions
            .gateways
            .is_none_or(|gateways| (1..=1_000).contains(&gateways));
        require(
            is_valid,
            "sessions.gateways",
            "this must be between 1 and 1000, or null",
        )
    }
}
