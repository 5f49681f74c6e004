//! The state that survives reloads, and the proxy context that is built from it and from the active
//! configuration: once at the start, and again after each reload.

use super::application::ApplicationError;
use super::builders::{admission, identities, observation, session_headers, tiers};
use super::descriptor_budget::DescriptorBudget;
use super::memory_limit;
use crate::backend::pool::BackendPool;
use crate::config::{BackendConfig, Config};
use crate::proxy::access::AccessControl;
use crate::proxy::admission::AdmissionController;
use crate::proxy::retry::RetryController;
use crate::proxy::{BodyMemory, OverloadGuard, PayloadSampling, ProxyContext};
use crate::telemetry::Telemetry;
use crate::telemetry::metrics_registry::BucketOverrides;
use std::sync::Arc;
use tokenweir_core::observe::{ExchangeRegistry, ObservationSettings};
use tokenweir_core::trace_context::Propagation;
use tokenweir_net::client::HttpClient;
use tokenweir_net::tls::{OutboundTls, TlsClientContext};

/// The state that survives reloads.
pub(crate) struct SharedState {
    pub(crate) pool: Arc<BackendPool>,
    pub(crate) access: Arc<AccessControl>,
    pub(crate) admission: Arc<AdmissionController>,
    pub(crate) gate: Arc<OverloadGuard>,
    /// TLS of the connections to backends.
    pub(crate) outbound: Arc<OutboundTls>,
    /// The memory budget of request bodies.
    pub(crate) body_memory: Arc<BodyMemory>,
    /// The file descriptor budget.
    pub(crate) files: DescriptorBudget,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) live: Arc<ExchangeRegistry>,
    pub(crate) propagation: Option<Propagation>,
    /// The share of requests, 0 to 1, that the trace capture samples.
    pub(crate) captured: f64,
    pub(crate) payload_sampling: Option<PayloadSampling>,
    pub(crate) buckets: BucketOverrides,
}

/// A reload that is ready to be applied. [`SharedState::apply_reload`] cannot fail.
pub(crate) struct PreparedReload {
    observation_settings: ObservationSettings,
    backend_identities: Vec<(String, Arc<TlsClientContext>)>,
    gateway: ProxyContext,
}

// === impl SharedState ===

impl SharedState {
    /// Builds the proxy context of a configuration. `retry` must have its retry settings.
    pub(crate) fn gateway(
        &self,
        config: &Config,
        retry: RetryController,
        client: HttpClient,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<ProxyContext, ApplicationError> {
        Ok(ProxyContext {
            pool: self.pool.clone(),
            access: self.access.clone(),
            admission: self.admission.clone(),
            backend_client: client,
            retry,
            first_output_timeout: config.timeouts.first_output,
            sink: self.telemetry.clone(),
            max_body_bytes: config.limits.body,
            body_memory: self.body_memory.clone(),
            body_idle_timeout: config.limits.body_idle_timeout,
            overload_guard: self.gate.clone(),
            propagation: self.propagation.clone(),
            tiers: tiers(config, &env)?,
            open_streams: self.live.clone(),
            session_headers: session_headers(config),
            capture_ratio: self.captured,
            payload_sampling: self.payload_sampling,
        })
    }

    /// Does every step of a reload that can fail, without a change to the running gateway. The
    /// retry history of `previous` is kept.
    pub(crate) fn next(
        &self,
        config: &Config,
        previous: &ProxyContext,
        backends: &[BackendConfig],
        client: HttpClient,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<PreparedReload, ApplicationError> {
        let observation_settings = observation(config, &self.buckets)?;
        let backend_identities = identities(backends)?;
        let retry = previous.retry.with_settings(config.retry);
        let gateway = self.gateway(config, retry, client, env)?;
        Ok(PreparedReload { observation_settings, backend_identities, gateway })
    }

    /// Applies a prepared reload. Returns the new proxy context.
    pub(crate) fn apply_reload(&self, config: &Config, prepared: PreparedReload) -> ProxyContext {
        self.outbound.set_host_contexts(prepared.backend_identities);
        self.live.change(prepared.observation_settings);
        self.body_memory.set_limit(config.limits.body_memory(memory_limit::available_bytes()));
        self.admission.update_settings(admission(config));
        prepared.gateway
    }
}
