//! Backends, the settings of their pool, and the TLS of the connections to them.

use crate::config::backends::section::BackendConfig;
use crate::config::backends::usage::UsageMode;
use crate::config::root::Config;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_gateway::backend::facets::BackendFacet;
use tokenweir_gateway::backend::{Backend, BackendSettings, PoolSettings};
use tokenweir_net::tls::{Alpn, OutboundTls, TlsClientContext, TlsError};
use tokenweir_settings::{ConfiguredSecret, Environment, SecretValue, UnreadableSecret};

/// TLS contexts of backends, by authority (`host:port`).
pub type BackendTlsContexts = Vec<(String, Arc<TlsClientContext>)>;

impl Config {
    /// Builds backends from their entries and from the settings for all backends. `env` returns the value of an
    /// environment variable. `facets` returns the parts of options that belong to a backend.
    pub fn build_backends(
        &self,
        entries: &[BackendConfig],
        env: impl Environment,
        facets: impl Fn(&BackendConfig) -> Vec<Box<dyn BackendFacet>>,
    ) -> Result<Vec<Backend>, UnreadableSecret> {
        let horizon = Duration::try_from_secs_f64(self.routing.kv_aware.horizon_seconds);
        let horizon = horizon.unwrap_or(Duration::MAX);
        let build = |entry: &BackendConfig| {
            let secret = ConfiguredSecret::resolve_any(entry.secret(), &env)?;
            let authorization = secret.map(SecretValue::into_bearer);
            let settings = BackendSettings {
                weight: entry.weight,
                may_inject_usage: entry.usage.unwrap_or(self.usage) == UsageMode::Inject,
                continuous_usage_share: self.continuous_usage,
                is_drained: entry.drained,
                pod: entry.pod.as_deref().map(Into::into),
            };
            let backend = Backend::new(entry.id(), entry.url.clone(), authorization);
            let mut backend = backend.with_settings(settings);
            backend.identity.metrics_url.clone_from(&entry.metrics_url);
            backend.health.breaker.set(self.circuit_breaker);
            backend.load.set_horizon(horizon);
            backend.facets.role.set(entry.role);
            backend.facets.options = facets(entry);
            Ok(backend)
        };
        entries.iter().map(build).collect()
    }

    /// The settings of the backend pool.
    pub fn pool_settings(&self) -> PoolSettings {
        PoolSettings {
            models: self.models.clone(),
            policy: self.routing.policy(),
            panic_threshold: self.circuit_breaker.panic_threshold,
            max_model_labels: self.metrics.max_models,
        }
    }

    /// Builds the TLS contexts of the connections to backends from `backend_tls` and from the `tls`
    /// settings of the entries.
    pub fn outbound_tls(&self, entries: &[BackendConfig]) -> Result<Arc<OutboundTls>, TlsError> {
        let outbound = OutboundTls::new(TlsClientContext::new(&self.backend_tls, Alpn::Http1)?);
        outbound.set_host_contexts(backend_tls_contexts(entries)?);
        Ok(outbound)
    }
}

/// Builds the TLS contexts of the backends that have their own `tls` settings.
pub fn backend_tls_contexts(entries: &[BackendConfig]) -> Result<BackendTlsContexts, TlsError> {
    let with_tls = entries
        .iter()
        .filter_map(|entry| Some((entry, entry.tls.as_ref()?)));
    with_tls
        .map(|(entry, tls)| {
            let context = TlsClientContext::new(tls, Alpn::Http1)?;
            Ok((entry.url.authority().to_owned(), Arc::new(context)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::config::tests::parse;

    #[test]
    fn a_drained_entry_is_drained_from_the_start() {
        let text = "backends:\n  - { url: \"http://a:1\", drained: true }\n  - url: http://b:1\n";
        let config = parse(text).unwrap().config;
        let backends = config
            .build_backends(&config.backends, |_| None, |_| Vec::new())
            .unwrap();
        let is_drained: Vec<bool> = backends
            .iter()
            .map(|backend| backend.health.is_drained())
            .collect();
        assert_eq!(is_drained, [true, false]);
    }
}
