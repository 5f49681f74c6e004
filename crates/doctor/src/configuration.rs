//! The settings of a gateway that checks compare with the answers of its backends.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokenweir_core::address::Address;
use tokenweir_core::routing::PolicyKind;

/// The settings of a gateway that checks read.
#[derive(Debug, Clone, PartialEq)]
pub struct Configuration {
    /// The client listener.
    pub listen: SocketAddr,
    /// The admin listener.
    pub admin: SocketAddr,
    /// Whether clients need API keys.
    pub has_keys: bool,
    /// Whether the admin listener needs a token.
    pub has_admin_token: bool,
    /// The backends of the configuration file.
    pub backends: Vec<Backend>,
    /// The model names of the configuration file.
    pub models: Vec<Model>,
    /// The routing policy.
    pub policy: PolicyKind,
    /// The length of a backend's queue from which the gateway holds requests back. `None`: it does
    /// not hold requests back.
    pub max_waiting: Option<u32>,
    /// How long the gateway keeps an idle connection to a backend.
    pub idle_connection: Duration,
    /// Longest wait for a page of metrics.
    pub scrape_timeout: Duration,
    /// Longest page of metrics, in bytes.
    pub max_page: usize,
}

/// A backend of the configuration file.
#[derive(Debug, Clone, PartialEq)]
pub struct Backend {
    /// Its name.
    pub id: String,
    /// Its URL.
    pub url: Address,
    /// Whether the gateway sends it a key.
    pub has_key: bool,
}

/// A model name of the configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// The name that clients use.
    pub name: String,
    /// The name that backends use. `None`: the same.
    pub served_as: Option<String>,
    /// The names of the only backends that serve it. `None`: all backends with this model.
    pub backends: Option<Vec<String>>,
}

/// The defaults of a gateway. A test of the gateway compares them with its own.
impl Default for Configuration {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 8080).into(),
            admin: (Ipv4Addr::LOCALHOST, 9090).into(),
            has_keys: false,
            has_admin_token: false,
            backends: Vec::new(),
            models: Vec::new(),
            policy: PolicyKind::KvAware,
            max_waiting: Some(16),
            idle_connection: Duration::from_secs(3),
            scrape_timeout: Duration::from_secs(2),
            max_page: 4 << 20,
        }
    }
}
