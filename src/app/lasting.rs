//! What stays as it is while the configuration changes, and the gateway that is made of it and of
//! the configuration in force: once at the start, and anew after each change.

use super::assembly::AssemblyError;
use super::files::Files;
use super::memory;
use super::parts::{admission, identities, observation, session_headers, tiers};
use crate::backend::client::Client;
use crate::backend::pool::Pool;
use crate::config::{BackendConfig, Config};
use crate::observe::{Live, Settings};
use crate::proxy::access::Access;
use crate::proxy::admission::Admission;
use crate::proxy::retry::Retry;
use crate::proxy::{BodyMemory, Gate, Gateway, KeptText};
use crate::telemetry::Telemetry;
use crate::telemetry::buckets::Buckets;
use crate::tls::{Identity, Outbound};
use crate::trace_context::Propagation;
use std::sync::Arc;

/// What stays as it is.
pub(super) struct Lasting {
    pub(super) pool: Arc<Pool>,
    pub(super) access: Arc<Access>,
    pub(super) admission: Arc<Admission>,
    pub(super) gate: Arc<Gate>,
    /// Whom the gateway is, and believes, at the replicas.
    pub(super) outbound: Arc<Outbound>,
    /// The memory of request bodies.
    pub(super) body_memory: Arc<BodyMemory>,
    /// How the files that may be open are shared out.
    pub(super) files: Files,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) live: Arc<Live>,
    pub(super) propagation: Option<Propagation>,
    /// The share of requests that a capture keeps.
    pub(super) captured: f64,
    pub(super) kept_text: Option<KeptText>,
    pub(super) buckets: Buckets,
}

/// What is to be looked for from now on, and the gateway that serves with it.
pub(super) struct Next {
    observation: Settings,
    identities: Vec<(String, Arc<Identity>)>,
    gateway: Gateway,
}

// === impl Lasting ===

impl Lasting {
    /// The gateway of a configuration. `retry` has its settings.
    pub(super) fn gateway(
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
    pub(super) fn next(
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
    pub(super) fn take(&self, config: &Config, next: Next) -> Gateway {
        self.outbound.set_own(next.identities);
        self.live.change(next.observation);
        self.body_memory.set_limit(config.limits.body_memory(memory::available()));
        self.admission.change(admission(config));
        next.gateway
    }
}
