//! Converts the configuration into the limits and URLs of the listeners.

use crate::config::root::Config;
use tokenweir_gateway::server::{DescriptorBudget, ServerLimits};

impl Config {
    /// The limits of the listeners, from the configuration and the file descriptor budget. `backends`: the
    /// number of configured backends, whose health checks also take file descriptors.
    pub fn server_limits(&self, descriptors: DescriptorBudget, backends: usize) -> ServerLimits {
        let limits = &self.limits;
        ServerLimits {
            keep_alive_timeout: limits.keep_alive,
            write_timeout: limits.write_timeout,
            max_connections: limits
                .connections
                .unwrap_or_else(|| descriptors.clients(backends)),
            max_connections_per_client: limits.connections_per_client,
            max_concurrent_rejections: descriptors.refusals,
            max_admin_connections: descriptors.admin,
            max_memory_bytes: limits.memory.map(|bytes| bytes as u64),
            drain_delay: self.drain.delay,
            drain_timeout: self.drain.timeout,
            ..ServerLimits::default()
        }
    }

    /// The URL of the admin listener for other machines. `host_name`: the name of this machine.
    pub fn admin_url(&self, host_name: &str) -> String {
        let scheme = if self.tls.admin { "https" } else { "http" };
        if self.admin.ip().is_unspecified() {
            format!("{scheme}://{host_name}:{}", self.admin.port())
        } else {
            format!("{scheme}://{}", *self.admin)
        }
    }
}
