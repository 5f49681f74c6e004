//! The section `slow`: thresholds of slow requests.

use tokenweir_request::record::SlowLimits;
use tokenweir_settings::{CheckResult, ConfigSection, at_least_1ms};

/// Values, rules and reload class of the section `slow`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = SlowLimits;

    fn check(slow: &SlowLimits, _: &C) -> CheckResult {
        at_least_1ms("slow.duration", slow.duration)?;
        at_least_1ms("slow.tpot", slow.tpot)?;
        at_least_1ms("slow.ttft", slow.ttft)?;
        at_least_1ms("slow.write_stall", slow.write_stall)
    }
}
