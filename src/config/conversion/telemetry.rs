//! The settings of the exporter of spans and of the metrics, from the configuration and from the standard
//! `OTEL_*` environment variables.

use crate::config::Config;
use crate::config::load::LoadedConfig;
use crate::config::text::source::ConfigSource;
use tokenweir_gateway::telemetry::metrics_registry::buckets::{
    BucketOverrides, BucketOverridesError,
};
use tokenweir_gateway::telemetry::otel::{OtelSettingsError, TracingSettings};
use tokenweir_settings::Environment;

impl LoadedConfig {
    /// The settings of the span export. The gateway's own flag and variable take precedence over the standard
    /// variables, and these over the configuration file.
    pub fn tracing_settings(
        &self,
        env: impl Environment,
    ) -> Result<TracingSettings, OtelSettingsError> {
        let mut tracing = self.config.tracing.clone();
        let variables = [
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
        ];
        let is_set = |name: &str| env(name).is_some_and(|value| !value.is_empty());
        if self.sources.source_of("tracing.endpoint") == ConfigSource::File
            && variables.into_iter().any(is_set)
        {
            tracing.endpoint = None;
        }
        TracingSettings::read(tracing, env)
    }
}

impl Config {
    /// The buckets of the histograms: the configured ones, and the limits of the objectives.
    pub fn histogram_buckets(&self) -> Result<BucketOverrides, BucketOverridesError> {
        self.metrics.histogram_buckets(&self.slos)
    }
}
