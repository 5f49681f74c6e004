//! The values that an option gets at the start and at a reload, and the values that it returns.

use crate::start_error::StartError;
use tokenweir_gateway::proxy::RequestSettings;
use tokenweir_net::client::HttpClient;

/// The parts of the configuration and of the machine that an option may use.
pub struct StartContext<'a> {
    /// A function that returns the value of an environment variable.
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

/// A function that applies prepared settings without waiting.
pub type Change = Box<dyn FnOnce(&Reloaded<'_>) + Send>;

/// The parts of the gateway that a reload has changed.
pub struct Reloaded<'a> {
    /// The client for requests to backends.
    pub client: &'a HttpClient,
    /// Whether the timeouts of the client have changed.
    pub has_new_timeouts: bool,
    /// The settings of requests.
    pub requests: &'a RequestSettings,
}

/// The reason why an option cannot start.
pub struct Obstacle {
    /// The path of the configuration key that causes the problem.
    pub path: String,
    /// The problem as an error.
    pub error: StartError,
}

/// The destination to which an option writes requests.
#[derive(Debug, Clone)]
pub struct OutputTarget {
    /// The key of the option in the list, which is the field of the log.
    pub key: &'static str,
    /// The name of the destination in the start banner.
    pub name: &'static str,
    /// The destination.
    pub target: String,
    /// The destination and the written data, as a line for operators.
    pub text: String,
}
