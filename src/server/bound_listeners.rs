//! Binds the client listener and the admin listener, and sets up their limits and TLS.

use super::connection::limiter::ConnectionLimiter;
use super::descriptor_budget::{DescriptorBudget, raise_file_limit};
use super::limits::ServerLimits;
use super::listener::{self, BindError, BoundSocket};
use crate::admin::StatusSource;
use crate::config::Config;
use crate::proxy::{OverloadGuard, OverloadLimits};
use std::net::SocketAddr;
use std::sync::Arc;
use tokenweir_net::tls::{Acceptor, Credentials, TlsError, TlsServerSettings};
use tokio::net::TcpListener;

/// The bound listeners with their limits.
pub(crate) struct BoundListeners {
    /// The socket of the client listener. The socket is bound and does not listen yet.
    pub(crate) clients: BoundSocket,
    /// The admin listener, which listens already.
    pub(crate) admin: TcpListener,
    /// The division of the file descriptor limit among the parts of the gateway.
    pub(crate) descriptors: DescriptorBudget,
    pub(crate) overload_guard: Arc<OverloadGuard>,
    pub(crate) limits: ServerLimits,
    pub(crate) connection_limiter: Arc<ConnectionLimiter>,
    pub(crate) tls: ServerTls,
}

/// The TLS settings of the client listener and the admin listener.
#[derive(Default)]
pub struct ServerTls {
    /// The TLS acceptor of the client listener. `None`: plain TCP.
    pub client_acceptor: Option<Acceptor>,
    /// The TLS acceptor of the admin listener. `None`: plain TCP.
    pub admin_acceptor: Option<Acceptor>,
    /// All certificates, private keys and certificate authorities that are read from files and
    /// reloaded when the files change.
    pub credentials: Arc<Credentials>,
}

/// The reason why the listeners cannot be bound.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

// === impl BoundListeners ===

impl BoundListeners {
    /// Binds the sockets of the client listener and the admin listener, derives their limits from
    /// the configuration and the file descriptor limit, and reads their certificates.
    pub(crate) fn bind(config: &Config) -> Result<Self, ListenError> {
        let is_shared = config.listen_reuse_port;
        let clients = listener::bind_socket(config.listen, "client listener", is_shared)?;
        let admin = listener::bind_listener(config.admin, "admin listener")?;
        let (limit, backends) = (raise_file_limit(), config.backends.len());
        let descriptors = DescriptorBudget::from_limit(limit);
        descriptors.warn_if_low(limit, backends);
        let overload_guard = Arc::new(OverloadGuard::new(OverloadLimits {
            max_requests: config.limits.requests_in_flight,
            max_requests_per_client: config.limits.requests_per_client,
            max_descriptors: descriptors.traffic,
        }));
        overload_guard.set_health_checkers(backends);
        let limits = ServerLimits::from_config(config, descriptors, backends);
        let connection_limiter = ConnectionLimiter::new(&limits, overload_guard.clone());
        let tls = ServerTls::new(&config.tls)?;
        Ok(Self { clients, admin, descriptors, overload_guard, limits, connection_limiter, tls })
    }

    /// The address of the admin listener. If the configured address has port 0, the returned
    /// address has the port that the kernel chose.
    pub(crate) fn admin_address(&self, configured: SocketAddr) -> SocketAddr {
        self.admin.local_addr().unwrap_or(configured)
    }

    /// Whether the client listener (first) and the admin listener (second) use TLS.
    pub(crate) fn is_https(&self) -> [bool; 2] {
        [&self.tls.client_acceptor, &self.tls.admin_acceptor].map(Option::is_some)
    }

    /// Functions that write the counts of client connections and of TLS certificates into the
    /// status of the gateway.
    pub(crate) fn status_sources(&self) -> Vec<StatusSource> {
        let (limiter, credentials) =
            (self.connection_limiter.clone(), self.tls.credentials.clone());
        vec![
            Arc::new(move |status, _| status.connections = limiter.snapshot()),
            Arc::new(move |status, _| status.certificates = credentials.counts()),
        ]
    }
}

// === impl ServerTls ===

impl ServerTls {
    /// The TLS acceptors of both listeners.
    fn new(settings: &TlsServerSettings) -> Result<Self, TlsError> {
        let credentials = Arc::new(Credentials::default());
        let client_acceptor = Acceptor::for_client_listener(settings)?;
        let admin_acceptor = Acceptor::for_admin_listener(settings)?;
        for acceptor in [&client_acceptor, &admin_acceptor].into_iter().flatten() {
            credentials.register_acceptor(acceptor);
        }
        Ok(Self { client_acceptor, admin_acceptor, credentials })
    }
}
