//! The parts of a gateway, each made of its section of the configuration.

use super::assembly::AssemblyError;
use super::files::Files;
use super::keys::KeysFile;
use super::logs::Logs;
use crate::admin;
use crate::backend::pool::Pool;
use crate::backend::{Backend, Selection};
use crate::config::{self, BackendConfig, Config, TierKey};
use crate::proxy::access::Access;
use crate::proxy::{Gate, GateLimits, admission};
use crate::server::Limits;
use crate::telemetry::Telemetry;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::buckets::Buckets;
use crate::telemetry::capture::{self, Capture};
use crate::telemetry::content::{self, Content};
use crate::telemetry::metric::Known;
use crate::telemetry::otel::Otel;
use crate::telemetry::prometheus::Prometheus;
use crate::telemetry::teller::Telling;
use crate::telemetry::vitals::{LogCounts, SpanCounts};
use http::HeaderName;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::access::{Cors, SaltKey};
use tokenweir_core::observe::{self, Sink};
use tokenweir_core::openai::Phrases;
use tokenweir_core::openai::control::Permissions;
use tokenweir_core::record::Tiers;
use tokenweir_net::tls::{Alpn, Identity, Outbound, TlsError};

/// The replicas of a list, with what the configuration says of all.
pub(crate) fn backends(
    config: &Config,
    replicas: &[BackendConfig],
    env: impl Fn(&str) -> Option<String>,
) -> Result<Vec<Backend>, AssemblyError> {
    let horizon = Duration::try_from_secs_f64(config.routing.kv_aware.horizon_seconds);
    let horizon = horizon.unwrap_or(Duration::MAX);
    let backend = |configured: &BackendConfig| {
        let secret = configured.api_key.as_ref().map(|key| key.resolve(&env)).transpose();
        let failed =
            |source| AssemblyError::Secret { backend: configured.id().to_string(), source };
        let authorization = secret.map_err(failed)?.map(|secret| secret.bearer().clone());
        let backend = Backend::new(configured.id(), configured.url.clone(), authorization);
        let usage = configured.usage.unwrap_or(config.usage);
        Ok(backend
            .with_usage_injection(usage == config::UsageMode::Inject)
            .with_continuous_usage(configured.continuous_usage.unwrap_or(config.continuous_usage))
            .with_weight(configured.weight)
            .with_health(config.health)
            .with_horizon(horizon))
    };
    replicas.iter().map(backend).collect()
}

pub(crate) fn selection(config: &Config) -> Selection {
    Selection {
        names: config.models.clone(),
        policy: config.routing.policy(),
        shadow: config.routing.shadow.clone(),
        panic_threshold: config.health.panic_threshold,
        most_labels: config.metrics.max_models,
    }
}

/// Who may come in, and the file that says so.
pub(crate) fn access(
    config: &Config,
    env: impl Fn(&str) -> Option<String>,
) -> Result<(Arc<Access>, Option<KeysFile>), AssemblyError> {
    let opened = config.access.keys_file.clone();
    let opened = opened.map(|file| KeysFile::open(file, config.tiers.clone())).transpose()?;
    let (file, roster) = opened.unzip();
    if roster.is_none() && !config.listen.ip().is_loopback() {
        tracing::warn!(
            listen = %config.listen,
            "whoever reaches this address may use the replicas; see access.keys_file"
        );
    }
    let access = Access::new(roster.as_ref(), Cors::new(&config.access.cors))
        .with_allowed(Permissions::new(&config.access.allow))
        .with_salts(salts(&config.access.cache_salt, env)?);
    Ok((Arc::new(access), file))
}

