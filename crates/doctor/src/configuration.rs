//! The settings of a gateway that the checks compare with the responses of its backends.

use std::net::SocketAddr;
use std::time::Duration;
use tokenweir_engine::address::BackendAddress;
use tokenweir_routing::PolicyKind;

/// The settings of a gateway that the checks read.
#[derive(Debug, Clone, PartialEq)]
pub struct GatewaySettings {
    /// The client listener.
    pub listen: SocketAddr,
    /// The address of the admin listener.
    pub admin: SocketAddr,
    /// Whether clients must send API keys.
    pub has_keys: bool,
    /// Whether the admin listener requires a token.
    pub has_admin_token: bool,
    /// The backends of the configuration file.
    pub backends: Vec<ConfiguredBackend>,
    /// The model names of the configuration file.
    pub models: Vec<ConfiguredModel>,
    /// The models of the objectives (`slos`), as pairs of the name of the objective and the model.
    pub objective_models: Vec<(String, String)>,
    /// The policy that picks backends.
    pub policy: PolicyKind,
    /// Number of waiting requests from which a backend counts as full. `None`: there is no limit.
    pub max_waiting: Option<u32>,
    /// Time after which the gateway closes an idle connection to a backend.
    pub idle_connection: Duration,
    /// Time limit for one scrape.
    pub scrape_timeout: Duration,
    /// Maximum size of a metrics page, in bytes.
    pub max_page: usize,
    /// Whether the gateway subscribes to the KV events of backends. `None`: it subscribes if the event
    /// publisher of a backend can be reached and the URL of the backend is not `https`.
    pub kv_events: Option<bool>,
}

/// The settings of one backend that checks read.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfiguredBackend {
    /// The name of the backend.
    pub id: String,
    /// The URL with which the gateway reaches the backend.
    pub url: BackendAddress,
    /// Whether the gateway sends an API key to the backend.
    pub has_key: bool,
    /// Whether the gateway subscribes to the KV events of this backend. `None`: the setting for all
    /// backends applies.
    pub kv_events: Option<bool>,
}

/// A model name of the configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredModel {
    /// The model name that clients use.
    pub name: String,
    /// The model name that backends use. `None`: backends use `name` too.
    pub served_as: Option<String>,
    /// The names of the backends that may serve the model. `None`: all backends that list the model.
    pub backends: Option<Vec<String>>,
}

impl GatewaySettings {
    /// Whether the gateway subscribes to the KV events of a backend. `None`: it subscribes only if the event
    /// publisher of the backend can be reached and the URL of the backend is not `https`.
    pub(crate) fn kv_events_of(&self, backend: &str) -> Option<bool> {
        let configured = self
            .backends
            .iter()
            .find(|configured| configured.id == backend);
        configured
            .and_then(|configured| configured.kv_events)
            .or(self.kv_events)
    }
}
