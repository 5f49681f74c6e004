//! What stays as it is while the configuration changes, and the gateway that is made of it and of
//! the configuration in force: once at the start, and anew after each change.

use super::assembly::AssemblyError;
use super::files::Files;
use super::memory;
use super::parts::{admission, identities, observation, session_headers, tiers};
use crate::backend::pool::Pool;
use crate::config::{BackendConfig, Config};
use crate::proxy::access::Access;
use crate::proxy::admission::Admission;
use crate::proxy::retry::Retry;
use crate::proxy::{BodyMemory, Gate, Gateway, KeptText};
use crate::telemetry::Telemetry;
use crate::telemetry::buckets::Buckets;
use std::sync::Arc;
use tokenweir_core::observe::{Live, Settings};
use tokenweir_core::trace_context::Propagation;
use tokenweir_net::client::Client;
use tokenweir_net::tls::{Identity, Outbound};

/// What stays as it is.
pub(crate) struct Lasting {
    pub(crate) pool: Arc<Pool>,
    pub(crate) access: Arc<Access>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) gate: Arc<Gate>,
    /// Whom the gateway is, and believes, at the replicas.
    pub(crate) outbound: Arc<Outbound>,
    /// The memory of request bodies.
    pub(crate) body_memory: Arc<BodyMemory>,
    /// How the files that may be open are shared out.
    pub(crate) files: Files,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) live: Arc<Live>,
    pub(crate) propagation: Option<Propagation>,
    /// The share of requests that a capture keeps.
    pub(crate) captured: f64,
    pub(crate) kept_text: Option<KeptText>,
    pub(crate) buckets: Buckets,
}

/// What is to be looked for from now on, and the gateway that serves with it.
pub(crate) struct Next {
    observation: Settings,
    identities: Vec<(String, Arc<Identity>)>,
    gateway: Gateway,
}

// === impl Lasting ===

impl Lasting {
    /// The gateway of a configuration. `retry` has its settings.
    pub(crate) fn gateway(
        &self,
        config: &Config,
        retry: Retry,
        client: Client,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Gateway, AssemblyError> {
        Ok(Gateway {
            pool: self.pool.clone(),
            access: self.access.clone(),
            admission: self.admission.clone(),
            client,
            retry,
            first_output: config.timeouts.first_output,
            sink: self.telemetry.clone(),
            max_body: config.limits.body,
            body_memory: self.body_memory.clone(),
            body_idle: config.limits.body_idle_timeout,
            gate: self.gate.clone(),
            propagation: self.propagation.clone(),
            tiers: tiers(config, &env)?,
            live: self.live.clone(),
            session_headers: session_headers(config),
            captured: self.captured,
            kept_text: self.kept_text,
        })
    }

    /// All of it that can fail, before any of it holds. The history of `before` goes on.
    pub(crate) fn next(
        &self,
        config: &Config,
        before: &Gateway,
        replicas: &[BackendConfig],
        client: Client,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Next, AssemblyError> {
        let observation = observation(config, &self.buckets)?;
        let identities = identities(replicas)?;
        let retry = before.retry.reconfigured(config.retry);
        Ok(Next { observation, identities, gateway: self.gateway(config, retry, client, env)? })
    }

    /// It holds from now on.
    pub(crate) fn take(&self, config: &Config, next: Next) -> Gateway {
        self.outbound.set_own(next.identities);
        self.live.change(next.observation);
        self.body_memory.set_limit(config.limits.body_memory(memory::available()));
        self.admission.change(admission(config));
        next.gateway
    }
}
