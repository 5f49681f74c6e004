//! The sections `usage` and `continuous_usage`: the token counts that the gateway requests from backends.

use tokenweir_protocol::settings;
use tokenweir_settings::{CheckResult, ConfigSection, share};

settings! {
    /// Whether the gateway requests usage that a client did not request.
    #[derive(Default, clap::ValueEnum)]
    pub enum UsageMode {
        /// Request usage from vLLM and SGLang, and remove its event from responses.
        #[default]
        Inject,
        /// Request no usage.
        Passive,
    }
}

/// Default of `continuous_usage`. At this share of streams, all events together cost the gateway up to 3 % more
/// instructions. docs/concepts/usage.md has the figures, also for vLLM.
const DEFAULT_CONTINUOUS_USAGE_RATIO: f64 = 0.03;

/// Values, rules and reload class of the section `usage`.
pub struct Usage;

impl<C> ConfigSection<C> for Usage {
    type Values = UsageMode;
}

/// Values, rules and reload class of the section `continuous_usage`.
pub struct ContinuousUsage;

impl<C> ConfigSection<C> for ContinuousUsage {
    type Values = f64;

    fn defaults() -> f64 {
        DEFAULT_CONTINUOUS_USAGE_RATIO
    }

    fn check(ratio: &f64, _: &C) -> CheckResult {
        share("continuous_usage", *ratio)
    }
}
