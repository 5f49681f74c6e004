//! Binds the client listener and the admin listener, and sets up their limits and TLS.

use crate::admin::{self, Admin};
use crate::config::Config;
use std::net::SocketAddr;
use std::sync::Arc;
use tokenweir_gateway::proxy::{OverloadGuard, OverloadLimits, ProxyContext};
use tokenweir_gateway::server::{
    BoundSocket, ConnectionLimiter, DescriptorBudget, Server, ServerLimits, ServerState, ServerTls,
    bind_listener, bind_socket, raise_file_limit,
};
use tokenweir_gateway::status::StatusSource;
use tokenweir_option::StartError;
use tokio::net::TcpListener;

/// The bound listeners with their limits.
pub(super) struct BoundListeners {
    /// The socket of the client listener, bound but not listening yet.
    pub(super) clients: BoundSocket,
    pub(super) admin: TcpListener,
    /// The division of the file descriptor limit among the parts of the gateway.
    pub(super) descriptors: DescriptorBudget,
    pub(super) overload_guard: Arc<OverloadGuard>,
    pub(super) limits: ServerLimits,
    pub(super) connection_limiter: Arc<ConnectionLimiter>,
    pub(super) tls: ServerTls,
}

impl BoundListeners {
    /// Binds the sockets of the client listener and the admin listener, derives their limits from
    /// the configuration and the file descriptor limit, and reads their certificates.
    pub(super) fn bind(config: &Config) -> Result<Self, StartError> {
        let is_shared = config.listen_reuse_port;
        let clients = bind_socket(*config.listen, "client listener", is_shared)?;
        let admin = bind_listener(*config.admin, "admin listener")?;
        let limit = raise_file_limit();
        let backends = config.backends.len();
        let descriptors = DescriptorBudget::from_limit(limit);
        descriptors.warn_if_low(limit, backends);
        let overload_guard = Arc::new(OverloadGuard::new(OverloadLimits {
            max_requests: config.limits.requests_in_flight,
            max_requests_per_client: config.limits.requests_per_client,
            max_descriptors: descriptors.traffic,
        }));
        overload_guard.set_health_checkers(backends);
        let limits = config.server_limits(descriptors, backends);
        let connection_limiter = ConnectionLimiter::new(&limits, overload_guard.clone());
        let tls = ServerTls::new(&config.tls)?;
        Ok(Self {
            clients,
            admin,
            descriptors,
            overload_guard,
            limits,
            connection_limiter,
            tls,
        })
    }

    /// Returns the address of the admin listener. For a configured port of 0, it contains the port that the
    /// kernel chose.
    pub(super) fn admin_address(&self, configured: SocketAddr) -> SocketAddr {
        self.admin.local_addr().unwrap_or(configured)
    }

    /// Starts to listen for clients.
    pub(super) fn serve(
        self,
        proxy: ProxyContext,
        admin: Arc<Admin>,
    ) -> Result<Server, StartError> {
        Ok(Server {
            client_listener: self.clients.listen()?,
            admin_listener: self.admin,
            state: ServerState::new(proxy, self.limits, self.connection_limiter),
            admin_router: admin::router(admin),
            tls: self.tls,
        })
    }

    /// Returns functions that write the counts of client connections and of TLS certificates into
    /// the status of the gateway.
    pub(super) fn status_sources(&self) -> Vec<StatusSource> {
        let limiter = self.connection_limiter.clone();
        let credentials = self.tls.credentials.clone();
        vec![
            Arc::new(move |status, _| status.connections = limiter.snapshot()),
            Arc::new(move |status, _| status.certificates = credentials.counts()),
        ]
    }
}