/// What derives the `cache_salt` of each tenant, if that is wished for.
fn salts(
    settings: &config::CacheSalt,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Option<SaltKey>, AssemblyError> {
    let Some(config::SaltSource::Tenant) = settings.derive else { return Ok(None) };
    let secret = settings.secret.as_ref().map(|secret| secret.resolve(env)).transpose();
    let secret = secret.map_err(|source| AssemblyError::CacheSalt { source })?;
    Ok(Some(SaltKey::new(secret.map(|secret| secret.digest()))))
}

pub(crate) fn guard(
    config: &Config,
    env: impl Fn(&str) -> Option<String>,
) -> Result<admin::Guard, AssemblyError> {
    let token = config.access.admin_token.as_ref().map(|secret| secret.resolve(env)).transpose();
    let token = token.map_err(|source| AssemblyError::AdminToken { source })?;
    Ok(admin::Guard {
        token: token.map(|token| token.digest()),
        has_open_metrics: config.access.open_metrics,
        hosts: config.access.admin_hosts.clone(),
    })
}

/// The configuration has checked that they are names.
pub(crate) fn session_headers(config: &Config) -> Vec<HeaderName> {
    config.routing.session_headers.iter().filter_map(|name| name.parse().ok()).collect()
}

/// What is looked for while requests run and when they have ended.
pub(crate) fn observation(
    config: &Config,
    buckets: &Buckets,
) -> Result<observe::Settings, AssemblyError> {
    let phrases = &config.answers.refusal_phrases;
    let phrases = (!phrases.is_empty()).then(|| Phrases::new(phrases)).transpose()?;
    Ok(observe::Settings {
        stalls: config.stalls,
        streams: config.streams,
        slow: config.slow,
        phrases: phrases.map(Arc::new),
        scales: buckets.scales(),
    })
}

/// What clients and operators may have, if these files may be open and so many backends are watched.
pub(crate) fn limits(config: &Config, files: Files, backends: usize) -> Limits {
    let limits = &config.limits;
    Limits {
        head: limits.header,
        headers: limits.headers_count,
        head_timeout: limits.header_timeout,
        keep_alive: limits.keep_alive,
        write_timeout: limits.write_timeout,
        connections: limits.connections.unwrap_or_else(|| files.clients(backends)),
        connections_per_client: limits.connections_per_client,
        refusals: files.refusals,
        admin_connections: files.admin,
        streams: limits.streams_per_connection,
        memory: limits.memory.map(|most| most as u64),
        drain_delay: config.drain.delay,
        drain: config.drain.timeout,
    }
}

/// What is let in, if these files may be open.
pub(crate) fn gate(config: &Config, files: Files) -> Gate {
    Gate::new(GateLimits {
        requests: config.limits.requests_in_flight,
        requests_per_client: config.limits.requests_per_client,
        descriptors: files.traffic,
    })
}

/// Whom the gateway is, and believes, at the replicas.
pub(crate) fn outbound(
    config: &Config,
    replicas: &[BackendConfig],
) -> Result<Arc<Outbound>, TlsError> {
    let outbound = Outbound::new(Identity::new(&config.backend_tls, Alpn::Http1)?);
    outbound.set_own(identities(replicas)?);
    Ok(outbound)
}

/// The same for those replicas that have TLS of their own, by their authorities.
pub(crate) fn identities(
    replicas: &[BackendConfig],
) -> Result<Vec<(String, Arc<Identity>)>, TlsError> {
    let own = replicas.iter().filter_map(|replica| Some((replica, replica.tls.as_ref()?)));
    own.map(|(replica, tls)| {
        let identity = Identity::new(tls, Alpn::Http1)?;
        Ok((replica.url.authority().to_owned(), Arc::new(identity)))
    })
    .collect()
}

pub(crate) fn admission(config: &Config) -> Option<admission::Settings> {
    let configured = &config.admission;
    configured.enabled.then(|| admission::Settings {
        marks: configured.marks(),
        places: configured.room,
        max_wait: configured.max_wait,
        classes: configured.classes(),
        // The configuration has checked that it is a name.
        tenant_header: configured.tenant_header.as_ref().and_then(|name| name.parse().ok()),
    })
}

pub(crate) fn tiers(
    config: &Config,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Tiers, AssemblyError> {
    let key = |configured: &TierKey| {
        let failed = |source| AssemblyError::TierKey { tier: configured.tier.clone(), source };
        let secret = configured.key.resolve(&env).map_err(failed)?;
        Ok((secret.bearer().clone(), Arc::from(configured.tier.as_str())))
    };
    Ok(Tiers {
        // The configuration has checked that it is a name.
        header: config.tiers.header.as_ref().and_then(|name| name.parse().ok()),
        names: config.tiers.names.iter().map(|name| name.as_str().into()).collect(),
        keys: config.tiers.keys.iter().map(key).collect::<Result<_, AssemblyError>>()?,
    })
}

pub(crate) fn tier_names(config: &Config) -> Vec<String> {
    let of_keys = config.tiers.keys.iter().map(|key| key.tier.clone());
    let mut names: Vec<String> = config.tiers.names.iter().cloned().chain(of_keys).collect();
    names.sort_unstable();
    names.dedup();
    names
}

pub(crate) fn telemetry(
    pool: &Pool,
    config: &Config,
    buckets: &Buckets,
    sinks: Vec<Arc<dyn Sink>>,
    later: Vec<Arc<dyn Sink>>,
) -> (Telemetry, Telling) {
    let known = Known {
        models: Vec::new(),
        backends: pool.backends().iter().map(|backend| backend.id.to_string()).collect(),
        tiers: tier_names(config),
        // Those of the file that is in force are asked for with each page.
        tenants: Vec::new(),
        slos: Vec::new(),
    };
    let metrics = || Prometheus::new(known, buckets, config.slos.clone());
    Telemetry::with_teller(config.metrics.enabled.then(metrics), sinks, later)
}

/// Who hears of every request, besides the metrics, and need not know at once.
pub(crate) fn later(
    access_log: Option<AccessLog>,
    otel: Option<&Otel>,
    capture: Option<Capture>,
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

pub(crate) fn capture(
    config: &Config,
) -> Result<Option<(Capture, capture::Running)>, AssemblyError> {
    let Some(file) = &config.capture.file else { return Ok(None) };
    let failed = |source| AssemblyError::Capture { file: file.clone(), source };
    Capture::start(file, config.capture.max_bytes as u64).map(Some).map_err(failed)
}

pub(crate) fn log_counts(
    logs: &Logs,
    access_log: Option<&AccessLog>,
    content: Option<&Content>,
) -> Arc<dyn Fn() -> LogCounts + Send + Sync> {
    let lines = access_log.map(AccessLog::counter).zip(logs.dropped());
    let texts = content.map(Content::counter);
    Arc::new(move || LogCounts {
        access: lines
            .as_ref()
            .map_or_else(Default::default, |(lines, dropped)| lines.counts(dropped())),
        content: texts.as_ref().map(content::Counter::counts).unwrap_or_default(),
    })
}

pub(crate) fn span_counts(otel: Option<&Otel>) -> Box<dyn Fn() -> SpanCounts + Send + Sync> {
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
