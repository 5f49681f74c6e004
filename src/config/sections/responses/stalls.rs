//! The section `stalls`: detection of stalled streams.

use tokenweir_request::observe::StallLimits;
use tokenweir_settings::{CheckResult, ConfigSection, at_least_1ms, violation_of};

/// Values, rules and reload class of the section `stalls`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = StallLimits;

    fn check(stalls: &StallLimits, _: &C) -> CheckResult {
        at_least_1ms("stalls.min_gap", stalls.min_gap)?;
        if stalls
            .abort_after
            .is_some_and(|limit| limit < stalls.min_gap)
        {
            let paths = ["stalls.abort_after", "stalls.min_gap"];
            return Err(violation_of(
                paths,
                "this must not be less than stalls.min_gap",
            ));
        }
        Ok(())
    }
}
