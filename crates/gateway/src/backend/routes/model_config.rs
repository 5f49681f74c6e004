//! The configured models: their names, their backends, and their overrides of global settings.

use std::time::Duration;
use tokenweir_protocol::openai::engine_control::Permission;
use tokenweir_protocol::{settings, settings_entry, units};
use tokenweir_request::access::RequestCaps;
use tokenweir_request::continuation::ContinuationMode;
use tokenweir_request::observe::OnTruncation;

settings_entry! {
    /// A configured model name or alias. It takes precedence over a listed model of the same name.
    #[derive(Default)]
    pub struct ModelConfig {
        /// The model name in client requests.
        pub name: String,
        /// The model name that the backends use. `None`: the same as `name`.
        pub served_as: Option<String>,
        /// Names of the backends that may serve the model. `None`: all that list the model.
        pub backends: Option<Vec<String>>,
        /// The versions over which the requests of this model are split: other models, by the names that clients
        /// use. A conversation stays at its version. Empty: the model is not split.
        #[serde(default)]
        pub split: Vec<SplitVersion>,
        /// Whether a version of `split` whose results are worse than those of the others gets no more requests,
        /// until its `split` changes. `None`: if `slos` has objectives.
        pub guard: Option<bool>,
        /// Whether `model` in responses is `name`. `false`: the name that the backends use.
        #[serde(default)]
        pub rename_response: bool,
        /// Engine-control fields that every client of this model may use.
        #[serde(default)]
        pub allow: Vec<Permission>,
        /// Caps on each request of this model, in addition to those of its tenant. `None`: no caps.
        pub caps: Option<RequestCaps>,
        /// Overrides of global settings for requests of this model.
        #[serde(default)]
        pub policy: RoutePolicy,
    }
}

settings_entry! {
    /// A model that gets a share of the requests of another.
    #[derive(Eq)]
    pub struct SplitVersion {
        /// The name of the model: another entry of `models`, or a model that backends list.
        pub model: String,
        /// The share of the model is its weight, divided by the sum of all weights. 0: no requests.
        #[serde(default = "SplitVersion::default_weight")]
        pub weight: u32,
    }
}

settings! {
    /// Per-model overrides. An unset key means the global setting applies.
    #[derive(Copy, Default)]
    pub struct RoutePolicy {
        /// Timeout for the response headers.
        #[serde(with = "units::OptionalDuration")]
        pub response_headers: Option<Duration>,
        /// Timeout for the first output of a stream, as `timeouts.first_output`.
        #[serde(with = "units::OptionalDuration")]
        pub first_output: Option<Duration>,
        /// Maximum time between two outputs of a stream.
        #[serde(with = "units::OptionalDuration")]
        pub idle: Option<Duration>,
        /// Timeout for the whole request, as `timeouts.total`.
        #[serde(with = "units::OptionalDuration")]
        pub total: Option<Duration>,
        /// How the gateway ends a truncated stream.
        pub on_truncation: Option<OnTruncation>,
        /// How a stream goes on at another backend, as `streams.continuation`.
        pub continuation: Option<ContinuationMode>,
        /// Maximum share of streams with usage in every event. `null`: the share of the backend.
        pub continuous_usage: Option<f64>,
    }
}

impl SplitVersion {
    const fn default_weight() -> u32 {
        1
    }
}

impl ModelConfig {
    /// The model name that the backends use, if it differs from `name`.
    pub fn alias_of(&self) -> Option<&str> {
        self.served_as
            .as_deref()
            .filter(|target| *target != self.name)
    }
}
