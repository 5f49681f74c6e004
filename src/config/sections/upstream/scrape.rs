//! The section `scrape`: scrapes and health checks of backends.

use tokenweir_gateway::backend::health_checker::ScrapeSettings;
use tokenweir_settings::{CheckResult, ConfigSection, at_least_1ms, more_than_0, violation_of};

/// Values, rules and reload class of the section `scrape`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = ScrapeSettings;

    fn check(scrape: &ScrapeSettings, _: &C) -> CheckResult {
        at_least_1ms("scrape.max_interval", scrape.max_interval)?;
        at_least_1ms("scrape.min_interval", scrape.min_interval)?;
        at_least_1ms("scrape.timeout", scrape.timeout)?;
        more_than_0("scrape.max_page", scrape.max_page)?;
        if scrape.max_interval < scrape.min_interval {
            let problem = "scrape.max_interval must not be less than scrape.min_interval";
            return Err(violation_of(
                ["scrape.max_interval", "scrape.min_interval"],
                problem,
            ));
        }
        Ok(())
    }
}
