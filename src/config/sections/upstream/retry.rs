//! The section `retry`: retries of failed requests on other backends.

use tokenweir_gateway::proxy::retry::RetrySettings;
use tokenweir_settings::{CheckResult, ConfigSection, require, share};

const MAX_ATTEMPTS: u32 = 10;

/// Values, rules and reload class of the section `retry`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = RetrySettings;

    fn check(retry: &RetrySettings, _: &C) -> CheckResult {
        share("retry.budget_ratio", f64::from(retry.budget_ratio))?;
        require(
            retry.attempts <= MAX_ATTEMPTS,
            "retry.attempts",
            "this must be 10 or less",
        )
    }
}
