//! What an option learns at the start and at a reload, and what it answers.

use crate::start_error::StartError;
use tokenweir_gateway::proxy::RequestSettings;
use tokenweir_net::client::HttpClient;

/// What an option may know of the configuration and of the machine.
pub struct StartContext<'a> {
    /// Returns the value of an environment variable.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// The name of this machine.
    pub host: String,
    /// The port of the admin listener.
    pub admin_port: u16,
    /// The URL of the admin listener for other machines.
    pub admin_url: String,
    /// Maximum size of a file of an option, together with its rotated file.
    pub max_file_bytes: u64,
}

/// Applies prepared settings. Does not wait.
pub type Change = Box<dyn FnOnce(&Reloaded<'_>) + Send>;

/// What a reload has changed in the gateway.
pub struct Reloaded<'a> {
    /// The client for requests to backends.
    pub client: &'a HttpClient,
    /// Whether its timeouts have changed.
    pub has_new_timeouts: bool,
    /// The settings of requests.
    pub requests: &'a RequestSettings,
}

/// Why an option cannot start.
pub struct Obstacle {
    /// The path of the key.
    pub path: String,
    /// The problem.
    pub error: StartError,
}

/// Where an option writes requests.
#[derive(Debug, Clone)]
pub struct OutputTarget {
    /// The key of the option in the list, which is the field of the log.
    pub key: &'static str,
    /// The name of the line in the banner.
    pub name: &'static str,
    /// The destination.
    pub target: String,
    /// The destination with what is written there, as a line for operators.
    pub text: String,
}
