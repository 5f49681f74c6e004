//! Validation of `slos` and `metrics.buckets`.

use super::values::is_label;
use crate::config::root::Config;
use crate::config::violation::{RuleViolation, require, violation_at, violation_of};
use tokenweir_gateway::telemetry::metrics_registry::buckets::{BucketOverridesError, histograms};
use tokenweir_request::error::listed;
use tokenweir_request::slo::Objective;

/// Maximum number of objectives.
const MAX_OBJECTIVES: usize = 20;

/// Checks the rules of `slos` and `metrics.buckets` and returns the first violation.
pub(super) fn check(config: &Config) -> Result<(), RuleViolation> {
    let problem = "too many objectives: at most 20, because each adds time series";
    require(config.slos.len() <= MAX_OBJECTIVES, "slos", problem)?;
    for (index, slo) in config.slos.iter().enumerate() {
        let path = |key: &str| format!("slos.{index}.{key}");
        let problem = "a name has 1 to 32 characters: letters, digits and `-_.`";
        require(is_label(&slo.name), &path("name"), problem)?;
        let is_same = |other: &Objective| other.name == slo.name;
        if let Some(earlier) = config.slos[..index].iter().position(is_same) {
            let problem = format!("`{}` is already the name of slos[{earlier}]", slo.name);
            return Err(violation_at(&path("name"), problem));
        }
        let tiers = &config.tiers.names;
        if let Some(tier) = slo.tier.as_ref().filter(|tier| !tiers.contains(tier)) {
            let known = if tiers.is_empty() { "no tiers".to_owned() } else { listed(tiers.iter()) };
            let problem = format!("unknown tier `{tier}`: `tiers` has {known}");
            let path = path("tier");
            let paths = [path.as_str(), "tiers", "tiers.names"];
            return Err(violation_of(paths, problem));
        }
    }
    config.histogram_buckets().map(|_| ()).map_err(|error| bucket_violation(&error))
}

/// The violation for invalid `metrics.buckets`.
fn bucket_violation(error: &BucketOverridesError) -> RuleViolation {
    let path = |metric: &str| format!("metrics.buckets.{metric}");
    match error {
        BucketOverridesError::Unknown(metric) => {
            let similarity = |name: &&str| strsim::jaro_winkler(metric, name);
            let nearest = histograms().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
            let problem = format!("{error}; did you mean `{}`?", nearest.unwrap_or_default());
            violation_at(&path(metric), problem)
        }
        BucketOverridesError::InvalidBounds(metric) => {
            violation_at(&path(metric), error.to_string())
        }
        BucketOverridesError::TooManyBounds { metric, .. } => RuleViolation {
            paths: vec![path(metric), "slos".to_owned()],
            problem: format!("`{metric}`: {error}"),
        },
    }
}
