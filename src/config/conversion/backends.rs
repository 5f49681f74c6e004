//! Backends, the settings of their pool, and the TLS of the connections to them.

use crate::config::root::Config;
use crate::config::sections::backends::BackendConfig;
use crate::config::sections::secret::UnreadableSecret;
use crate::config::sections::settings::UsageMode;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_gateway::backend::{Backend, BackendSettings, PoolSettings};
use tokenweir_net::tls::{Alpn, OutboundTls, TlsClientContext, TlsError};

/// TLS contexts of backends, by authority (`host:port`).
pub type BackendTlsContexts = Vec<(String, Arc<TlsClientContext>)>;

impl Config {
    /// Builds backends from their entries and from the settings that apply to all backends. `env`
    /// returns the value of an environment variable.
    pub fn build_backends(
        &self,
        entries: &[BackendConfig],
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<Backend>, UnreadableSecret> {
        let horizon = Duration::try_from_secs_f64(self.routing.kv_aware.horizon_seconds);
        let horizon = horizon.unwrap_or(Duration::MAX);
        let build = |entry: &BackendConfig| {
            let secret = entry.secret().map(|secret| secret.resolve(&env));
            let authorization = secret.transpose()?.map(|secret| secret.bearer().clone());
            let settings = BackendSettings {
                weight: entry.weight,
                role: entry.role,
                may_inject_usage: entry.usage.unwrap_or(self.usage) == UsageMode::Inject,
                continuous_usage_share: self.continuous_usage,
                routes_to_ranks: self.routing.data_parallel_ranks,
                is_drained: entry.drained,
                pod: entry.pod.as_deref().map(Into::into),
                gpu_cost: BackendSettings::gpu_cost(
                    entry.gpus.or(self.cost.gpus),
                    entry.gpu_hour_price.or(self.cost.gpu_hour_price),
                ),
            };
            let kv_events = entry.kv_events.clone().unwrap_or_default();
            let backend = Backend::new(entry.id(), entry.url.clone(), authorization);
            let mut backend = backend.with_settings(settings);
            backend.identity.kv_events = kv_events.resolve(&self.kv_events, &entry.url);
            backend.identity.metrics_url.clone_from(&entry.metrics_url);
            backend.health.breaker.set(self.circuit_breaker);
            backend.load.set_horizon(horizon);
            Ok(backend)
        };
        entries.iter().map(build).collect()
    }

    /// The settings of the backend pool.
    pub fn pool_settings(&self) -> PoolSettings {
        PoolSettings {
            models: self.models.clone(),
            policy: self.routing.policy(),
            shadow_policies: self.routing.shadow.clone(),
            panic_threshold: self.circuit_breaker.panic_threshold,
            sleep: self.sleep,
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
    let with_tls = entries.iter().filter_map(|entry| Some((entry, entry.tls.as_ref()?)));
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
    fn a_backend_with_drained_true_in_the_configuration_is_drained_from_the_start() {
        let text = "backends:\n  - { url: \"http://a:1\", drained: true }\n  - url: http://b:1\n";
        let config = parse(text).unwrap().config;
        let backends = config.build_backends(&config.backends, |_| None).unwrap();
        let is_drained: Vec<bool> =
            backends.iter().map(|backend| backend.health.is_drained()).collect();
        assert_eq!(is_drained, [true, false]);
    }
}
