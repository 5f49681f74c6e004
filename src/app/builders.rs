//! Builders of the gateway's components, each from its section of the configuration.

use super::application::ApplicationError;
use super::descriptor_budget::DescriptorBudget;
use super::keys_file::KeysFileWatcher;
use super::logging::LogWriters;
use crate::admin;
use crate::backend::pool::BackendPool;
use crate::backend::{Backend, PoolSettings};
use crate::config::{self, BackendConfig, Config, TierKey};
use crate::proxy::access::AccessControl;
use crate::proxy::{OverloadGuard, OverloadLimits, admission};
use crate::server::ServerLimits;
use crate::telemetry::Telemetry;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::batch_dispatcher::BatchDispatcherGuard;
use crate::telemetry::metric::KnownLabelValues;
use crate::telemetry::metrics_registry::BucketOverrides;
use crate::telemetry::metrics_registry::Prometheus;
use crate::telemetry::otel::SpanSink;
use crate::telemetry::payload_log::{self, PayloadLog};
use crate::telemetry::status::{RequestLogCounts, SpanCounts};
use crate::telemetry::trace_capture::{self, TraceCapture};
use http::HeaderName;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::access::{Cors, SaltKey};
use tokenweir_core::observe::{self, Sink};
use tokenweir_core::openai::PhraseMatcher;
use tokenweir_core::openai::engine_control::Permissions;
use tokenweir_core::record::TierResolver;
use tokenweir_net::tls::{Alpn, OutboundTls, TlsClientContext, TlsError};

/// Builds backends from their entries and from the settings of all backends.
pub(crate) fn backends(
    config: &Config,
    backends: &[BackendConfig],
    env: impl Fn(&str) -> Option<String>,
) -> Result<Vec<Backend>, ApplicationError> {
    let horizon = Duration::try_from_secs_f64(config.routing.kv_aware.horizon_seconds);
    let horizon = horizon.unwrap_or(Duration::MAX);
    let backend = |configured: &BackendConfig| {
        let secret = configured.api_key.as_ref().map(|key| key.resolve(&env)).transpose();
        let to_error =
            |source| ApplicationError::Secret { backend: configured.id().to_string(), source };
        let authorization = secret.map_err(to_error)?.map(|secret| secret.bearer().clone());
        let backend = Backend::new(configured.id(), configured.url.clone(), authorization);
        let usage = configured.usage.unwrap_or(config.usage);
        Ok(backend
            .with_usage_injection(usage == config::UsageMode::Inject)
            .with_continuous_usage(configured.continuous_usage.unwrap_or(config.continuous_usage))
            .with_weight(configured.weight)
            .with_circuit_breaker(config.circuit_breaker)
            .with_load_horizon(horizon))
    };
    backends.iter().map(backend).collect()
}

/// The settings of the backend pool.
pub(crate) fn selection(config: &Config) -> PoolSettings {
    PoolSettings {
        models: config.models.clone(),
        policy: config.routing.policy(&config.slos),
        shadow_policies: config.routing.shadow.clone(),
        panic_threshold: config.circuit_breaker.panic_threshold,
        max_model_labels: config.metrics.max_models,
    }
}

/// The access control of clients, and the watcher of the keys file if there is one.
pub(crate) fn access(
    config: &Config,
    env: impl Fn(&str) -> Option<String>,
) -> Result<(Arc<AccessControl>, Option<KeysFileWatcher>), ApplicationError> {
    let opened = config.access.keys_file.clone();
    let opened =
        opened.map(|file| KeysFileWatcher::open(file, config.tiers.clone())).transpose()?;
    let (watcher, keys) = opened.unzip();
    if keys.is_none() && !config.listen.ip().is_loopback() {
        tracing::warn!(
            listen = %config.listen,
            "clients are not authenticated: every client that reaches this address can use the \
             backends; set access.keys_file to require keys"
        );
    }
    let access = AccessControl::new(keys.as_ref(), Cors::new(&config.access.cors))
        .with_permissions(Permissions::new(&config.access.allow))
        .with_salt_key(build_salt_key(&config.access.cache_salt, env)?);
    Ok((Arc::new(access), watcher))
}

