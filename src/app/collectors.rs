//! Which collectors spans and metrics go to: the configuration beside the standard variables.

use super::assembly::AssemblyError;
use crate::admin::Admin;
use crate::config::{Loaded, Source};
use crate::telemetry::otel;
use crate::telemetry::push::{self, Push, Settings};
use std::sync::Arc;
use std::time::SystemTime;
use tokenweir_core::clock;

/// The standard variables win over the file, and our own flag and variable over both.
pub(crate) fn spans(loaded: &Loaded, env: impl Fn(&str) -> Option<String>) -> otel::Configured {
    let tracing = loaded.config.tracing.clone();
    let own = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    let is_overridden = is_overridden(loaded, "tracing.endpoint", own, env);
    let endpoint = tracing.endpoint.filter(|_| !is_overridden);
    otel::Configured { endpoint, ..tracing }
}

/// How metrics are pushed. `None`: they are not, or there are none.
pub(crate) fn metrics(
    loaded: &Loaded,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Option<Settings>, AssemblyError> {
    let metrics = &loaded.config.metrics;
    let own = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT";
    let is_overridden = is_overridden(loaded, "metrics.otlp.endpoint", own, &env);
    let configured = push::Configured {
        is_wanted: metrics.otlp.endpoint.is_some(),
        endpoint: metrics.otlp.endpoint.clone().filter(|_| !is_overridden),
        protocol: metrics.otlp.protocol,
        interval: metrics.otlp.interval,
    };
    Ok(Settings::read(configured, env)?.filter(|_| metrics.enabled))
}

/// Starts to push what is counted since `since`.
pub(crate) fn push(
    settings: &Settings,
    admin: &Arc<Admin>,
    since: SystemTime,
) -> Result<Push, AssemblyError> {
    let (telemetry, counter) = (admin.telemetry.clone(), admin.pushes.clone());
    let admin = admin.clone();
    let vitals = Box::new(move || admin.vitals(clock::now()));
    let source = push::Source { telemetry, vitals, since };
    Ok(Push::start(settings, source, counter)?)
}

/// Whether a variable says where a collector is, and only the file says otherwise.
fn is_overridden(
    loaded: &Loaded,
    path: &str,
    own: &str,
    env: impl Fn(&str) -> Option<String>,
) -> bool {
    let is_set = |name: &str| env(name).is_some_and(|value| !value.is_empty());
    loaded.sources.of(path) == Source::File
        && [own, "OTEL_EXPORTER_OTLP_ENDPOINT"].into_iter().any(is_set)
}
