//! The section `circuit_breaker`: ejection and re-admission of backends.

use tokenweir_routing::resilience::CircuitBreakerSettings;
use tokenweir_settings::{CheckResult, ConfigSection, at_least_1ms, share};

/// Values, rules and reload class of the section `circuit_breaker`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = CircuitBreakerSettings;

    fn check(breaker: &CircuitBreakerSettings, _: &C) -> CheckResult {
        at_least_1ms(
            "circuit_breaker.base_ejection_time",
            breaker.base_ejection_time,
        )?;
        at_least_1ms("circuit_breaker.stuck_after", breaker.stuck_after)?;
        share("circuit_breaker.failure_ratio", breaker.failure_ratio)?;
        share("circuit_breaker.panic_threshold", breaker.panic_threshold)
    }
}