/// The key that derives the `cache_salt` of each tenant. `None`: salts are not derived.
fn build_salt_key(
    settings: &config::CacheSaltConfig,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Option<SaltKey>, ApplicationError> {
    let Some(config::SaltSource::Tenant) = settings.derive else { return Ok(None) };
    let secret = settings.secret.as_ref().map(|secret| secret.resolve(env)).transpose();
    let secret = secret.map_err(|source| ApplicationError::CacheSalt { source })?;
    Ok(Some(SaltKey::new(secret.map(|secret| secret.digest()))))
}

/// The authorizer of the admin listener.
pub(crate) fn guard(
    config: &Config,
    env: impl Fn(&str) -> Option<String>,
) -> Result<admin::AdminAuthorizer, ApplicationError> {
    let token = config.access.admin_token.as_ref().map(|secret| secret.resolve(env)).transpose();
    let token = token.map_err(|source| ApplicationError::AdminToken { source })?;
    Ok(admin::AdminAuthorizer {
        token_digest: token.map(|token| token.digest()),
        has_unauthenticated_metrics: config.access.unauthenticated_metrics,
        hosts: config.access.admin_hosts.clone(),
    })
}

/// The session headers. Validation of the configuration has checked that they parse.
pub(crate) fn session_headers(config: &Config) -> Vec<HeaderName> {
    config.routing.session_headers.iter().filter_map(|name| name.parse().ok()).collect()
}

/// The settings of the observation of requests: stalls, slow requests, model refusals and buckets.
pub(crate) fn observation(
    config: &Config,
    buckets: &BucketOverrides,
) -> Result<observe::ObservationSettings, ApplicationError> {
    let phrases = &config.refusal_detection.refusal_phrases;
    let phrases = (!phrases.is_empty()).then(|| PhraseMatcher::new(phrases)).transpose()?;
    Ok(observe::ObservationSettings {
        stalls: config.stalls,
        streams: config.streams,
        slow: config.slow,
        phrases: phrases.map(Arc::new),
        scales: buckets.scales(),
    })
}

/// The limits of both listeners, from the configuration and the file descriptor budget.
pub(crate) fn limits(config: &Config, files: DescriptorBudget, backends: usize) -> ServerLimits {
    let limits = &config.limits;
    ServerLimits {
        max_head_bytes: limits.header,
        max_headers: limits.headers_count,
        head_timeout: limits.header_timeout,
        keep_alive_timeout: limits.keep_alive,
        write_timeout: limits.write_timeout,
        max_connections: limits.connections.unwrap_or_else(|| files.clients(backends)),
        max_connections_per_client: limits.connections_per_client,
        max_concurrent_rejections: files.refusals,
        max_admin_connections: files.admin,
        max_concurrent_streams: limits.streams_per_connection,
        max_memory_bytes: limits.memory.map(|bytes| bytes as u64),
        drain_delay: config.drain.delay,
        drain_timeout: config.drain.timeout,
    }
}

/// The overload guard, from the configured limits and the file descriptor budget.
pub(crate) fn gate(config: &Config, files: DescriptorBudget) -> OverloadGuard {
    OverloadGuard::new(OverloadLimits {
        max_requests: config.limits.requests_in_flight,
        max_requests_per_client: config.limits.requests_per_client,
        max_descriptors: files.traffic,
    })
}

/// TLS of the connections to backends: the client certificate and the trusted CAs.
pub(crate) fn outbound(
    config: &Config,
    backends: &[BackendConfig],
) -> Result<Arc<OutboundTls>, TlsError> {
    let outbound = OutboundTls::new(TlsClientContext::new(&config.backend_tls, Alpn::Http1)?);
    outbound.set_host_contexts(identities(backends)?);
    Ok(outbound)
}

/// TLS of the backends that have their own TLS settings, by authority (`host:port`).
pub(crate) fn identities(
    backends: &[BackendConfig],
) -> Result<Vec<(String, Arc<TlsClientContext>)>, TlsError> {
    let with_tls = backends.iter().filter_map(|backend| Some((backend, backend.tls.as_ref()?)));
    with_tls
        .map(|(backend, tls)| {
            let context = TlsClientContext::new(tls, Alpn::Http1)?;
            Ok((backend.url.authority().to_owned(), Arc::new(context)))
        })
        .collect()
}

/// The settings of the admission queue. `None`: admission control is disabled.
pub(crate) fn admission(config: &Config) -> Option<admission::AdmissionSettings> {
    let configured = &config.admission;
    configured.enabled.then(|| admission::AdmissionSettings {
        thresholds: configured.marks(),
        queue_capacity: configured.queue_capacity,
        max_wait: configured.max_wait,
        classes: configured.classes(),
        // Validation of the configuration has checked that it parses.
        tenant_header: configured.tenant_header.as_ref().and_then(|name| name.parse().ok()),
    })
}

/// The tiers, with their resolved keys.
pub(crate) fn tiers(
    config: &Config,
    env: impl Fn(&str) -> Option<String>,
) -> Result<TierResolver, ApplicationError> {
    let key = |configured: &TierKey| {
        let to_error = |source| ApplicationError::TierKey { tier: configured.tier.clone(), source };
        let secret = configured.key.resolve(&env).map_err(to_error)?;
        Ok((secret.bearer().clone(), Arc::from(configured.tier.as_str())))
    };
    Ok(TierResolver {
        // Validation of the configuration has checked that it parses.
        header: config.tiers.header.as_ref().and_then(|name| name.parse().ok()),
        names: config.tiers.names.iter().map(|name| name.as_str().into()).collect(),
        keys: config.tiers.keys.iter().map(key).collect::<Result<_, ApplicationError>>()?,
    })
}

/// The names of all tiers, sorted and without duplicates.
pub(crate) fn list_tier_names(config: &Config) -> Vec<String> {
    let key_tiers = config.tiers.keys.iter().map(|key| key.tier.clone());
    let mut names: Vec<String> = config.tiers.names.iter().cloned().chain(key_tiers).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The telemetry, with sinks that get each record at once and sinks that get records in batches.
pub(crate) fn telemetry(
    pool: &BackendPool,
    config: &Config,
    buckets: &BucketOverrides,
    sinks: Vec<Arc<dyn Sink>>,
    batched_sinks: Vec<Arc<dyn Sink>>,
) -> (Telemetry, BatchDispatcherGuard) {
    let known = KnownLabelValues {
        models: Vec::new(),
        backends: pool.backends().iter().map(|backend| backend.identity.id.to_string()).collect(),
        tiers: list_tier_names(config),
        // Read from the active keys at each scrape.
        tenants: Vec::new(),
        slos: Vec::new(),
    };
    let metrics = || Prometheus::new(known, buckets, config.slos.clone());
    Telemetry::with_batch_dispatcher(config.metrics.enabled.then(metrics), sinks, batched_sinks)
}

/// The sinks, besides the metrics, that get records in batches.
pub(crate) fn later(
    access_log: Option<AccessLog>,
    otel: Option<&SpanSink>,
    capture: Option<TraceCapture>,
) -> Vec<Arc<dyn Sink>> {
    let mut sinks: Vec<Arc<dyn Sink>> = Vec::new();
    if let Some(access_log) = access_log {
        sinks.push(Arc::new(access_log));
    }
    if let Some(otel) = otel {
        sinks.push(Arc::new(otel.clone()));
    }
    if let Some(capture) = capture {
        sinks.push(Arc::new(capture));
    }
    sinks
}

/// Starts the trace capture. `None`: no capture file is configured.
pub(crate) fn capture(
    config: &Config,
) -> Result<Option<(TraceCapture, trace_capture::TraceCaptureGuard)>, ApplicationError> {
    let Some(file) = &config.trace_capture.file else { return Ok(None) };
    let to_error = |source| ApplicationError::Capture { file: file.clone(), source };
    TraceCapture::start(file, config.trace_capture.max_bytes as u64).map(Some).map_err(to_error)
}

/// A function that returns the line counts of the access log and of the payload log.
pub(crate) fn log_counts(
    logs: &LogWriters,
    access_log: Option<&AccessLog>,
    payload_log: Option<&PayloadLog>,
) -> Arc<dyn Fn() -> RequestLogCounts + Send + Sync> {
    let access_lines = access_log.map(AccessLog::counter).zip(logs.dropped());
    let payload_lines = payload_log.map(PayloadLog::counter);
    Arc::new(move || RequestLogCounts {
        access: access_lines
            .as_ref()
            .map_or_else(Default::default, |(lines, dropped)| lines.counts(dropped())),
        content: payload_lines
            .as_ref()
            .map(payload_log::PayloadLogStats::counts)
            .unwrap_or_default(),
    })
}

/// A function that returns the span counts of the exporter. All 0 without an exporter.
pub(crate) fn span_counts(otel: Option<&SpanSink>) -> Box<dyn Fn() -> SpanCounts + Send + Sync> {
    let Some(counts) = otel.map(|otel| otel.counts().clone()) else {
        return Box::new(SpanCounts::default);
    };
    Box::new(move || SpanCounts {
        queued: counts.queued(),
        exported: counts.exported(),
        failed: counts.failed(),
        filtered: counts.filtered(),
    })
}
