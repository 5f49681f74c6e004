//! The section `metrics`: metrics and their export.

use std::collections::BTreeMap;
use tokenweir_gateway::backend::DEFAULT_MAX_MODEL_LABELS;
use tokenweir_gateway::telemetry::metrics_registry::MetricsLevel;
use tokenweir_gateway::telemetry::metrics_registry::buckets::{
    BucketOverrides, BucketOverridesError, histograms,
};
use tokenweir_protocol::settings;
use tokenweir_request::record::ResponseBuckets;
use tokenweir_request::slo::Objective;
use tokenweir_settings::{
    CheckResult, ConfigSection, ReloadClass, RuleViolation, violation_at, violation_of,
};

settings! {
    /// Metrics and their export.
    pub struct MetricsConfig {
        /// How many series the gateway exports. `null`: none, and `/metrics` is 404.
        pub level: Option<MetricsLevel>,
        /// Bucket bounds that replace the defaults, by histogram: ascending, in the metric's unit.
        pub buckets: BTreeMap<String, Vec<f64>>,
        /// Whether `/metrics` is also available with native histograms, for a Prometheus that asks for
        /// them.
        pub native_histograms: bool,
        /// Maximum number of discovered models with their own label value. Others have `_other`.
        pub max_models: usize,
    }
}

impl Default for MetricsConfig {
    fn default() -> Self {
        Self {
            level: Some(MetricsLevel::default()),
            buckets: BTreeMap::new(),
            native_histograms: false,
            max_models: DEFAULT_MAX_MODEL_LABELS,
        }
    }
}

impl MetricsConfig {
    /// The buckets of the histograms: the configured bounds plus the limits of the objectives.
    pub(crate) fn histogram_buckets(
        &self,
        objectives: &[Objective],
    ) -> Result<BucketOverrides, BucketOverridesError> {
        let mut buckets = BucketOverrides::new(&self.buckets, objectives)?;
        buckets.is_native = self.native_histograms;
        Ok(buckets)
    }

    /// The buckets of histograms whose values are counted during a response.
    pub(crate) fn response_buckets(
        &self,
        objectives: &[Objective],
    ) -> Result<ResponseBuckets, BucketOverridesError> {
        Ok(self.histogram_buckets(objectives)?.scales())
    }
}

/// Values, rules and reload class of the section `metrics`.
pub struct Section;

impl<C: AsRef<Vec<Objective>>> ConfigSection<C> for Section {
    type Values = MetricsConfig;
    const RELOAD: ReloadClass = ReloadClass::AfterRestart;

    fn check(metrics: &MetricsConfig, config: &C) -> CheckResult {
        let objectives: &Vec<Objective> = config.as_ref();
        match metrics.histogram_buckets(objectives) {
            Ok(_) => Ok(()),
            Err(error) => Err(bucket_violation(&error)),
        }
    }
}

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
        BucketOverridesError::TooManyBounds { metric, .. } => {
            violation_of([&path(metric), "slos"], format!("`{metric}`: {error}"))
        }
    }
}
