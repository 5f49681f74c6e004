//! The section `timeouts`: timeouts of requests to backends.

use tokenweir_net::client::HttpClientTimeouts;
use tokenweir_settings::{CheckResult, ConfigSection, at_least_1ms};

/// Values, rules and reload class of the section `timeouts`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = HttpClientTimeouts;

    fn check(timeouts: &HttpClientTimeouts, _: &C) -> CheckResult {
        at_least_1ms("timeouts.connect", timeouts.connect)?;
        at_least_1ms("timeouts.first_output", timeouts.first_output)?;
        at_least_1ms("timeouts.idle_connection", timeouts.idle_connection)?;
        at_least_1ms("timeouts.response_headers", timeouts.response_headers)
    }
}
