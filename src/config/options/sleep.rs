//! The section `sleep`: sleep mode of vLLM.

use tokenweir_gateway::backend::facets::sleep::SleepSettings;
use tokenweir_settings::{CheckResult, ConfigSection, ReloadClass, violation_of};

/// The section `sleep`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = SleepSettings;
    const RELOAD: ReloadClass = ReloadClass::AtOnce;

    fn check(sleep: &SleepSettings, _: &C) -> CheckResult {
        if sleep.idle.is_some() && !sleep.wake {
            let problem = "an engine that is put to sleep must be woken: set `sleep.wake: true`";
            return Err(violation_of(["sleep.idle", "sleep.wake"], problem));
        }
        Ok(())
    }
}
