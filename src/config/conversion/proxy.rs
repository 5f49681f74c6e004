//! Converts the configuration into the settings of the proxy.

use crate::config::root::Config;
use crate::config::sections::clients::routes::RouteConfig;
use std::sync::Arc;
use tokenweir_gateway::backend::routes::SplitVersion;
use tokenweir_gateway::proxy::{ConfiguredRoutes, ProxySettings, RequestSettings};
use tokenweir_gateway::telemetry::metrics_registry::buckets::BucketOverridesError;
use tokenweir_protocol::openai::PhraseMatcher;
use tokenweir_request::observe::ObservationSettings;
use tokenweir_request::slo::Objective;
use tokenweir_settings::{Environment, UnreadableSecret};

/// Why the settings of the proxy cannot be built, although the configuration is valid.
#[derive(Debug, thiserror::Error)]
pub enum ProxySettingsError {
    /// The secret of the hashes of identities cannot be read.
    #[error(transparent)]
    Secret(#[from] UnreadableSecret),
    /// The matcher of the model refusal phrases is too large.
    #[error("refusal_detection.refusal_phrases has too many phrases: remove some")]
    Phrases(#[from] aho_corasick::BuildError),
    /// The bucket bounds are invalid.
    #[error(transparent)]
    Buckets(#[from] BucketOverridesError),
}

/// Maximum time without bytes in either direction of a WebSocket.
const WEBSOCKET_IDLE_TIMEOUT: std::time::Duration = std::time::Duration::from_mins(5);

impl Config {
    /// The settings of the proxy. `available_memory`: the memory that the process may use, in
    /// bytes. `None`: unknown.
    pub fn proxy_settings(
        &self,
        available_memory: Option<usize>,
        env: impl Environment,
    ) -> Result<ProxySettings, ProxySettingsError> {
        Ok(ProxySettings {
            requests: RequestSettings {
                first_output_timeout: self.timeouts.first_output,
                total_timeout: self.timeouts.total,
                routes: ConfiguredRoutes::new(self.routes.iter().map(RouteConfig::to_route)),
                max_body_bytes: self.limits.body,
                body_idle_timeout: self.limits.body_idle_timeout,
                websocket_idle_timeout: WEBSOCKET_IDLE_TIMEOUT,
                identities: self.identities.reader(env)?,
                tiers: self.tiers.resolver(),
                session_headers: self.identities.session_names(),
            },
            retry: self.retry,
            admission: self.admission.settings(&self.objectives_of_versions()),
            body_memory_bytes: self.limits.body_memory(available_memory),
            observation: self.observation_settings()?,
        })
    }

    /// The objectives. An objective of a split model is repeated for each version, because routing knows
    /// requests by their version.
    fn objectives_of_versions(&self) -> Vec<Objective> {
        let mut objectives = self.slos.clone();
        for model in &self.models {
            let of_model = |objective: &&Objective| objective.model.as_ref() == Some(&model.name);
            for objective in self.slos.iter().filter(of_model) {
                let of_version = |version: &SplitVersion| Objective {
                    model: Some(version.model.clone()),
                    ..objective.clone()
                };
                objectives.extend(model.split.iter().map(of_version));
            }
        }
        objectives
    }

    /// The settings of the observation of requests: stalls, stream rules, slow requests, model
    /// refusals and histogram buckets.
    fn observation_settings(&self) -> Result<ObservationSettings, ProxySettingsError> {
        let phrases = &self.refusal_detection.refusal_phrases;
        let phrases = match phrases.len() {
            0 => None,
            _ => Some(Arc::new(PhraseMatcher::new(phrases)?)),
        };
        Ok(ObservationSettings {
            stalls: self.stalls,
            streams: self.streams.rules(),
            slow: self.slow,
            phrases,
            scales: self.metrics.response_buckets(&self.slos)?,
        })
    }
}
