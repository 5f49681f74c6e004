//! The settings of the exporters of spans and metrics, from the configuration and from the standard
//! `OTEL_*` environment variables.

use crate::config::Config;
use crate::config::load::LoadedConfig;
use crate::config::sections::settings::TiersConfig;
use crate::config::text::source::ConfigSource;
use crate::telemetry::metrics_push::{MetricsPushConfig, MetricsPushSettings};
use crate::telemetry::metrics_registry::buckets::{BucketOverrides, BucketOverridesError};
use crate::telemetry::otel::{OtelSettingsError, TracingConfig, TracingSettings};

impl LoadedConfig {
    /// The settings of the span export. The standard variables take precedence over the
    /// configuration file. The gateway's own flag and variable take precedence over both.
    pub fn tracing_settings(
        &self,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<TracingSettings, OtelSettingsError> {
        let tracing = self.config.tracing.clone();
        let variable = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
        let is_overridden = self.is_endpoint_overridden("tracing.endpoint", variable, &env);
        let endpoint = tracing.endpoint.filter(|_| !is_overridden);
        TracingSettings::read(TracingConfig { endpoint, ..tracing }, env)
    }

    /// The settings of the metrics push. `None`: the push or all metrics are disabled.
    pub fn metrics_push_settings(
        &self,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<MetricsPushSettings>, OtelSettingsError> {
        let metrics = &self.config.metrics;
        let variable = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT";
        let is_overridden = self.is_endpoint_overridden("metrics.otlp.endpoint", variable, &env);
        let configured = MetricsPushConfig {
            is_wanted: metrics.otlp.endpoint.is_some(),
            endpoint: metrics.otlp.endpoint.clone().filter(|_| !is_overridden),
            protocol: metrics.otlp.protocol,
            interval: metrics.otlp.interval,
        };
        Ok(MetricsPushSettings::read(configured, env)?.filter(|_| metrics.enabled))
    }

    /// Whether a standard variable replaces the endpoint at `path`. It replaces a value of the
    /// configuration file, and not a value of the gateway's own flag or variable. `variable` is the
    /// standard variable of the signal.
    fn is_endpoint_overridden(
        &self,
        path: &str,
        variable: &str,
        env: impl Fn(&str) -> Option<String>,
    ) -> bool {
        let is_set = |name: &str| env(name).is_some_and(|value| !value.is_empty());
        self.sources.source_of(path) == ConfigSource::File
            && [variable, "OTEL_EXPORTER_OTLP_ENDPOINT"].into_iter().any(is_set)
    }
}

impl Config {
    /// The buckets of the histograms: the configured ones, and the limits of the objectives.
    pub fn histogram_buckets(&self) -> Result<BucketOverrides, BucketOverridesError> {
        BucketOverrides::new(&self.metrics.buckets, &self.slos)
    }

    /// Whether histograms count in exponential buckets too: for native histograms of the metrics page,
    /// or for the metrics push.
    pub fn has_exponential_histograms(&self, env: impl Fn(&str) -> Option<String>) -> bool {
        self.metrics.native_histograms || MetricsPushSettings::requests_exponential_histograms(env)
    }
}

impl TiersConfig {
    /// The names of all tiers, sorted and without duplicates.
    pub fn all_names(&self) -> Vec<String> {
        let key_tiers = self.keys.iter().map(|key| key.tier.clone());
        let mut names: Vec<String> = self.names.iter().cloned().chain(key_tiers).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}
