//! The settings of the proxy.

use crate::config::root::Config;
use crate::config::sections::routes::RouteConfig;
use crate::config::sections::secret::UnreadableSecret;
use crate::config::sections::settings::{AdmissionConfig, ResumeConfig, TiersConfig};
use std::sync::Arc;
use tokenweir_gateway::proxy::admission::AdmissionSettings;
use tokenweir_gateway::proxy::{ConfiguredRoutes, ProxySettings, RequestSettings};
use tokenweir_gateway::telemetry::metrics_registry::buckets::BucketOverridesError;
use tokenweir_protocol::openai::PhraseMatcher;
use tokenweir_request::observe::{ObservationSettings, StreamRules};
use tokenweir_request::record::TierResolver;
use tokenweir_request::resume::ResumeSettings;
use tokenweir_request::slo::Objective;

/// Why the settings of the proxy cannot be built from a valid configuration.
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

/// Maximum time in which a WebSocket has no bytes in either direction.
const WEBSOCKET_IDLE_TIMEOUT: std::time::Duration = std::time::Duration::from_mins(5);

impl Config {
    /// The settings of the proxy. `available_memory`: the memory that the process may use, in
    /// bytes. `None`: unknown.
    pub fn proxy_settings(
        &self,
        available_memory: Option<usize>,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<ProxySettings, ProxySettingsError> {
        let identities = &self.identities;
        let session_headers =
            [&identities.session_headers[..], &identities.conversation_headers].concat();
        let identity_secret = self.identities.hash_secret().map(|secret| secret.resolve(&env));
        Ok(ProxySettings {
            requests: RequestSettings {
                first_output_timeout: self.timeouts.first_output,
                total_timeout: self.timeouts.total,
                routes: ConfiguredRoutes::new(self.routes.iter().map(RouteConfig::to_route)),
                max_body_bytes: self.limits.body,
                body_idle_timeout: self.limits.body_idle_timeout,
                websocket_idle_timeout: WEBSOCKET_IDLE_TIMEOUT,
                identities: self.identities.reader(identity_secret.transpose()?.as_ref()),
                tiers: self.tiers.resolver(),
                // The rules have checked that the names parse.
                session_headers: session_headers
                    .iter()
                    .filter_map(|name| name.parse().ok())
                    .collect(),
                resume: self.streams.resume.settings(),
            },
            retry: self.retry,
            admission: self.admission.settings(&self.slos),
            body_memory_bytes: self.limits.body_memory(available_memory),
            continuation_memory_bytes: self.limits.continuation_memory,
            observation: self.observation_settings()?,
        })
    }

    /// The settings of the observation of requests: stalls, stream rules, slow requests, model
    /// refusals and histogram buckets.
    fn observation_settings(&self) -> Result<ObservationSettings, ProxySettingsError> {
        let phrases = &self.refusal_detection.refusal_phrases;
        let phrases = (!phrases.is_empty()).then(|| PhraseMatcher::new(phrases)).transpose()?;
        Ok(ObservationSettings {
            stalls: self.stalls,
            streams: StreamRules {
                on_truncation: self.streams.on_truncation,
                keep_alive: self.streams.keep_alive,
                continuation: self.streams.continuation,
                continuation_greedy_only: self.streams.continuation_greedy_only,
            },
            slow: self.slow,
            phrases: phrases.map(Arc::new),
            scales: self.histogram_buckets()?.scales(self.metrics.native_histograms),
        })
    }
}

impl ResumeConfig {
    /// Returns the settings of requests whose clients may lose their connection and return. `None`: clients
    /// cannot return.
    fn settings(&self) -> Option<ResumeSettings> {
        self.window.map(|window| ResumeSettings { window, memory: self.memory })
    }
}

impl AdmissionConfig {
    /// The settings of the admission queue. `None`: admission control is disabled.
    fn settings(&self, objectives: &[Objective]) -> Option<AdmissionSettings> {
        self.enabled.then(|| AdmissionSettings {
            thresholds: self.marks(),
            queue_capacity: self.queue_capacity,
            max_wait: self.max_wait,
            max_backend_wait: self.max_backend_wait.unwrap_or(self.max_wait),
            objectives: objectives.to_vec(),
            classes: self.classes(),
            // The rules have checked that the name parses.
            tenant_header: self.tenant_header.as_ref().and_then(|name| name.parse().ok()),
        })
    }
}

impl TiersConfig {
    /// Builds the resolver, which determines the tier of each request.
    fn resolver(&self) -> TierResolver {
        TierResolver {
            // The rules have checked that the name parses.
            header: self.header.as_ref().and_then(|name| name.parse().ok()),
            names: self.names.iter().map(|name| name.as_str().into()).collect(),
        }
    }
}
