//! The section `routing`: selection of a backend for each request.

use tokenweir_protocol::settings;
use tokenweir_routing::{Policy, PolicyKind, kv_aware};
use tokenweir_settings::{CheckResult, ConfigSection, require, violation_at};

settings! {
    /// Selection of a backend for each request.
    pub struct RoutingConfig {
        /// The policy that picks the backend.
        pub policy: PolicyKind,
        /// Weights of the `kv_aware` policy. They scale its predictions in seconds.
        pub kv_aware: kv_aware::KvAwareSettings,
        /// Number of recent decisions that are kept, 0 to 16384, of up to 4.5 KiB each.
        pub decision_log_size: usize,
        /// Whether routing picks a data-parallel rank of a vLLM server. At each start of the server,
        /// each rank gets two requests of one token.
        pub data_parallel_ranks: bool,
    }
}

const MAX_DECISION_LOG_SIZE: usize = 16_384;

impl RoutingConfig {
    /// The policy with its settings.
    pub fn policy(&self) -> Policy {
        Policy {
            kind: self.policy,
            kv_aware: self.kv_aware,
        }
    }
}

impl Default for RoutingConfig {
    /// Policy `kv_aware`, 1,024 decisions, no data-parallel ranks.
    fn default() -> Self {
        Self {
            policy: PolicyKind::default(),
            kv_aware: kv_aware::KvAwareSettings::default(),
            decision_log_size: 1_024,
            data_parallel_ranks: false,
        }
    }
}

/// Values, rules and reload class of the section `routing`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = RoutingConfig;

    fn check(routing: &RoutingConfig, _: &C) -> CheckResult {
        #[cfg(not(feature = "options"))]
        require(
            !routing.data_parallel_ranks,
            "routing.data_parallel_ranks",
            tokenweir_settings::WITHOUT_OPTIONS,
        )?;
        check_weight("routing.kv_aware.pressure", routing.kv_aware.pressure)?;
        check_weight("routing.kv_aware.session", routing.kv_aware.session)?;
        let horizon = routing.kv_aware.horizon_seconds;
        let is_positive = horizon.is_finite() && horizon > 0.0;
        require(
            is_positive,
            "routing.kv_aware.horizon_seconds",
            "this must be more than 0",
        )?;
        if routing.decision_log_size > MAX_DECISION_LOG_SIZE {
            let problem = format!("this must be at most {MAX_DECISION_LOG_SIZE}");
            return Err(violation_at("routing.decision_log_size", problem));
        }
        Ok(())
    }

    // The decision log is allocated at the start, so its size cannot change.
    fn reloaded(old: &RoutingConfig, new: &RoutingConfig) -> RoutingConfig {
        RoutingConfig {
            decision_log_size: old.decision_log_size,
            ..new.clone()
        }
    }
}

fn check_weight(path: &str, weight: f64) -> CheckResult {
    require(
        weight.is_finite() && weight >= 0.0,
        path,
        "a weight must be 0 or more",
    )
}
