//! Determines the OTLP endpoints of spans and metrics from the configuration and from the standard
//! `OTEL_*` environment variables.

use super::application::ApplicationError;
use crate::admin::Admin;
use crate::config::{ConfigSource, LoadedConfig};
use crate::telemetry::metrics_push::{self, MetricsPushSettings, MetricsPusher};
use crate::telemetry::otel;
use std::sync::Arc;
use std::time::SystemTime;
use tokenweir_core::clock;

/// The settings of the span export. The standard variables take precedence over the configuration
/// file. The gateway's own flag and variable take precedence over both.
pub(crate) fn spans(
    loaded: &LoadedConfig,
    env: impl Fn(&str) -> Option<String>,
) -> otel::TracingConfig {
    let tracing = loaded.config.tracing.clone();
    let variable = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    let is_overridden = is_overridden(loaded, "tracing.endpoint", variable, env);
    let endpoint = tracing.endpoint.filter(|_| !is_overridden);
    otel::TracingConfig { endpoint, ..tracing }
}

/// The settings of the metrics push. `None`: the push or all metrics are disabled.
pub(crate) fn metrics(
    loaded: &LoadedConfig,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Option<MetricsPushSettings>, ApplicationError> {
    let metrics = &loaded.config.metrics;
    let variable = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT";
    let is_overridden = is_overridden(loaded, "metrics.otlp.endpoint", variable, &env);
    let configured = metrics_push::MetricsPushConfig {
        is_wanted: metrics.otlp.endpoint.is_some(),
        endpoint: metrics.otlp.endpoint.clone().filter(|_| !is_overridden),
        protocol: metrics.otlp.protocol,
        interval: metrics.otlp.interval,
    };
    Ok(MetricsPushSettings::read(configured, env)?.filter(|_| metrics.enabled))
}

/// Starts the metrics push. `since` is the start time of the cumulative counters.
pub(crate) fn push(
    settings: &MetricsPushSettings,
    admin: &Arc<Admin>,
    since: SystemTime,
) -> Result<MetricsPusher, ApplicationError> {
    let (telemetry, counter) = (admin.telemetry.clone(), admin.push_counter.clone());
    let admin = admin.clone();
    let vitals = Box::new(move || admin.status_snapshot(clock::now()));
    let source = metrics_push::MetricsPushSource { telemetry, vitals, since };
    Ok(MetricsPusher::start(settings, source, counter)?)
}

/// Whether a standard variable replaces the endpoint at `path`, which only the file sets.
fn is_overridden(
    loaded: &LoadedConfig,
    path: &str,
    variable: &str,
    env: impl Fn(&str) -> Option<String>,
) -> bool {
    let is_set = |name: &str| env(name).is_some_and(|value| !value.is_empty());
    loaded.sources.source_of(path) == ConfigSource::File
        && [variable, "OTEL_EXPORTER_OTLP_ENDPOINT"].into_iter().any(is_set)
}
