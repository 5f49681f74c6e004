//! Binds the client listener and the admin listener, and sets up their limits and TLS.

use super::application::ApplicationError;
use super::builders::{gate, limits};
use super::descriptor_budget::DescriptorBudget;
use crate::config::Config;
use crate::proxy::OverloadGuard;
use crate::server::{self, BoundSocket, ConnectionLimiter, ServerLimits, ServerTls};
use std::net::SocketAddr;
use std::sync::Arc;
use tokenweir_net::tls::{Acceptor, Credentials, TlsError};
use tokio::net::TcpListener;

/// The bound sockets with their limits.
pub(crate) struct BoundListeners {
    /// Bound, but not listening yet.
    pub(crate) clients: BoundSocket,
    /// The admin listener.
    pub(crate) operators: TcpListener,
    /// The file descriptor budget.
    pub(crate) files: DescriptorBudget,
    pub(crate) gate: Arc<OverloadGuard>,
    pub(crate) limits: ServerLimits,
    pub(crate) connections: Arc<ConnectionLimiter>,
    pub(crate) tls: ServerTls,
}

impl BoundListeners {
    /// Binds both sockets and reads their certificates.
    pub(crate) fn bind(config: &Config) -> Result<Self, ApplicationError> {
        let is_shared = config.listen_reuse_port;
        let clients = server::bind_socket(config.listen, "client listener", is_shared)?;
        let operators = server::bind_listener(config.admin, "admin listener")?;
        let (limit, backends) = (raise_file_limit(), config.backends.len());
        let files = DescriptorBudget::from_limit(limit);
        files.warn_if_low(limit, backends);
        let gate = Arc::new(gate(config, files));
        gate.set_health_checkers(backends);
        let limits = limits(config, files, backends);
        let connections = ConnectionLimiter::new(&limits, gate.clone());
        let tls = build_tls(config)?;
        Ok(Self { clients, operators, files, gate, limits, connections, tls })
    }

    /// The address of the admin listener. Differs from the configured one if that has port 0.
    pub(crate) fn operators(&self, configured: SocketAddr) -> SocketAddr {
        self.operators.local_addr().unwrap_or(configured)
    }

    /// Whether the client listener and the admin listener use TLS.
    pub(crate) fn is_https(&self) -> [bool; 2] {
        [&self.tls.client_acceptor, &self.tls.admin_acceptor].map(Option::is_some)
    }
}

/// Raises the soft limit of open files to the hard limit, because every request in flight takes two
/// descriptors. Returns the limit. `None`: unknown.
pub(crate) fn raise_file_limit() -> Option<usize> {
    let raised = rlimit::increase_nofile_limit(u64::MAX);
    match raised.or_else(|error| {
        tracing::warn!(%error, "cannot raise the limit of open files: using the current limit");
        rlimit::getrlimit(rlimit::Resource::NOFILE).map(|(soft, _)| soft)
    }) {
        Ok(limit) => {
            tracing::debug!(limit, "limit of open files");
            usize::try_from(limit).ok()
        }
        Err(_) => None,
    }
}

/// The TLS acceptors of both listeners.
fn build_tls(config: &Config) -> Result<ServerTls, TlsError> {
    let credentials = Arc::new(Credentials::default());
    let client_acceptor = Acceptor::for_client_listener(&config.tls)?;
    let admin_acceptor = Acceptor::for_admin_listener(&config.tls)?;
    for acceptor in [&client_acceptor, &admin_acceptor].into_iter().flatten() {
        credentials.register_acceptor(acceptor);
    }
    Ok(ServerTls { client_acceptor, admin_acceptor, credentials })
}
